"""The contexts behind `FeatureDrafter`: a llama.cpp context of an EAGLE-3 head or of MTP layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from localspec.engine.backend.context import Context, Ids
from localspec.engine.backend.features import EmbeddingRunner, emit_nextn, nextn_rows
from localspec.errors import EngineError

Floats = NDArray[np.float32]


class PairCells:
    """Pairs (token, hidden row) in a draft context.

    Args:
        features: width of the target's features, encoded by the model's own encoder before they are
            paired (EAGLE-3); None = features are paired as they are (MTP).
    """

    def __init__(self, context: Context, close: Callable[[], None], *, features: int | None) -> None:
        self.n_batch = context.n_batch
        self._context = context
        self._close: Callable[[], None] | None = close
        self._width = context.model.n_embd_out if features is None else context.model.n_embd
        self._pairs = EmbeddingRunner(context, self._width, tokens=True)
        self._encoder = EmbeddingRunner(context, features, tokens=False) if features is not None else None
        self._n = 0
        emit_nextn(context, masked=True)

    def encode(self, features: Floats) -> Floats:
        """`[n, width]` features → `[n, n_embd]` rows for pairs, a copy."""
        if self._encoder is None:
            return features
        out = np.empty((len(features), self._width), np.float32)
        step = self._context.n_ubatch
        for start in range(0, len(features), step):
            rows = features[start : start + step]
            self._encoder.encode(rows, self._n)
            out[start : start + len(rows)] = nextn_rows(self._context, len(rows), self._width)
        return out

    def decode(self, tokens: Ids, rows: Floats, start: int, *, outputs: bool) -> None:
        self._pairs.decode(rows, start, outputs=outputs, tokens=tokens)
        self._n = start + len(tokens)

    def last(self, n: int) -> tuple[Floats, Floats]:
        """(logits `[n_vocab]` view, hidden row `[n_embd]` copy) of the last of `n` output rows."""
        hidden = nextn_rows(self._context, n, self._width)[n - 1].copy()
        return self._context.logits(n)[n - 1], hidden

    def truncate(self, n: int) -> None:
        if n < self._n and not self._context.remove(0, n):
            raise EngineError("the draft context refused to drop its newest cells")
        self._n = min(self._n, n)

    def close(self) -> None:
        if self._close is not None:
            self._close()
            self._close = None
