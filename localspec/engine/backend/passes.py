"""Continuous batching: the decodes of replies that run at once become one pass over the context.

Every reply runs its own loop in a thread of its own. What it would decode is handed to one native thread,
which waits until every running reply waits too, decodes all their rows together and gives each its logits:

    reply A   … judge ─ draft ─┐            ┌─ judge …
    reply B     … judge ───────┤  one pass  ├─ judge …
    reply C    read 64 tokens ─┘            └─ read 64 …

A reply that begins joins the next pass, one that ends is missing from it; nobody waits much longer for
another reply than a pass takes. A draft model's context is shared in the same way, and its passes go first,
since they lead to rows of the target. Rows of different replies meet in the matrix products only: each
belongs to a sequence of its own, with positions and cells of its own.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from localspec.engine.backend.batch import Tokens
from localspec.engine.backend.cancel import CancelFlag
from localspec.engine.backend.context import Context, DecodeAborted, Part, Rows
from localspec.engine.backend.rewind import rewinder_for
from localspec.engine.backend.sequence import Sequence
from localspec.errors import EngineError

T = TypeVar("T")
SHARED_CHUNK = 64
"""Prompt tokens of one reply per pass while others run: what a long prompt may delay them by."""
LEAST_PATIENCE_S = 0.005
"""How long others are awaited where passes are shorter: Python may take as long to change threads."""


ReadPass = Callable[[int, int, int], None]
"""(rows of the pass, first row of the sequence, its rows), called before the next pass."""


@dataclass(frozen=True, slots=True)
class PassFacts:
    """What the pass of a sequence's last decode was."""

    sequences: int = 1
    rows: int = 0
    """Rows of all sequences."""
    outputs: int = 0
    """Those whose logits were wanted."""
    seconds: float = 0.0


@dataclass(eq=False, slots=True)
class _Ask:
    """Rows that a reply wants decoded; its thread waits for `done`."""

    context: Context
    part: Part
    read: ReadPass | None
    """Reads what only this pass leaves behind, hidden states."""
    at: float
    done: threading.Event = field(default_factory=threading.Event)
    logits: Rows | None = None
    error: Exception | None = None
    facts: PassFacts = PassFacts()


@dataclass(eq=False, slots=True)
class _Job:
    """Any other native call."""

    work: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None


