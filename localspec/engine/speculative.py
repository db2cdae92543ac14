"""The loop: draft, verify in one target decode, judge, commit, roll back.

    round:  draft d₁…d_k  →  target decodes [newest, d₁…d_k]  →  row i judges d_{i+1}, row k gives a bonus
            →  commit the accepted prefix and one token of the target  →  drop the other cells

Between rounds the target's cache holds every token of the history but the newest. The engine sees token
ids only; text, templates and stop strings belong to the layer above, which may end the reply at any token
through `Control.stop`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.engine.alarms import Alarms, repeats_itself
from localspec.engine.backend.context import DecodeAborted
from localspec.engine.caches import Caches
from localspec.engine.control import Clock, Control, Options
from localspec.engine.drafters.base import Draft, Drafter, DraftSampling, History, Ids
from localspec.engine.events import Done, DoneReason, Event, Notice, Prefill, Round, Token
from localspec.engine.leaders import Row
from localspec.engine.policy import DraftRequest, Outcome, Policy
from localspec.engine.recovery import NOTHING_ACCEPTED, DraftFaultError, Health
from localspec.engine.rule import RuleChoice
from localspec.engine.sampling import Distribution, RowProcessor, judge, log_probabilities, uniform
from localspec.engine.stats import Stats
from localspec.engine.target import Target
from localspec.errors import EngineError, PromptTooLongError, UsageError

_DRAW, _RESIDUAL, _DRAFT = 0, 1, 2
"""Lanes of the keyed random numbers."""


@dataclass(slots=True)
class _RoundState:
    """A round in progress: what must be put in order however it ends."""

    base: int
    """Target cells before the round's decode."""
    drafter: Drafter | None = None
    method: str = "off"
    draft: Draft | None = None
    rows: int = 1
    tested: int = 0
    accepted: int = 0
    committed: list[int] = field(default_factory=list)
    verify_s: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    rebuilt_s: float = 0.0
    """Spent on a spoiled drafter: the reply's time, and no price of rounds."""


