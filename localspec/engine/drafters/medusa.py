"""Medusa: heads that each predict one of the next tokens from the same hidden state of the target.

Cai et al. 2024. Head i is x + SiLU(Wx + b), repeated, then an unembedding; its proposal is the token i + 2
places behind the position whose hidden state it reads, so head 0 follows the target's own choice. Heads do
not see each other's choices, so proposals are deterministic (match rule).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from localspec.engine.drafters.base import Draft, DraftSampling, History, Ids, More, Tokens
from localspec.engine.drafters.hidden import Floats, LatestRows, OptionalFeatures
from localspec.engine.leaders import best_guess


class Unembedding(Protocol):
    """An output matrix on the engine."""

    def logits(self, rows: Floats) -> Floats:
        """`[n, width]` hidden states → `[n, n_vocab]` logits, valid until the next call."""


class Head:
    """One head's residual blocks and the index of its unembedding."""

    def __init__(self, blocks: list[tuple[Floats, Floats]], unembedding: int) -> None:
        self._blocks = blocks
        self.unembedding = unembedding

    @property
    def size_bytes(self) -> int:
        """What the residual blocks take in memory."""
        return sum(weight.nbytes + bias.nbytes for weight, bias in self._blocks)

    def transform(self, x: Floats) -> Floats:
        """`[width]` → `[width]`."""
        for weight, bias in self._blocks:
            y = weight @ x + bias
            x = x + y * (0.5 + 0.5 * np.tanh(0.5 * y))  # SiLU, in a form that cannot overflow
        return x


class MedusaDrafter:
    """Drafts all tokens with one pass of its heads.

    Args:
        heads: in order of distance.
        unembeddings: one per distinct output matrix.
    """

    name = "medusa"
    samples = False
    free = False

    def __init__(
        self,
        heads: list[Head],
        unembeddings: list[Unembedding],
        hidden: OptionalFeatures,
        n_vocab: int,
        close: Callable[[], None],
    ) -> None:
        self._heads = heads
        self._unembeddings = unembeddings
        self._latest = LatestRows(hidden)
        self._n_vocab = n_vocab
        self._close: Callable[[], None] | None = close

    def reusable(self, prompt: Ids, n: int) -> int:
        return n

    def rewind(self, n: int) -> None:
        self._latest.forget()

    def reset(self) -> None:
        self._latest.forget()

    def begin(self, history: History) -> None:
        pass

    def observe(self, tokens: Tokens, start: int) -> None:
        self._latest.observe(tokens, start)

    def commit(self, history: History, accepted: int) -> None:
        pass

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        """Empty until a verification returned the hidden state of the position before the newest token."""
        draft = Draft([], [])
        x = self._latest.before_newest(history)
        if x is None:
            return draft
        started = time.perf_counter()
        for i, (id, confidence) in enumerate(self._predict(x, min(k, len(self._heads)))):
            if not more(i, confidence):
                break
            draft.tokens.append(id)
            draft.confidences.append(confidence)
        draft.draft_s = time.perf_counter() - started
        return draft

    def _predict(self, x: Floats, k: int) -> list[tuple[int, float]]:
        """(id, probability) of the first `k` heads; heads that share an unembedding share its pass."""
        out: list[tuple[int, float]] = [(0, 0.0)] * k
        for index, unembedding in enumerate(self._unembeddings):
            mine = [i for i in range(k) if self._heads[i].unembedding == index]
            if not mine:
                continue
            rows = np.stack([self._heads[i].transform(x) for i in mine])
            for i, row in zip(mine, unembedding.logits(rows), strict=True):
                out[i] = best_guess(row[: self._n_vocab])
        return out

    def close(self) -> None:
        if self._close is not None:
            self._close()
            self._close = None
