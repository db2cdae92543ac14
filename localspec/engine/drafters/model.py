"""Drafts with a separate, smaller model of the same vocabulary.

The draft's cache holds a prefix of the committed text. What it lacks is read in the same decode that
produces the first proposal, so a full acceptance costs one extra row and no extra call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.engine.drafters.base import (
    Draft,
    DraftSampling,
    History,
    Ids,
    More,
    Tokens,
    choose,
    common_prefix,
)

Rows = NDArray[np.float32]


class DraftCache(Protocol):
    """The draft model's sequence; `backend.Sequence` is one."""

    n_past: int
    n_ctx: int
    n_batch: int
    n_vocab: int
    ids: Ids
    """`ids[:n_past]` are the tokens of the filled cells."""

    @property
    def rewinds_freely(self) -> bool: ...
    def decode(self, tokens: Tokens, outputs: int) -> Rows: ...
    def truncate(self, n: int) -> int: ...
    def wipe(self) -> None: ...
    def guard(self) -> None: ...
    def prefill(self, tokens: Ids) -> None: ...


class ModelDrafter:
    """Greedy or sampled drafts from a second model.

    A history longer than the draft's context is read through a window: when it overflows, the newest half
    stays, so that re-reading happens once per half window and not every round.

    Args:
        cache: the draft's sequence.
        n_vocab: the target's vocabulary size; ids beyond it are never proposed.
        masked: ids whose text differs between the two vocabularies; never proposed.
        close: frees what the cache lives in.
    """

    name = "draft"
    samples = True
    free = False

    def __init__(
        self,
        cache: DraftCache,
        n_vocab: int,
        masked: Ids | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._cache = cache
        self._n_vocab = min(n_vocab, cache.n_vocab)
        self._masked = masked if masked is not None and len(masked) else None
        self._all_usable = self._masked is None and self._n_vocab == cache.n_vocab
        self._start = 0
        self._drafted_at: int | None = None
        self._close = close
        self.window_reads = 0
        """How often the window was re-read because the history outgrew the draft's context."""

    def reusable(self, prompt: Ids, n: int) -> int:
        return n

    def rewind(self, n: int) -> None:
        pass

    def reset(self) -> None:
        self._restart(0)
        self._drafted_at = None
        self._cache.wipe()

    def begin(self, history: History) -> None:
        """Keep the cells that this prompt shares with what is cached."""
        self._drafted_at = None
        if self._start:  # a window shares nothing with a new prompt
            self._restart(0)
            return
        self._cache.truncate(common_prefix(self._cache.ids[: self._cache.n_past], history.ids[:-1]))

    def observe(self, tokens: Tokens, start: int) -> None:
        pass

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        draft = Draft([], [], [] if sampling else None)
        k = min(k, self._cache.n_ctx // 4)
        started = time.perf_counter()
        row = self._catch_up(history, k, draft)
        caught_up = time.perf_counter()
        draft.catchup_s = caught_up - started
        self._drafted_at = len(history)
        while True:
            id = choose(draft, row, more, sampling)
            if id is None or len(draft.tokens) >= k:
                break
            row = self._usable(self._cache.decode([id], 1)[0])
        draft.draft_s = time.perf_counter() - caught_up
        return draft

    def _catch_up(self, history: History, k: int, draft: Draft) -> Rows:
        """Read what was committed since the last draft; returns the row after the newest token."""
        length = len(history)
        if length - self._start + k > self._cache.n_ctx:
            self._restart(length - self._cache.n_ctx // 2)
            self.window_reads += 1
        # Nothing new since the last draft: the newest token is read again for its row.
        self._cache.truncate(min(self._cache.n_past, length - self._start - 1))
        behind = history.ids[self._start + self._cache.n_past :].copy()
        draft.catchup_rows = len(behind)
        head = (len(behind) - 1) // self._cache.n_batch * self._cache.n_batch
        self._cache.prefill(behind[:head])
        row = self._usable(self._cache.decode(behind[head:], 1)[0])
        if not self._cache.rewinds_freely:
            self._cache.guard()
        return row

    def _restart(self, start: int) -> None:
        self._cache.truncate(0)
        self._start = start

    def _usable(self, row: Rows) -> Rows:
        if self._all_usable:
            return row
        row = row[: self._n_vocab]
        if self._masked is not None:
            row[self._masked] = -np.inf
        return row

    def commit(self, history: History, accepted: int) -> None:
        """Drop the cells of tokens that were not committed.

        The last drafted token was never read, and a memory that cannot drop single cells goes back to the
        state saved before drafting; both are made up for by the next catch-up.
        """
        if self._drafted_at is None:
            return
        keep = self._drafted_at - self._start + (accepted if self._cache.rewinds_freely else 0)
        self._cache.truncate(min(keep, self._cache.n_past))
        self._drafted_at = None

    def close(self) -> None:
        if self._close is not None:
            self._close()
            self._close = None
