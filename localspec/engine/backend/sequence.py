"""One conversation's cells in a context: an append-only cache with a rollback.

Token ids of every cell are remembered, so that a sequence that cannot drop its last cells can be replayed.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from localspec.engine.backend.batch import Tokens
from localspec.engine.backend.context import Context, DecodeAborted, Ids, Rows
from localspec.errors import EngineError

PREFILL_CHUNK = 512


class Sequence:
    """`n_past` cells are filled; `ids[:n_past]` are their tokens."""

    def __init__(self, context: Context, seq_id: int, n_ctx: int, rewinder: Any) -> None:
        self.context = context
        self.seq_id = seq_id
        self.n_ctx = n_ctx
        self.n_vocab = context.n_vocab
        self.n_batch = context.n_batch
        self.n_past = 0
        self._cells: Any = (ctypes.c_int32 * (context.n_cells + 1))()
        self.ids: Ids = np.frombuffer(memoryview(self._cells), np.int32)
        self.last_rows = 0
        """Rows of the newest decode, for rollbacks that are bounded by it."""
        self.waited_s = 0.0
        """Seconds of the newest decode in which other replies were awaited."""
        self._rewinder = rewinder

    def decode(self, tokens: Tokens, outputs: int) -> Rows:
        """Append `tokens` and return logits `[outputs, n_vocab]` of the last ones; see `Context.run`."""
        ids = tokens if isinstance(tokens, list) else tokens.tolist()
        n, start = len(ids), self.n_past
        if start + n > self.n_ctx:
            raise EngineError(f"{start + n} tokens in a context of {self.n_ctx}")
        self._cells[start : start + n] = ids
        try:
            rows = self._run(ids, start, outputs)
        except DecodeAborted:
            self.n_past = self.context.last_position(self.seq_id) + 1
            self._rewinder.decoded(self, max(self.n_past - start, 0))
            raise
        self.n_past = start + n
        self.last_rows = n
        self._rewinder.decoded(self, n)
        return rows

    def _run(self, tokens: list[int], start: int, outputs: int) -> Rows:
        return self.context.run(tokens, start, self.seq_id, outputs)

    @property
    def sequences(self) -> int:
        """Sequences of the pass that did the newest decode."""
        return 1

    @property
    def prefill_chunk(self) -> int:
        """Prompt tokens per decode: the unit of progress and, on a GPU, of cancellation."""
        return min(PREFILL_CHUNK, self.n_batch)

    @property
    def most_rows(self) -> int:
        """Rows that a verification may have now."""
        return self.n_batch

    def wipe(self) -> None:
        """Forget all cells and, where no other sequence has any, overwrite their memory.

        A masked cell that holds NaN still spoils the rows that attend past it.
        """
        self.truncate(0)
        if self.context.settings.n_seq_max == 1:
            self.context.clear()

    def prefill(self, tokens: Ids) -> None:
        """Append any number of tokens in chunks, without logits."""
        for start in range(0, len(tokens), self.n_batch):
            self.decode(tokens[start : start + self.n_batch], 0)

    @property
    def rewinds_freely(self) -> bool:
        """Whether any number of newest cells can be dropped without a saved state."""
        return not self.context.model.recurrent

    @property
    def undo_limit(self) -> int | None:
        """Most rows of one decode that can be dropped again, or None for any number."""
        limit: int | None = self._rewinder.limit
        return limit

    def guard(self) -> None:
        """Before a verification: make sure its rows can be dropped (a checkpoint where needed)."""
        self._rewinder.guard(self)

    def mark_reusable(self) -> None:
        """Remember this point as one a later turn may return to."""
        self._rewinder.mark(self)

    def reusable_prefix(self, n: int) -> int:
        """The longest prefix of at most `n` cells that `truncate` reaches without decoding again."""
        return int(self._rewinder.reachable(self, n))

    def truncate(self, n: int) -> int:
        """Keep the first `n` cells; returns the number of tokens that had to be decoded again.

        Raises:
            EngineError: the cells could not be dropped.
        """
        if not 0 <= n <= self.n_past:
            raise EngineError(f"cannot keep {n} of {self.n_past} cells")
        if n == self.n_past:
            return 0
        return int(self._rewinder.truncate(self, n))