class Passes:
    """The native thread of a loaded pair and those who wait for it.

    One thread does all heavy native work, from the load on, because an OpenMP build keeps a pool of worker
    threads per calling thread. Light calls on caches are made by the replies themselves, under the
    context's lock.

    Args:
        cancel: the flag of the contexts, which stops a decode.
    """

    def __init__(self, cancel: CancelFlag | None = None) -> None:
        self._changed = threading.Condition()
        self._waiting: list[_Ask] = []
        self._jobs: deque[_Job] = deque()
        self._running: set[int] = set()
        """Sequences whose replies run."""
        self._missed: set[int] = set()
        """Those of them that were too late for a pass; nobody waits for them until they ask again."""
        self._stopped: set[int] = set()
        """Those that were interrupted; nothing of them is decoded until they resume."""
        self._decoding: list[_Ask] = []
        self._cancel = cancel
        self._patience_s = LEAST_PATIENCE_S
        self._first: Context | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="native", daemon=True)
        self._thread.start()

    # -- for replies ------------------------------------------------------------------------------

    def others(self, seq_id: int) -> int:
        """Replies on other sequences that have asked for a pass and not left."""
        return len(self._running - {seq_id})

    def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work(*arguments)` in the native thread, between passes; raises what it raises."""
        if threading.current_thread() is self._thread:
            return work(*arguments)
        job = _Job(lambda: work(*arguments))
        with self._changed:
            self._check_open()
            self._jobs.append(job)
            self._changed.notify()
        job.done.wait()
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result

    def decode(self, context: Context, part: Part, read: ReadPass | None) -> tuple[Rows, PassFacts]:
        """Decode the rows of one sequence, together with what others ask for.

        Returns:
            Logits `[part.outputs, n_vocab]`, a copy, and what the pass was.

        Raises:
            DecodeAborted: the reply was interrupted.
            EngineError: llama.cpp refused these rows.
        """
        ask = _Ask(context, part, read, time.perf_counter())
        if threading.current_thread() is self._thread:
            self._together([ask])
        else:
            with self._changed:
                self._check_open()
                if part.seq_id in self._stopped:
                    raise DecodeAborted
                self._waiting.append(ask)
                self._running.add(part.seq_id)
                self._missed.discard(part.seq_id)
                self._changed.notify()
            ask.done.wait()
        if ask.error is not None:
            raise ask.error
        assert ask.logits is not None
        return ask.logits, ask.facts

    def interrupt(self, seq_id: int) -> None:
        """Decode nothing of this sequence until it resumes; from any thread.

        A pass that runs now is stopped if all its rows are this sequence's.
        """
        with self._changed:
            self._stopped.add(seq_id)
            for ask in [ask for ask in self._waiting if ask.part.seq_id == seq_id]:
                self._waiting.remove(ask)
                ask.error = DecodeAborted()
                ask.done.set()
            if self._cancel is not None and [ask.part.seq_id for ask in self._decoding] == [seq_id]:
                self._cancel.set()

    def resume(self, seq_id: int) -> None:
        """The reply saw that it was interrupted, and puts its caches in order."""
        with self._changed:
            self._stopped.discard(seq_id)

    def leave(self, seq_id: int) -> None:
        """The reply on this sequence is over."""
        with self._changed:
            self._stopped.discard(seq_id)
            self._running.discard(seq_id)
            self._missed.discard(seq_id)
            self._changed.notify()

    def prefer(self, context: Context) -> None:
        """The target, whose passes wait for those of other contexts."""
        self._first = context

    def close(self) -> None:
        """End the thread once it is idle; who still waits gets an error. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the session is closed")

    # -- the native thread ------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while (due := self._due()) is None:
                    if self._closed:
                        self._refuse_rest()
                        return
                    self._changed.wait(self._until_late())
            if isinstance(due, _Job):
                try:
                    due.result = due.work()
                except BaseException as error:  # noqa: BLE001 (raised again where it was asked for)
                    due.error = error
                due.done.set()
            else:
                self._together(due)
                self._decoded()

    def _decoded(self) -> None:
        with self._changed:
            self._decoding = []
            if self._cancel is not None:
                self._cancel.clear()

    def _refuse_rest(self) -> None:
        for ask in self._waiting:
            ask.error = EngineError("the session is closed")
            ask.done.set()
        self._waiting.clear()

    def _due(self) -> _Job | list[_Ask] | None:
        """What to do now; None while there is nothing, or somebody is about to join."""
        if self._jobs:
            return self._jobs.popleft()
        if not self._waiting:
            return None
        here = {ask.part.seq_id for ask in self._waiting}
        late = self._running - self._missed - here
        if late and time.perf_counter() - self._waiting[0].at < self._patience_s:
            return None
        self._missed |= late
        return self._group()

    def _until_late(self) -> float | None:
        if not self._waiting:
            return None
        return max(0.0, self._waiting[0].at + self._patience_s - time.perf_counter())

    def _group(self) -> list[_Ask]:
        """Those of the next pass, in the order in which they came; who does not fit stays in front."""
        lead = next((ask for ask in self._waiting if ask.context is not self._first), self._waiting[0])
        group = [lead]
        for ask in self._waiting:
            if ask is not lead and ask.context is lead.context and _fit_one_pass([*group, ask]):
                group.append(ask)
        self._waiting = [ask for ask in self._waiting if ask not in group]
        self._decoding = group
        return group

    def _together(self, group: list[_Ask]) -> None:
        """One pass; where it fails as a whole, each alone, so that only who is at fault gets the error."""
        try:
            self._pass(group)
        except Exception as error:  # noqa: BLE001 (raised again in the reply's thread)
            if len(group) > 1:
                for ask in group:
                    self._alone(ask)
                return
            group[0].error = error
        for ask in group:
            ask.done.set()

    def _alone(self, ask: _Ask) -> None:
        """Without what the pass that failed may have stored."""
        try:
            ask.context.remove(ask.part.seq_id, ask.part.start)
        except EngineError as error:
            ask.error = error
            ask.done.set()
        else:
            self._together([ask])

    def _pass(self, group: list[_Ask]) -> None:
        context, started = group[0].context, time.perf_counter()
        with context.lock:
            rows = context.run_parts([ask.part for ask in group])
            at = 0
            for ask in group:
                # A copy: llama.cpp's buffer belongs to the next pass, which does not wait for the reply.
                ask.logits = rows[at : at + ask.part.outputs].copy()
                at += ask.part.outputs
            first, total = 0, sum(len(ask.part.tokens) for ask in group)
            for ask in group:
                if ask.read is not None:
                    ask.read(total, first, len(ask.part.tokens))
                first += len(ask.part.tokens)
        seconds = time.perf_counter() - started
        if context is self._first:
            self._patience_s = max(LEAST_PATIENCE_S, seconds)
        facts = PassFacts(len(group), total, at, seconds)
        for ask in group:
            ask.facts = facts


def _fit_one_pass(group: list[_Ask]) -> bool:
    """Whether these rows may be decoded together.

    Hidden states come in the order in which rows are computed: that of the batch only where llama.cpp does
    not part it.
    """
    context, rows = group[0].context, sum(len(ask.part.tokens) for ask in group)
    if any(ask.read is not None for ask in group) and not (context.in_order and rows <= context.n_ubatch):
        return False
    return rows <= context.n_batch and sum(ask.part.outputs for ask in group) <= context.most_outputs


class SharedSequence(Sequence):
    """A sequence of a context that others decode in, too."""

    def __init__(self, passes: Passes, context: Context, seq_id: int, n_ctx: int) -> None:
        super().__init__(context, seq_id, n_ctx, rewinder_for(context))
        self._passes = passes
        self.facts = PassFacts()
        self.other_rows = 0
        """Output rows that other sequences had in the pass of the newest decode."""
        self.read: ReadPass | None = None
        """Set while a drafter reads hidden states of this sequence."""

    @property
    def prefill_chunk(self) -> int:
        most = super().prefill_chunk
        return min(SHARED_CHUNK, most) if self._passes.others(self.seq_id) else most

    @property
    def most_rows(self) -> int:
        """A fair share of the output rows."""
        return max(1, min(self.n_batch, self.context.most_outputs // (1 + self._passes.others(self.seq_id))))

    @property
    def sequences(self) -> int:
        return self.facts.sequences

    def interrupt(self) -> None:
        """Decode nothing more until `resume`; see `Passes.interrupt`."""
        self._passes.interrupt(self.seq_id)

    def resume(self) -> None:
        """The reply saw that it was interrupted."""
        self._passes.resume(self.seq_id)

    def leave(self) -> None:
        """The reply on this sequence is over."""
        self.read = None
        self._passes.leave(self.seq_id)

    def decode(self, tokens: Tokens, outputs: int) -> Rows:
        """As of `Sequence`; many tokens without outputs are read in several passes.

        Not while hidden states are read: their reader is told of one decode.
        """
        while self.read is None and len(tokens) - outputs > (chunk := self.prefill_chunk):
            super().decode(tokens[:chunk], 0)
            tokens = tokens[chunk:]
        return super().decode(tokens, outputs)

    def _run(self, tokens: list[int], start: int, outputs: int) -> Rows:
        asked = time.perf_counter()
        part = Part(np.array(tokens, np.int32), start, self.seq_id, outputs)
        try:
            rows, self.facts = self._passes.decode(self.context, part, self.read)
        except EngineError:
            self.context.remove(self.seq_id, start)  # what part of the rows may have been stored
            raise
        self.other_rows = self.facts.outputs - outputs
        self.waited_s = time.perf_counter() - asked - self.facts.seconds
        return rows
