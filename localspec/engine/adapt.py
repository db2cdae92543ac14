"""Which drafter, how many tokens, or none: decided per round from measured costs and acceptance.

Nothing here reads a clock, a logits row or a random number, so a recorded reply replays exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.engine.acceptance import Acceptance, bucket_of
from localspec.engine.costs import Average, DraftCosts, Rate, UndoCosts, VerifyCosts, round_costs
from localspec.engine.drafters.base import Draft, Drafter
from localspec.engine.events import Notice
from localspec.engine.lengths import best_length, goes_on, surplus
from localspec.engine.pausing import Pausing
from localspec.engine.policy import DraftRequest, Outcome, propose

LEARNING = 60
"""Judged drafts of a drafter before a tuned length may give way to another one."""
HOPE = 2.5
"""A drafter gets the benefit of the doubt: it may draft where only that many standard errors more of
acceptance than was seen would make it pay."""
PATIENCE, DOUBT_SHARE = 8.0, 0.0075
"""Tokens that such drafts may be expected to lose: at first, and per token of the replies."""
PLAIN_BURST = 9
"""One-row rounds of a plain sample; the first is slow after a shape change and is discarded."""
PLAIN_INTERVAL = 500
"""Tokens between plain samples: a window of context then holds enough of them for a baseline."""
DEAR_INTERVAL = 1000
"""The same per unit of gain where plain decoding is less than half as fast: samples cost 1 % of the time
whatever the gain is, and there is no baseline."""
SURE = 0.8
"""Chance of acceptance from which a declined free draft is worth a look at its price."""
PRICE_LOOK = 3
"""Tokens of such a look."""
TURNED = 0.5
"""What earlier evidence still counts after a probe was accepted: the text is another one than it was."""
MIN_PLAIN_TOKENS = 32
PLAIN_WINDOW = 2048
"""A plain baseline needs this many tokens, measured within this much of context."""


SETTLED = 0.25
"""Tokens per round that another length must promise beyond a tuned one to replace it."""


@dataclass(frozen=True, slots=True)
class Start:
    """A setting that was measured to be the fastest: where the policy begins, not where it must stay."""

    method: str
    """A drafter, or `off`: then drafts wait until a probe wins."""
    k: int | None = None
    """None = adaptive from the first round."""


@dataclass(slots=True)
class Arm:
    """What is known of one drafter."""

    acceptance: Acceptance = field(default_factory=Acceptance)
    costs: DraftCosts = field(default_factory=DraftCosts)
    doubted: float = 0.0
    """Tokens that drafts in doubt were expected to lose."""
    judged: int = 0
    """Drafts that the target judged."""
    behind: int = 0
    """Tokens committed since it proposed last: it has to read them first."""


class AdaptivePolicy:
    """Chooses drafter and k per round; `lengths` has the rule.

    It outlives a reply: a session keeps one per target and drafters, so that later turns start informed.

    Args:
        verify: measured or stored decode times; filled further by every round.
        p_min: confidence below which drafting stops, by the user's wish.
        start: what to begin with.
    """

    adapts = True

    def __init__(
        self, verify: VerifyCosts | None = None, *, p_min: float = 0.0, start: Start | None = None
    ) -> None:
        self.verify = verify or VerifyCosts()
        self.arms: dict[str, Arm] = {}
        self._p_min = p_min
        self._start = start
        self._resting = start is not None and start.method == "off"
        self._undo = UndoCosts()
        # What a usual round reaches: rare long drafts, all accepted, must not price all the others out.
        self._tokens = Average(step=0.03)
        self._seconds = Average(step=0.03)
        self._committed = 0
        self._last_rows = 0
        self._pausing = Pausing(paused=self._resting)
        self._probing = False
        self._declined = Average()
        self._plain_at: list[int] = []
        self._burst = 0
        self._since_plain = 0
        self._drafted = Rate(step=0.05)
        self._shadow: tuple[str, Draft] | None = None

    def begin(self) -> None:
        """A new reply: what was learned stays, the pause ends (the text is another one)."""
        self._burst = self._last_rows = 0
        self._pausing.begin(paused=self._resting)
        self._shadow = None

    @property
    def paused(self) -> bool:
        return self._pausing.paused

    # -- choosing ---------------------------------------------------------------------------------

    def draft(self, request: DraftRequest) -> tuple[str, Draft | None]:
        self._shadow, self._probing = None, False
        if request.limit <= 0 or not request.drafters:
            return "off", None
        plain_now = self._wants_plain(request.n_past)
        for drafter in request.drafters:
            arm = self.arms.setdefault(drafter.name, Arm())
            if drafter.free:
                draft = self._free_draft(drafter, arm, request, plain_now)
            elif plain_now:
                continue
            else:
                draft = self._paid_draft(drafter, arm, request)
            if draft is not None and len(draft):
                return drafter.name, draft
        return "off", None

    def _free_draft(self, drafter: Drafter, arm: Arm, request: DraftRequest, plain_now: bool) -> Draft | None:
        draft = propose(drafter, request, request.limit, self._above_floor)
        if not len(draft):
            return None
        chances = [arm.acceptance.chance(bucket_of(c), i) for i, c in enumerate(draft.confidences)]
        costs = self._round_costs(chances, request.n_past, None)
        rate = self.rate(request.n_past)
        k, ratio = best_length(chances, costs, rate)
        settled = self._settled(drafter, arm, k, chances, costs, rate)
        k = k if settled is None else settled
        if k == 0 and self.paused and chances[0] >= SURE:
            look = min(PRICE_LOOK, len(draft))  # sure drafts that never pay: are their rows still as dear?
            if self._pausing.may_probe(drafter.name, costs[look] - costs[0]):
                k, self._probing = look, True
        if k == 0 or plain_now:
            self._declined.add(ratio)
            self._shadow = (drafter.name, draft)
            return None
        draft.cut(k)
        return draft

    def _settled(
        self,
        drafter: Drafter,
        arm: Arm,
        k: int,
        chances: Sequence[float],
        costs: Sequence[float],
        rate: float,
    ) -> int | None:
        """The length to start from, as long as `k` is not clearly better; None = no such length."""
        if self._resting and self.paused:
            return 0
        start = self._start
        if start is None or start.k is None or start.method != drafter.name:
            return None
        tuned = min(start.k, len(chances))
        if arm.judged < LEARNING:
            return tuned
        if k in (0, tuned):
            return None
        gain = surplus(k, chances, costs, rate) - surplus(tuned, chances, costs, rate)
        return None if gain > SETTLED else tuned

    def _above_floor(self, position: int, confidence: float) -> bool:
        return confidence >= self._p_min

    def _paid_draft(self, drafter: Drafter, arm: Arm, request: DraftRequest) -> Draft | None:
        chances = arm.acceptance.usual(request.limit)
        costs = self._round_costs(chances, request.n_past, arm.costs)
        rate = self.rate(request.n_past)
        k, ratio = best_length(chances, costs, rate)
        settled = self._settled(drafter, arm, k, chances, costs, rate)
        if settled:
            return propose(drafter, request, settled, self._above_floor)
        if k == 0 or settled == 0:
            self._declined.add(ratio)
            k = self._doubtful_length(drafter, arm, request, chances, costs)
            if k == 0:
                return None
            self._probing = True
        reach, least = 1.0, k if self._probing else 1

        def more(position: int, confidence: float) -> bool:
            nonlocal reach
            if confidence < self._p_min:
                return False
            reach *= arm.acceptance.chance(bucket_of(confidence), position)
            return position < least or goes_on(position, reach, chances, costs, rate)

        return propose(drafter, request, min(request.limit, max(2 * k, 4)), more)

    def _doubtful_length(
        self,
        drafter: Drafter,
        arm: Arm,
        request: DraftRequest,
        chances: Sequence[float],
        costs: Sequence[float],
    ) -> int:
        """Tokens to draft although it seems to lose: to get to know a drafter, or as a probe; 0 = none."""
        others = self._start is not None and self._start.method not in ("auto", drafter.name)
        k = 0 if others else self._hoped_length(arm, request, chances, costs)
        if k:
            return k
        k = self._probe_length(chances, costs)
        catch_up = arm.behind * arm.costs.per_catchup_row.value if arm.behind > 2 else 0.0
        return k if self._pausing.may_probe(drafter.name, costs[k] - costs[0] + catch_up) else 0

    def _hoped_length(
        self, arm: Arm, request: DraftRequest, chances: Sequence[float], costs: Sequence[float]
    ) -> int:
        """Tokens worth drafting if acceptance is as good as it may well be, while that costs little."""
        rate = self.rate(request.n_past)
        hoped = arm.acceptance.usual(request.limit, HOPE)
        k, _ = best_length(hoped, self._round_costs(hoped, request.n_past, arm.costs), rate)
        if not k:
            return 0
        loss = surplus(0, chances, costs, rate) - surplus(k, chances, costs, rate)
        if arm.doubted + loss > PATIENCE + DOUBT_SHARE * self._committed:
            return 0
        arm.doubted += max(0.0, loss)
        return k

    @staticmethod
    def _probe_length(chances: Sequence[float], costs: Sequence[float]) -> int:
        """The length that would lose least."""
        best, best_rate, reach, tokens = 1, 0.0, 1.0, 1.0
        for k, chance in enumerate(chances, 1):
            reach *= chance
            tokens += reach
            if tokens > best_rate * costs[k]:
                best, best_rate = k, tokens / costs[k] if costs[k] > 0 else 0.0
        return best

    def _round_costs(self, chances: Sequence[float], n_past: int, draft: DraftCosts | None) -> list[float]:
        verify = [self.verify.seconds(rows, n_past) for rows in range(1, len(chances) + 2)]
        return round_costs(verify, chances, draft, self._undo)

    def _plain_s(self, n_past: int) -> float:
        """Seconds of a plain round, 0 while unknown."""
        seconds = self.verify.seconds(1, n_past)
        return seconds + self._undo.plain.value if seconds else 0.0

    def rate(self, n_past: int) -> float:
        """Tokens per second that time is worth here: what the reply reaches, at least plain decoding."""
        plain = self._plain_s(n_past)
        floor = 1.0 / plain if plain > 0 else 0.0
        reached = self._tokens.value / self._seconds.value if self._seconds.value > 0 else 0.0
        return max(floor, reached)

    def _wants_plain(self, n_past: int) -> bool:
        """Whether this round should be a plain sample: bursts keep the baseline measured and cheap."""
        if self._burst > 0:
            return True
        gain = self._ratio(n_past) - 1.0
        if self._since_plain > (PLAIN_INTERVAL if gain <= 1.0 else DEAR_INTERVAL * gain):
            self._burst = PLAIN_BURST
            return True
        return False

    def restart(self, method: str) -> None:
        self.arms.pop(method, None)
        self._pausing.begin()

    # -- learning ---------------------------------------------------------------------------------

    def observe(self, outcome: Outcome) -> list[Notice]:
        seconds = outcome.draft_s + outcome.verify_s + outcome.other_s
        tokens = len(outcome.committed)
        self._committed += tokens
        self._observe_costs(outcome, seconds)
        self._observe_shadow(outcome)
        if outcome.confidences:
            self._observe_acceptance(outcome)
        if seconds > 0 and tokens and outcome.complete:
            self._tokens.add(float(tokens))
            self._seconds.add(seconds)
        return self._pause_or_resume(outcome, seconds)

    def _observe_costs(self, outcome: Outcome, seconds: float) -> None:
        drafted = len(outcome.confidences)
        self._undo.observe(drafted, outcome.accepted, outcome.other_s)
        steady = outcome.rows == self._last_rows
        if drafted or steady or not self.verify.known(1):
            self.verify.observe(outcome.rows, outcome.n_past, outcome.verify_s)
        self._last_rows = outcome.rows
        for arm in self.arms.values():
            arm.behind += len(outcome.committed)
        if not drafted:
            self._burst = max(0, self._burst - 1)
            if steady:
                self._plain_at += [outcome.n_past] * len(outcome.committed)
                self._since_plain = 0
            return
        self._since_plain += len(outcome.committed)
        self._drafted.add(len(outcome.committed), seconds)
        arm = self.arms.setdefault(outcome.method, Arm())
        arm.behind = 0
        arm.costs.observe(
            drafted, outcome.draft_s - outcome.catchup_s, outcome.catchup_rows, outcome.catchup_s
        )

    def _observe_acceptance(self, outcome: Outcome) -> None:
        arm = self.arms[outcome.method]
        arm.judged += outcome.tested
        acceptance = arm.acceptance
        if self._probing and self.paused and outcome.accepted:
            acceptance.fade(TURNED)
        for i in range(outcome.tested):
            acceptance.observe(bucket_of(outcome.confidences[i]), i, i < outcome.accepted)

    def _observe_shadow(self, outcome: Outcome) -> None:
        """A free proposal that was not verified still meets the token the target chose."""
        if self._shadow is not None and outcome.committed:
            name, draft = self._shadow
            self.arms[name].acceptance.observe(
                bucket_of(draft.confidences[0]), 0, draft.tokens[0] == outcome.committed[0]
            )
        self._shadow = None

    def _pause_or_resume(self, outcome: Outcome, seconds: float) -> list[Notice]:
        if not self.arms:
            return []  # nobody may draft: that is no pause
        if not outcome.confidences:
            return [self._paused_notice()] if self._pausing.plain(seconds) else []
        plain_s = len(outcome.committed) * self._plain_s(outcome.n_past)
        won = plain_s / seconds if seconds > 0 else 1.0
        change = self._pausing.drafted(seconds, seconds - plain_s, probe=self._probing, won=won > 1.0)
        self._resting = self._resting and won <= 1.0
        return [Notice("resumed", f"drafts pay again here ({won:.2f}× in the last round)")] if change else []

    def _paused_notice(self) -> Notice:
        if self._declined.count:
            return Notice("paused", f"slower than plain here ({self._declined.value:.2f}×)")
        return Notice("paused", "nothing here to copy from")

    def speedup(self) -> float | None:
        if not self._plain_at or not self._drafted.count:
            return None
        newest = self._plain_at[-1]
        self._plain_at = [n for n in self._plain_at[-256:] if newest - n <= PLAIN_WINDOW]
        if len(self._plain_at) < MIN_PLAIN_TOKENS:
            return None
        return self._ratio(newest) or None

    def _ratio(self, n_past: int) -> float:
        """Rate of drafted rounds / rate of plain ones as far as both are known, else 0."""
        return self._drafted.value * self._plain_s(n_past)
