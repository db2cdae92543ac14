"""DFlash, DSpark and DFlash2: all tokens of a draft in one decode of a block of masks.

The drafter's cache holds the target's features of committed positions. A draft is one decode of
[newest token, mask, mask, …] behind them, in which rows see each other; its cells are noise and dropped
afterwards. Tokens of a block are chosen together, so proposals are deterministic (match rule).

Protocol: llama.cpp `common/speculative.cpp` (draft-dflash, draft-dspark).
"""

from __future__ import annotations

import time
from typing import Protocol

from localspec.engine.drafters.base import Draft, DraftSampling, History, More
from localspec.engine.drafters.hidden import Cells, Features, Floats, HiddenDrafter


class BlockContext(Cells, Protocol):
    """The drafter's own context."""

    n_batch: int
    longest: int
    """Most tokens of one draft."""

    def inject(self, features: Floats, start: int) -> None:
        """Store `[n, width]` features of positions `start`…, n ≤ n_batch."""

    def block(self, newest: int, k: int, start: int) -> list[tuple[int, float]]:
        """(id, confidence) of `k` tokens behind `newest`, which is at position `start`."""


class DFlashDrafter(HiddenDrafter):
    """Drafts up to `context.longest` tokens at once."""

    samples = False

    def __init__(self, context: BlockContext, features: Features) -> None:
        super().__init__("dflash", context, features, offset=0, lag=0)
        self._context = context

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        draft = Draft([], [])
        k = min(k, self._context.longest)
        if k <= 0:
            return draft
        self._check_gap(history)
        started = time.perf_counter()
        draft.catchup_rows = len(self._store)
        self._read(len(self._store))
        caught_up = time.perf_counter()
        draft.catchup_s = caught_up - started
        for i, (id, confidence) in enumerate(self._context.block(history.newest, k, self._made)):
            if not more(i, confidence):
                break
            draft.tokens.append(id)
            draft.confidences.append(confidence)
        draft.draft_s = time.perf_counter() - caught_up
        return draft

    def _read(self, n: int) -> None:
        while n > 0:
            take = min(n, self._context.n_batch)
            self._context.inject(self._store.take(take), self._made)
            self._made += take
            n -= take
