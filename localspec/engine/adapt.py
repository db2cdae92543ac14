"""Which drafter, how many tokens, or none: decided per round from measured costs.

A round of k drafted tokens is worth E[tokens] - λ · seconds, where λ is the rate the reply reaches
anyway: drafting goes on while one more token earns more than its time would earn elsewhere, and k = 0
(plain decoding) is one of the choices. Nothing here reads a clock, a logits row or a random number, so a
recorded reply replays exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.engine.costs import Acceptance, Average, DraftCosts, VerifyCosts
from localspec.engine.drafters.base import Draft, Drafter, DraftSampling, History
from localspec.engine.events import Notice
from localspec.engine.policy import Outcome

QUIET_ROUNDS = 32
"""Rounds without a draft after which speculation counts as paused."""
PLAIN_BURST = 9
"""One-row rounds of a plain sample; the first is slow after a shape change and is discarded."""
PLAIN_INTERVAL = 500
"""Tokens between plain samples per unit of gain, so that they cost below 2 % whatever the gain is."""
PROBE_SHARE = 0.01
"""Share of the paused decode time that probes plan to spend, half of what they may really cost."""
SURE = 0.8
"""Chance of acceptance from which a declined free draft is worth a look at its price."""
MIN_PLAIN_TOKENS = 32
PLAIN_WINDOW = 2048
"""A plain baseline needs this many tokens, measured within this much of context."""

_BUCKET_TOPS = (0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.86, 0.9, 0.93, 0.96, 0.99, 1.01)
"""Upper ends of the confidence buckets: finer towards certainty, where it decides how long to draft."""
_PRIOR = (0.1, 0.2, 0.35, 0.45, 0.6, 0.7, 0.78, 0.84, 0.88, 0.92, 0.95, 0.97)
"""Acceptance to expect of each bucket before anything was seen: a little below the drafter's own word."""


def bucket_of(confidence: float) -> int:
    return bisect_right(_BUCKET_TOPS, confidence)


def _goes_on(
    position: int, reach: float, chances: Sequence[float], costs: Sequence[float], rate: float
) -> bool:
    """Whether the token at `position`, alone or with some that usually follow, earns more than its time.

    Looking further than one row steps over the kernels' cliffs, and stops in front of those too high.
    """
    gain = 0.0
    for k in range(position + 1, len(costs)):
        gain += reach
        if gain > rate * (costs[k] - costs[position]):
            return True
        if k < len(chances):
            reach *= chances[k]
    return False


@dataclass(slots=True)
class Arm:
    """What is known of one drafter."""

    acceptance: Acceptance = field(default_factory=lambda: Acceptance(_PRIOR))
    costs: DraftCosts = field(default_factory=DraftCosts)
    next_probe: int = QUIET_ROUNDS
    """Paused rounds until the next probe; doubles while probes lose."""