class Loop:
    """One reply. `run()` is its event generator; closing it leaves caches equal to what was consumed.

    Args:
        sampler: the request's chain over the target's rows.
        drafters: in order of preference; empty for plain decoding.
        draft_distribution: a draft logits row → q under the request's truncation, for rejection.
        alarms: the session's, so that patterns over several replies are seen.
        health: the conversation's, so that a drafter that a reset did not help stays off.
    """

    def __init__(
        self,
        target: Target,
        drafters: Sequence[Drafter],
        sampler: RowProcessor,
        policy: Policy,
        options: Options,
        control: Control,
        *,
        draft_distribution: Callable[[Row], Distribution] | None = None,
        alarms: Alarms | None = None,
        health: Health | None = None,
        rule: RuleChoice | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._target = target
        self._health = health or Health()
        off = self._health.off if policy.adapts else {}
        self._sampler = sampler
        self._policy = policy
        self._options = options
        self._control = control
        self._alarms = alarms or Alarms()
        self._rule = rule
        self._clock = Clock(now)
        self._draws = 0
        self._notices = [Notice("off", off[d.name]) for d in drafters if d.name in off]
        self._caches = Caches(
            target,
            [drafter for drafter in drafters if drafter.name not in off],
            control,
            self._notices.append,
            require=options.require,
        )
        self.stats = Stats()
        self._sampling = (
            DraftSampling(draft_distribution, self._draft_uniform)
            if options.rejection and draft_distribution is not None and not sampler.greedy
            else None
        )

    def run(self, prompt: Ids, stable: int | None = None) -> Iterator[Event]:
        """Produce the reply to `prompt` (`[n]` ids, n ≥ 1).

        Args:
            stable: prompt tokens that the next turn's prompt will most likely repeat; where a memory
                cannot drop cells, its state is kept there.

        Raises:
            UsageError: the prompt is empty.
            PromptTooLongError: it is longer than the context.
        """
        if not len(prompt):
            raise UsageError("the prompt is empty")
        if len(prompt) > self._target.n_ctx:
            raise PromptTooLongError(
                f"the prompt has {len(prompt)} tokens, the context {self._target.n_ctx}",
                hint="shorten the prompt or raise `--ctx`",
            )
        return self._run(prompt, len(prompt) - 1 if stable is None else min(stable, len(prompt) - 1))

    def _run(self, prompt: Ids, stable: int) -> Iterator[Event]:
        started = self._clock.busy()
        history = History(prompt, self._target.n_ctx + self._options.k_max + 2)
        reason: DoneReason = "error"
        error: str | None = None
        try:
            yield from self._prefill(prompt, stable)
            self._caches.begin(history)
            self.stats.prefill_s = self._clock.busy() - started
            reason = yield from self._rounds(history, started)
        except DecodeAborted:
            reason = "cancelled"
        except EngineError as failure:
            error = failure.message
        yield Done(reason, self.stats.summary(self._policy.speedup()), error)

    # -- prompt -----------------------------------------------------------------------------------

    def _prefill(self, prompt: Ids, stable: int) -> Iterator[Event]:
        """Fill the target's cache with all but the last prompt token, reusing what is there."""
        self._caches.stable = stable
        reused = self._caches.keep(prompt)
        self.stats.prompt_tokens, self.stats.reused_tokens = len(prompt), reused
        yield from self._emit(Prefill(reused, len(prompt), reused))
        for done in self._caches.read(prompt, reused):
            yield from self._emit(Prefill(done, len(prompt), reused))

    # -- rounds -----------------------------------------------------------------------------------

    def _rounds(self, history: History, reply_started: float) -> Generator[Event, None, DoneReason]:
        """Rounds until the reply ends; returns why it ended."""
        started = self._clock.busy()
        while True:
            rebuilt_s = 0.0
            if self._health.fault is not None and self._policy.adapts:
                self._recover(self._health.fault, history)
                rebuilt_s = self._clock.busy() - started
            assert self._target.n_past == len(history) - 1, "the cache must lack exactly the newest token"
            if self._control.cancelled:
                return "cancelled"
            if len(history) > self._target.n_ctx:
                return "context"
            if self._options.max_tokens is not None and self._left() <= 0:
                return "length"
            state = _RoundState(base=self._target.n_past, started=started, rebuilt_s=rebuilt_s)
            reason: DoneReason | None = None
            try:
                self._draft(state, history)
                rows = self._verify(state, history)
                for token in self._judge(state, history, rows):
                    if self.stats.first_token_s is None:
                        self.stats.first_token_s = self._clock.busy() - reply_started
                    if isinstance(token, Token):
                        self._clock.leave()
                        yield token
                        self._clock.back()
                    reason = self._ends(token, state)
                    if reason is not None:
                        break
            finally:
                event = self._finish(state, history, complete=reason is None)
                started = state.ended
            while self._notices:
                yield from self._emit(self._notices.pop(0))
            yield from self._emit(event)
            if reason is not None:
                return reason

    def _left(self) -> int:
        assert self._options.max_tokens is not None
        return self._options.max_tokens - self.stats.completion_tokens

    def _limit(self) -> int:
        """Most tokens that may be drafted now: budget, context and what the target can undo."""
        limits = [
            self._options.k_max,
            self._target.n_ctx - self._target.n_past - 1,
            self._target.most_rows - 1,
        ]
        if self._options.max_tokens is not None:
            limits.append(self._left() - 1)
        if self._target.undo_limit is not None:
            limits.append(self._target.undo_limit)
        return max(0, min(limits))

    def _draft(self, state: _RoundState, history: History) -> None:
        limit, drafters = self._limit(), self._caches.drafters
        if not drafters:
            return
        try:
            method, draft = self._policy.draft(
                DraftRequest(drafters, history, limit, state.base, self._sampling)
            )
            if draft is not None:
                draft.check(limit, self._target.n_vocab)
        except DraftFaultError as fault:
            if self._policy.adapts:
                self._health.fault = fault
            else:
                self._caches.drop([d for d in drafters if d.name == fault.method], fault)
            return
        except EngineError as failure:
            # Which one failed is the policy's secret; a copier has no cache that could be broken.
            self._caches.drop([d for d in drafters if not d.free] or drafters, failure)
            return
        state.method, state.draft = method, draft
        state.drafter = next((d for d in drafters if d.name == method), None)

    def _verify(self, state: _RoundState, history: History) -> Any:
        drafted = state.draft.tokens if state.draft is not None else []
        tokens = [history.newest, *drafted]
        if drafted:
            self._target.guard()
        before = self._clock.now()
        rows = self._caches.decode(tokens, len(tokens))
        state.verify_s = self._clock.now() - before - self._target.waited_s
        state.rows = len(tokens)
        return rows

    def _judge(self, state: _RoundState, history: History, rows: Any) -> Iterator[Token | int]:
        """Commit tokens one by one; an end-of-generation id comes as a bare int, it has no text.

        The next row is looked at only when the previous draft was accepted and the consumer came back.
        """
        drafted = state.draft.tokens if state.draft is not None else []
        for i in range(len(drafted) + 1):
            proposed = drafted[i] if i < len(drafted) else None
            accepted, id = self._verdict(rows[i], proposed, i, state, len(history))
            if proposed is not None:
                state.tested += 1
                state.accepted += accepted
            self._sampler.accept(id)
            history.append(id)
            state.committed.append(id)
            if id in self._options.eog:
                yield id
            else:
                n = self._options.logprobs
                logprob, top = (None, ()) if n is None else log_probabilities(rows[i], id, n)
                yield Token(id, "", "content", accepted, state.method, self.stats.rounds, logprob, top)
            if not accepted:
                return

    def _verdict(
        self, row: Row, proposed: int | None, i: int, state: _RoundState, position: int
    ) -> tuple[bool, int]:
        """(was the draft accepted, token to emit) for one row."""
        if self._sampler.greedy:
            id = self._sampler.best(row)
            return id == proposed, id
        p = self._sampler.distribution(row)
        u = uniform(self._options.seed, position, _DRAW)
        if proposed is None:
            return False, p.draw(u)
        if state.draft is None or state.draft.q is None:
            return judge(p, proposed, None, u, u)
        q = state.draft.q[i]
        # One position a round, each in its turn, tells as much of the two rules as all of them.
        if self._rule is not None and i == self.stats.rounds % len(state.draft):
            self._rule.observe(p, q)
        return judge(p, proposed, q, u, uniform(self._options.seed, position, _RESIDUAL))

    def _draft_uniform(self) -> float:
        self._draws += 1
        return uniform(self._options.seed, self._draws, _DRAFT)

    def _ends(self, token: Token | int, state: _RoundState) -> DoneReason | None:
        """The ordered end rules of one committed token: end of generation, stop string, length."""
        if isinstance(token, int):
            return "stop"
        if self._control.stop_reason is not None:
            return self._control.stop_reason
        limit = self._options.max_tokens
        if limit is not None and self.stats.completion_tokens + len(state.committed) >= limit:
            return "length"
        return "cancelled" if self._control.cancelled else None

    def _finish(self, state: _RoundState, history: History, *, complete: bool) -> Round:
        """Bring caches, counters and the policy to the last committed token, however the round ended."""
        self._control.acknowledge()
        self._caches.commit(history, state.drafter, state.accepted)
        draft = state.draft
        drafted = len(draft) if draft is not None else 0
        draft_s = draft.draft_s + draft.catchup_s if draft is not None else 0.0
        state.ended = self._clock.busy()
        other_s = max(0.0, state.ended - state.started - draft_s - state.verify_s)
        tokens = [id for id in state.committed if id not in self._options.eog]
        event = Round(
            state.method, drafted, state.tested, state.accepted, state.rows, self._target.n_past,
            draft_s, state.verify_s, other_s, len(tokens), len(tokens) < len(state.committed),
            self._target.sequences,
        )  # fmt: skip
        if state.committed:
            self.stats.observe(event)
            self._notices += self._learn(state, draft, draft_s, other_s - state.rebuilt_s, complete)
            self._notices += self._alarm(state, history)
        return event

    def _learn(
        self, state: _RoundState, draft: Draft | None, draft_s: float, other_s: float, complete: bool
    ) -> list[Notice]:
        was_paused = self._policy.paused
        made = draft or Draft([], [])
        notices = self._policy.observe(
            Outcome(
                method=state.method,
                confidences=tuple(made.confidences),
                tested=state.tested,
                accepted=state.accepted,
                committed=tuple(state.committed),
                rows=state.rows,
                n_past=state.base,
                draft_s=draft_s,
                catchup_s=made.catchup_s,
                catchup_rows=made.catchup_rows,
                verify_s=state.verify_s,
                other_s=other_s,
                complete=complete,
            )
        )
        if self._policy.paused and not was_paused and self.stats.paused_at_token is None:
            self.stats.paused_at_token = self.stats.completion_tokens
        return notices

    def _alarm(self, state: _RoundState, history: History) -> list[Notice]:
        """What the round says of its drafter; a copier has nothing that could be broken."""
        if not state.tested or state.drafter is None or state.drafter.free:
            return []
        said = self._alarms.observe(
            state.method, state.tested, state.accepted, lambda: repeats_itself(history.ids)
        )
        if self._policy.adapts and any(alarm.broken for alarm in said):
            self._health.fault = DraftFaultError(state.method, NOTHING_ACCEPTED)
        return [Notice("alarm", alarm.text) for alarm in said]

    def _recover(self, fault: DraftFaultError, history: History) -> None:
        """Reset a spoiled drafter and rebuild it from the text so far; after a second fault do without it."""
        drafter = next((d for d in self._caches.drafters if d.name == fault.method), None)
        if drafter is None:
            return  # it does not draft here: a later reply's to answer
        self._health.fault = None
        notice = self._health.failed(fault)
        self._notices.append(notice)
        self._alarms.forget(fault.method)
        if notice.kind == "off":
            self.stats.given_up.append(fault.method)
            self._caches.drop([drafter], fault, tell=False)
            return
        self.stats.resets.append(fault.method)
        self._policy.restart(fault.method)
        self._caches.rebuild(drafter, history)

    def _emit(self, event: Event) -> Iterator[Event]:
        """Yield an event without counting the consumer's time."""
        self._clock.leave()
        yield event
        self._clock.back()
