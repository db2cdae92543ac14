"""Contexts of learned heads: pairs for EAGLE-3 and MTP, injected features and blocks for DFlash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from localspec.engine.backend.context import Context, Ids
from localspec.engine.backend.features import (
    EmbeddingRunner,
    emit_nextn,
    nextn_rows,
    select_nextn_layer,
    set_causal,
)
from localspec.engine.leaders import best_guess
from localspec.errors import EngineError

Floats = NDArray[np.float32]


class HeadCells:
    """The cells of a head's context and their end.

    Args:
        close: frees the context and, where the head owns it, the model.
    """

    def __init__(self, context: Context, close: Callable[[], None]) -> None:
        self._context = context
        self._close: Callable[[], None] | None = close
        self._n = 0

    def truncate(self, n: int) -> int:
        """Keep `n` cells, or none where a windowed cache has already recycled what `n` needs.

        Raises:
            EngineError: llama.cpp refused.
        """
        if n >= self._n:
            return self._n
        context = self._context
        window = context.model.n_swa if not context.settings.swa_full else 0
        if window and context.first_position(0) > max(0, n - window + 1):
            n = 0
        if not context.remove(0, n):
            raise EngineError("the draft context refused to drop its newest cells")
        self._n = n
        return n

    def wipe(self) -> None:
        """Empty the context and overwrite its memory: a masked cell that holds NaN still spoils its row."""
        self._context.clear()
        self._n = 0

    def close(self) -> None:
        if self._close is not None:
            self._close()
            self._close = None


class PairCells(HeadCells):
    """Pairs (token, hidden row).

    Args:
        features: width of the target's features, encoded by the model's own encoder before they are
            paired (EAGLE-3); None = features are paired as they are (MTP).
        n_layers: MTP layers that take turns.
    """

    def __init__(
        self, context: Context, close: Callable[[], None], *, features: int | None, n_layers: int = 1
    ) -> None:
        super().__init__(context, close)
        self.n_layers = n_layers
        if n_layers > 1:
            select_nextn_layer(context, 0)
        self.n_batch = context.n_batch
        self.n_outputs = context.most_outputs
        self._width = context.model.n_embd_out if features is None else context.model.n_embd
        self._pairs = EmbeddingRunner(context, self._width, tokens=True)
        self._encoder = EmbeddingRunner(context, features, tokens=False) if features is not None else None
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
        self._n = start + len(tokens)  # also when the decode fails half-way: what may be there is dropped
        self._pairs.decode(rows, start, outputs=outputs, tokens=tokens)

    def use_layer(self, index: int) -> None:
        """Decode with this MTP layer from now on, of those that take turns."""
        select_nextn_layer(self._context, index)

    def last(self, n: int) -> tuple[Floats, Floats]:
        """(logits `[n_vocab]` view, hidden row `[n_embd]` copy) of the last of `n` output rows."""
        hidden = nextn_rows(self._context, n, self._width)[n - 1].copy()
        return self._context.logits(n)[n - 1], hidden


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """What a DFlash file says about its blocks."""

    mask: int
    """Token id of a place to be filled."""
    block_size: int
    """Rows of a block it was trained on."""
    causal: bool = False
    """Whether a row of the block sees only the rows before it."""
    from_anchor: bool = False
    """DSpark: the newest token's own row already holds a proposal."""
    confidence_head: bool = False
    """DSpark: an estimate per row beside the logits."""
    candidates: int = 0
    """DFlash2: candidates per row and transition scores instead of logits; 0 = logits."""


class BlockCells(HeadCells):
    """Features of committed positions, and behind them the block being drafted.

    Args:
        features: width of the target's features.
        n_vocab: the target's; other ids are never proposed.
    """

    def __init__(
        self, context: Context, close: Callable[[], None], form: BlockFormat, *, features: int, n_vocab: int
    ) -> None:
        super().__init__(context, close)
        self.n_batch = context.n_ubatch  # without a causal mask a batch must be one micro-batch
        self._form = form
        self._first = 0 if form.from_anchor else 1
        self.longest = min(form.block_size, context.n_ubatch) - self._first
        self._n_vocab = n_vocab
        self._features = EmbeddingRunner(context, features, tokens=False)
        if form.candidates or form.confidence_head:
            emit_nextn(context, masked=not form.candidates)
        set_causal(context, form.causal)

    def inject(self, features: Floats, start: int) -> None:
        """Store `[n, width]` features of positions `start`…, n ≤ n_batch."""
        self._n = start + len(features)
        self._features.decode(features, start, outputs=False)

    def block(self, newest: int, k: int, start: int) -> list[tuple[int, float]]:
        """(id, confidence) of `k` ≤ `longest` tokens behind `newest`, which is at position `start`."""
        form, first = self._form, self._first
        tokens = np.full(k + first, form.mask, np.int32)
        tokens[0] = newest
        n = len(tokens)
        self._n = start + n
        # All rows are outputs: the graph has no output selection.
        logits = self._context.run(tokens, start, 0, 0 if form.candidates else n)
        if form.candidates:
            return _walk(nextn_rows(self._context, n, self._context.model.n_embd)[1:], form.candidates)
        guesses = [best_guess(row) for row in logits[first:, : self._n_vocab]]
        if not form.confidence_head:
            return guesses
        chances = nextn_rows(self._context, n, self._context.model.n_embd)[first:, 0].tolist()
        return [(id, chance) for (id, _), chance in zip(guesses, chances, strict=True)]


def _walk(rows: Floats, k: int) -> list[tuple[int, float]]:
    """DFlash2: follow the best transition from row to row.

    A row holds `k` candidate ids and then `k · k` scores, those of the first predecessor first.
    """
    chosen, out = 0, []
    for row in rows:
        scores = row[k + chosen * k : k + (chosen + 1) * k]
        chosen = int(scores.argmax())
        out.append((int(row[chosen]), 1.0 / float(np.exp(scores - scores[chosen]).sum())))
    return out