class AdaptivePolicy:
    """Chooses drafter and k per round; see the module's first paragraph.

    It outlives a reply: a session keeps one per target and drafters, so that later turns start informed.

    Args:
        verify: measured or stored decode times; filled further by every round.
        p_min: confidence below which drafting stops, by the user's wish.
    """

    def __init__(self, verify: VerifyCosts | None = None, *, p_min: float = 0.0) -> None:
        self.verify = verify or VerifyCosts()
        self.arms: dict[str, Arm] = {}
        self._p_min = p_min
        self._overhead = Average()
        self._accepted_overhead = Average()
        self._rejected_overhead = Average()
        self._tokens = Average(step=0.03)
        self._seconds = Average(step=0.03)
        self._last_rows = 0
        self._quiet = 0
        self._drafted_recently = 0
        self.paused = False
        self._declined = Average()
        self._paused_s = 0.0
        self._probe_s = 0.0
        self._plain_at: list[int] = []
        self._burst = 0
        self._since_plain = 0
        self._spec_tokens = Average(step=0.05)
        self._spec_seconds = Average(step=0.05)
        self._shadow: tuple[str, Draft] | None = None

    def begin(self) -> None:
        """A new reply: what was learned stays, the pause ends (the text is another one)."""
        self._quiet = self._burst = self._last_rows = 0
        self.paused = False
        self._shadow = None

    # -- choosing ---------------------------------------------------------------------------------

    def draft(
        self,
        drafters: Sequence[Drafter],
        history: History,
        limit: int,
        n_past: int,
        sampling: DraftSampling | None,
    ) -> tuple[str, Draft | None]:
        self._shadow = None
        if limit <= 0 or not drafters:
            return "off", None
        plain_now = self._wants_plain(n_past)
        for drafter in drafters:
            arm = self.arms.setdefault(drafter.name, Arm())
            if drafter.free:
                draft = self._free_draft(drafter, arm, history, limit, n_past, plain_now)
            elif plain_now:
                continue
            else:
                draft = self._paid_draft(drafter, arm, history, limit, n_past, sampling)
            if draft is not None and len(draft):
                return drafter.name, draft
        return "off", None

    def _free_draft(
        self, drafter: Drafter, arm: Arm, history: History, limit: int, n_past: int, plain_now: bool
    ) -> Draft | None:
        draft = drafter.propose(history, limit, lambda _, confidence: confidence >= self._p_min, None)
        if not len(draft):
            return None
        chances = [arm.acceptance.chance(bucket_of(c), i) for i, c in enumerate(draft.confidences)]
        costs = self._round_costs(chances, n_past, 0.0)
        k, ratio = self._best_k(chances, costs, n_past)
        if k == 0 and self.paused and chances[0] >= SURE and self._may_probe(arm, costs):
            k = min(3, len(draft))  # sure drafts that never pay: are their rows as dear as they once were?
        if k == 0 or plain_now:
            self._declined.add(ratio)
            self._shadow = (drafter.name, draft)
            return None
        draft.cut(k)
        return draft

    def _paid_draft(
        self,
        drafter: Drafter,
        arm: Arm,
        history: History,
        limit: int,
        n_past: int,
        sampling: DraftSampling | None,
    ) -> Draft | None:
        chances = [arm.acceptance.usual(i) for i in range(limit)]
        costs = self._round_costs(chances, n_past, arm.costs.per_token.value)
        k, ratio = self._best_k(chances, costs, n_past)
        if k == 0:
            self._declined.add(ratio)
            if not self._may_probe(arm, costs):
                return None
            k = min(3, limit)
        reach = 1.0
        rate = self.rate(n_past)

        def more(position: int, confidence: float) -> bool:
            nonlocal reach
            if confidence < self._p_min:
                return False
            reach *= arm.acceptance.chance(bucket_of(confidence), position)
            return position == 0 or _goes_on(position, reach, chances, costs, rate)

        return drafter.propose(
            history, min(limit, max(2 * k, 4)), more, sampling if drafter.samples else None
        )

    def _round_costs(self, chances: Sequence[float], n_past: int, per_token_s: float) -> list[float]:
        """Seconds of a round by drafted tokens, 0…len(chances).

        What a target that cannot drop cells spends on saving its state belongs to the rounds with drafts,
        and on replaying it to those with a rejection.
        """
        costs, reach = [self._cost(1, n_past)], 1.0
        kept = (self._accepted_overhead if self._accepted_overhead.count else self._overhead).value
        dropped = self._rejected_overhead.value if self._rejected_overhead.count else kept
        for k, chance in enumerate(chances, 1):
            reach *= chance
            overhead = reach * kept + (1.0 - reach) * dropped
            costs.append(self.verify.seconds(k + 1, n_past) + k * per_token_s + overhead)
        return costs

    def _best_k(self, chances: Sequence[float], costs: Sequence[float], n_past: int) -> tuple[int, float]:
        """k with the largest surplus over plain decoding, and its speed relative to plain.

        Expected tokens of k drafts are 1 + Σᵢ Πⱼ≤ᵢ aⱼ (Leviathan et al. 2023, with measured a).
        """
        plain = costs[0]
        if plain <= 0:
            return min(3, len(chances)), 1.0
        rate = self.rate(n_past)
        best_k, best, ratio = 0, 1.0 - rate * plain, 0.0
        reach, tokens = 1.0, 1.0
        for k, chance in enumerate(chances, 1):
            reach *= chance
            tokens += reach
            ratio = max(ratio, tokens / costs[k] * plain)
            surplus = tokens - rate * costs[k]
            if surplus > best + 1e-9:
                best_k, best = k, surplus
        return best_k, ratio

    def _cost(self, rows: int, n_past: int) -> float:
        seconds = self.verify.seconds(rows, n_past)
        return seconds + self._overhead.value if seconds else 0.0

    def rate(self, n_past: int) -> float:
        """Tokens per second that time is worth here: what the reply reaches, at least plain decoding."""
        plain = self._cost(1, n_past)
        floor = 1.0 / plain if plain > 0 else 0.0
        reached = self._tokens.value / self._seconds.value if self._seconds.value > 0 else 0.0
        return max(floor, reached)

    def _wants_plain(self, n_past: int) -> bool:
        """Whether this round should be a plain sample: bursts keep the baseline measured and cheap."""
        if self._burst > 0:
            return True
        gain = max(self._ratio(n_past) - 1.0, 0.25)
        if self._since_plain > max(256.0, PLAIN_INTERVAL * gain):
            self._burst = PLAIN_BURST
            return True
        return False

    def _may_probe(self, arm: Arm, costs: Sequence[float]) -> bool:
        if not self.paused:
            return self._quiet < QUIET_ROUNDS and arm.costs.per_token.count < 8
        price = costs[min(3, len(costs) - 1)] - costs[0]
        if self._quiet < arm.next_probe or self._probe_s + price > PROBE_SHARE * self._paused_s:
            return False
        arm.next_probe = self._quiet + 2 * min(arm.next_probe, 512)
        return True

    # -- learning ---------------------------------------------------------------------------------

    def observe(self, outcome: Outcome) -> list[Notice]:
        seconds = outcome.draft_s + outcome.verify_s + outcome.other_s
        tokens = len(outcome.committed)
        plain = not outcome.confidences
        self._observe_costs(outcome, plain)
        self._observe_shadow(outcome)
        if not plain:
            self._observe_acceptance(outcome)
        if seconds > 0 and tokens and outcome.complete:
            self._tokens.add(float(tokens))
            self._seconds.add(seconds)
        return self._pause_or_resume(plain, seconds, outcome)

    def _observe_costs(self, outcome: Outcome, plain: bool) -> None:
        if plain:
            self._overhead.add(outcome.other_s)
        elif outcome.accepted < len(outcome.confidences):
            self._rejected_overhead.add(outcome.other_s)
        else:
            self._accepted_overhead.add(outcome.other_s)
        steady = outcome.rows == self._last_rows
        if not plain or steady or not self.verify.known(1):
            self.verify.observe(outcome.rows, outcome.n_past, outcome.verify_s)
        self._last_rows = outcome.rows
        if plain:
            self._burst = max(0, self._burst - 1)
            if steady:
                self._plain_at += [outcome.n_past] * len(outcome.committed)
                self._since_plain = 0
        else:
            self._since_plain += len(outcome.committed)
            self._spec_tokens.add(float(len(outcome.committed)))
            self._spec_seconds.add(outcome.draft_s + outcome.verify_s + outcome.other_s)
            arm = self.arms.setdefault(outcome.method, Arm())
            arm.costs.observe(
                len(outcome.confidences),
                outcome.draft_s - outcome.catchup_s,
                outcome.catchup_rows,
                outcome.catchup_s,
            )

    def _observe_acceptance(self, outcome: Outcome) -> None:
        arm = self.arms[outcome.method]
        for i in range(outcome.tested):
            arm.acceptance.observe(bucket_of(outcome.confidences[i]), i, i < outcome.accepted)

    def _observe_shadow(self, outcome: Outcome) -> None:
        """A free proposal that was not verified still meets the token the target chose."""
        if self._shadow is not None and outcome.committed:
            name, draft = self._shadow
            self.arms[name].acceptance.observe(
                bucket_of(draft.confidences[0]), 0, draft.tokens[0] == outcome.committed[0]
            )
        self._shadow = None

    def _pause_or_resume(self, plain: bool, seconds: float, outcome: Outcome) -> list[Notice]:
        if self.paused:
            self._paused_s += seconds
        if plain:
            self._quiet += 1
            if self._quiet % 8 == 0:
                self._drafted_recently = 0
            if not self.paused and self._quiet >= QUIET_ROUNDS:
                return [self._pause()]
            return []
        if self.paused:
            self._probe_s += max(0.0, seconds - len(outcome.committed) * self._cost(1, outcome.n_past))
        won = len(outcome.committed) / seconds * self._cost(1, outcome.n_past) if seconds > 0 else 1.0
        self._quiet = 0 if not self.paused else self._quiet
        self._drafted_recently += won > 1.0
        if self.paused and self._drafted_recently >= 2:
            self.paused = False
            self._quiet = 0
            return [Notice("resumed", f"drafts pay again here ({won:.2f}× in the last round)")]
        return []

    def _pause(self) -> Notice:
        self.paused = True
        self._paused_s = self._probe_s = 0.0
        self._drafted_recently = 0
        for arm in self.arms.values():
            arm.next_probe = QUIET_ROUNDS * 2
        if self._declined.count:
            return Notice("paused", f"slower than plain here ({self._declined.value:.2f}×)")
        return Notice("paused", "nothing here to copy from")

    def speedup(self) -> float | None:
        if not self._plain_at or not self._spec_seconds.count:
            return None
        newest = self._plain_at[-1]
        self._plain_at = [n for n in self._plain_at[-256:] if newest - n <= PLAIN_WINDOW]
        if len(self._plain_at) < MIN_PLAIN_TOKENS:
            return None
        return self._ratio(newest) or None

    def _ratio(self, n_past: int) -> float:
        """Rate of drafted rounds / rate of plain ones as far as both are known, else 0."""
        if not self._spec_seconds.count:
            return 0.0
        return self._spec_tokens.value / self._spec_seconds.value * self._cost(1, n_past)
