"""How a sequence drops its newest cells: three kinds of memory, three strategies.

- Attention caches forget any suffix.
- Recurrent states with native snapshots (`n_rs_seq`) can go back 1 … min(n_rs_seq, rows of the last
  decode - 1) rows, once per decode. Beyond that llama.cpp says yes and leaves garbage, so we refuse first.
- Other recurrent states are saved before a verification, restored, and the kept tokens decoded again.

Whatever is out of reach is replayed from the newest saved state, or from the start.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Protocol

from localspec.engine.backend.library import library
from localspec.errors import EngineError

if TYPE_CHECKING:
    from localspec.engine.backend.context import Context
    from localspec.engine.backend.sequence import Sequence

_PARTIAL_ONLY = 1
_KEPT_MARKS = 4
"""Reusable points kept per sequence; each costs one copy of the recurrent or window state."""


class Rewinder(Protocol):
    """Drops cells of one sequence; told about every decode."""

    limit: int | None

    def decoded(self, sequence: Sequence, rows: int) -> None: ...
    def guard(self, sequence: Sequence) -> None: ...
    def mark(self, sequence: Sequence) -> None: ...
    def reachable(self, sequence: Sequence, n: int) -> int: ...
    def truncate(self, sequence: Sequence, n: int) -> int: ...


def rewinder_for(context: Context) -> Rewinder:
    """The strategy for this context's kind of memory."""
    if context.model.recurrent:
        return StateRewinder(context.n_rs_seq)
    window = context.model.n_swa if context.model.n_swa and not context.settings.swa_full else 0
    return AttentionRewinder(window)


class AttentionRewinder:
    """Plain and sliding-window caches.

    A windowed cache recycles cells that left the window, so going back further than the window still
    covers means decoding again.
    """

    limit: int | None = None

    def __init__(self, window: int) -> None:
        self._window = window

    def decoded(self, sequence: Sequence, rows: int) -> None:
        pass

    def guard(self, sequence: Sequence) -> None:
        pass

    def mark(self, sequence: Sequence) -> None:
        pass

    def reachable(self, sequence: Sequence, n: int) -> int:
        if not self._window or n == 0:
            return n
        oldest = sequence.context.first_position(sequence.seq_id)
        return n if oldest <= max(0, n - self._window) else 0

    def truncate(self, sequence: Sequence, n: int) -> int:
        if self.reachable(sequence, n) < n:
            return _replay(sequence, 0, n)
        if not sequence.context.remove(sequence.seq_id, n):
            raise EngineError(f"llama.cpp refused to keep {n} of {sequence.n_past} cells")
        sequence.n_past = n
        return 0


class _Saved:
    """A copy of the part of a sequence's state that cannot forget a suffix."""

    def __init__(self, sequence: Sequence) -> None:
        with sequence.context.opened():
            api, handle = library(), sequence.context.handle
            size = api.llama_state_seq_get_size_ext(handle, sequence.seq_id, _PARTIAL_ONLY)
            self.n_past = sequence.n_past
            self.data = (ctypes.c_uint8 * size)()
            got = api.llama_state_seq_get_data_ext(handle, self.data, size, sequence.seq_id, _PARTIAL_ONLY)
        if got != size:
            raise EngineError(f"saved {got} of {size} bytes of the recurrent state")

    def restore(self, sequence: Sequence) -> None:
        size = len(self.data)
        with sequence.context.opened():
            api, handle = library(), sequence.context.handle
            got = api.llama_state_seq_set_data_ext(handle, self.data, size, sequence.seq_id, _PARTIAL_ONLY)
        if got != size or not sequence.context.remove(sequence.seq_id, self.n_past):
            raise EngineError("the recurrent state could not be restored")
        sequence.n_past = self.n_past


class StateRewinder:
    """Recurrent and hybrid memory: native snapshots where valid, else saved states and a replay."""

    def __init__(self, n_rs_seq: int) -> None:
        self.limit: int | None = n_rs_seq or None
        self._native = n_rs_seq
        self._undoable = 0
        self._round: _Saved | None = None
        self._marks: list[_Saved] = []
        self.bytes_saved = 0
        """State bytes copied since the start, for the cost model and statistics."""

    def decoded(self, sequence: Sequence, rows: int) -> None:
        self._undoable = min(self._native, rows - 1, sequence.context.n_ubatch - 1)

    def guard(self, sequence: Sequence) -> None:
        if not self._native:
            self._round = self._save(sequence)

    def mark(self, sequence: Sequence) -> None:
        self._marks = [saved for saved in self._marks if saved.n_past < sequence.n_past][1 - _KEPT_MARKS :]
        self._marks.append(self._save(sequence))

    def _save(self, sequence: Sequence) -> _Saved:
        saved = _Saved(sequence)
        self.bytes_saved += len(saved.data)
        return saved

    def reachable(self, sequence: Sequence, n: int) -> int:
        if n == sequence.n_past or 0 < sequence.n_past - n <= self._undoable:
            return n
        return max((saved.n_past for saved in self._saved(n)), default=0)

    def _saved(self, n: int) -> list[_Saved]:
        kept = [*self._marks, self._round] if self._round else list(self._marks)
        return [saved for saved in kept if saved.n_past <= n]

    def truncate(self, sequence: Sequence, n: int) -> int:
        if 0 < sequence.n_past - n <= self._undoable:
            if not sequence.context.remove(sequence.seq_id, n):
                raise EngineError(f"llama.cpp refused to keep {n} of {sequence.n_past} cells")
            sequence.n_past, self._undoable = n, 0
            self._forget(n)
            return 0
        best: Any = max(self._saved(n), key=lambda saved: saved.n_past, default=None)
        if best is None:
            self._forget(-1)
            return _replay(sequence, 0, n)
        best.restore(sequence)
        self._forget(best.n_past)
        self._undoable = 0
        return _replay_rest(sequence, n)

    def _forget(self, n: int) -> None:
        """Saved states beyond `n` describe cells that no longer exist."""
        self._marks = [saved for saved in self._marks if saved.n_past <= n]
        if self._round and self._round.n_past > n:
            self._round = None


def _replay(sequence: Sequence, start: int, n: int) -> int:
    """Empty the sequence and decode its first `n` tokens again."""
    if not sequence.context.remove(sequence.seq_id, start):
        raise EngineError("llama.cpp refused to empty a sequence")
    sequence.n_past = start
    return _replay_rest(sequence, n)


def _replay_rest(sequence: Sequence, n: int) -> int:
    count = n - sequence.n_past
    if count:
        sequence.prefill(sequence.ids[sequence.n_past : n].copy())
    return count
