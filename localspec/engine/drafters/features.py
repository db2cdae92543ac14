"""Drafters that continue the target's hidden states token by token: EAGLE-3 and MTP, alike but for an offset.

Both keep a cache of pairs (token, feature of the position before it). EAGLE-3 stores the pair of token
P + 1 at position P, MTP at position P + 1 with a zero feature for the very first token. A pair needs the
token behind a feature, so the newest one is only known when the next token is: it is the row that seeds
the draft.

Protocols: llama.cpp `common/speculative.cpp`; Li et al. 2025 (EAGLE-3); DeepSeek-AI 2024 (MTP).
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from localspec.engine.drafters.base import Draft, DraftSampling, History, Ids, More, choose
from localspec.engine.drafters.hidden import Cells, Features, Floats, HiddenDrafter


class PairContext(Cells, Protocol):
    """The drafter's own context."""

    n_batch: int
    n_outputs: int
    """Most rows of a decode with outputs."""

    def encode(self, features: Floats) -> Floats:
        """Features `[n, width]` → what a pair carries `[n, n_embd]`."""

    def decode(self, tokens: Ids, rows: Floats, start: int, *, outputs: bool) -> None: ...

    def last(self, n: int) -> tuple[Floats, Floats]:
        """(logits row, hidden row) of the last of `n` output rows."""


class FeatureDrafter(HiddenDrafter):
    """EAGLE-3 (`offset` 0) or MTP (`offset` 1).

    Args:
        context: holds the pairs.
        features: of the target; read after each of its decodes.
        n_vocab: the target's; other ids are never proposed.
    """

    samples = True

    def __init__(
        self, name: str, context: PairContext, features: Features, n_vocab: int, *, offset: int
    ) -> None:
        super().__init__(name, context, features, offset=offset, lag=1 - offset)
        self._context = context
        self._n_vocab = n_vocab

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        draft = Draft([], [], [] if sampling else None)
        self._check_gap(history)
        if not len(self._store) or k <= 0:
            return draft
        started = time.perf_counter()
        draft.catchup_rows = len(self._store)
        logits, hidden = self._seed()
        caught_up = time.perf_counter()
        draft.catchup_s = caught_up - started
        self._steps(draft, k, more, sampling, logits, hidden)
        draft.draft_s = time.perf_counter() - caught_up
        return draft

    def _steps(
        self, draft: Draft, k: int, more: More, sampling: DraftSampling | None, row: Floats, hidden: Floats
    ) -> None:
        position = self._made
        while True:
            id = choose(draft, row[: self._n_vocab], more, sampling)
            if id is None or len(draft.tokens) >= k:
                return
            self._context.decode(np.array([id], np.int32), hidden[None, :], position, outputs=True)
            row, hidden = self._context.last(1)
            position += 1

    def _seed(self) -> tuple[Floats, Floats]:
        """Read all outstanding pairs; the last one gives the first proposal's logits and hidden row."""
        self._read(max(0, len(self._store) - self._context.n_outputs + 1))
        tokens, rows = self._next_pairs(len(self._store))
        # All rows are outputs: with only the last one flagged, the graph would return row 0.
        self._context.decode(tokens, rows, self._made, outputs=True)
        self._made += len(tokens)
        return self._context.last(len(tokens))

    def _read(self, n: int) -> None:
        while n > 0:
            take = min(n, self._context.n_batch - 1)
            tokens, rows = self._next_pairs(take)
            self._context.decode(tokens, rows, self._made, outputs=False)
            self._made += len(tokens)
            n -= take

    def _next_pairs(self, n: int) -> tuple[Ids, Floats]:
        first = self._store.start
        rows = self._context.encode(self._store.take(n))
        if self._offset and first == 0:
            rows = np.concatenate([np.zeros((1, rows.shape[1]), np.float32), rows])
            return self._tokens[: n + 1].copy(), rows
        return self._tokens[first + 1 : first + 1 + n].copy(), rows
