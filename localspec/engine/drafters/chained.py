"""MTP with several layers, each trained for its own distance: layer i drafts token i + 1.

Every layer has a cache of its own under common positions. Each reads the committed pairs, and the layer
whose turn it is reads the tokens drafted so far behind them, in one decode per layer and round.

Protocol: llama.cpp `common/speculative.cpp` (draft-mtp with chained heads).
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from localspec.engine.drafters.base import Draft, DraftSampling, History, More, choose
from localspec.engine.drafters.features import FeatureDrafter, PairContext
from localspec.engine.drafters.hidden import Features
from localspec.errors import EngineError


class LayeredContext(PairContext, Protocol):
    """A context with several MTP layers."""

    n_layers: int

    def use_layer(self, index: int) -> None:
        """Decode with this layer from now on."""


class ChainedDrafter(FeatureDrafter):
    """Drafts at most as many tokens as there are layers."""

    def __init__(self, name: str, context: LayeredContext, features: Features, n_vocab: int) -> None:
        super().__init__(name, context, features, n_vocab, offset=1)
        self._layers = context

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        draft = Draft([], [], [] if sampling else None)
        self._check_gap(history)
        if not len(self._store) or k <= 0:
            return draft
        started = time.perf_counter()
        draft.catchup_rows = len(self._store)
        # Beside what is drafted here, and a text's first pair, which has no feature.
        room = self._context.n_outputs - min(k, self._layers.n_layers)
        self._read(max(0, len(self._store) - room))
        committed, features = self._next_pairs(len(self._store))
        tokens, rows = committed, features
        for layer in range(self._layers.n_layers):
            self._turn_to(layer)
            if layer < k and len(draft) == layer:
                self._context.decode(tokens, rows, self._made, outputs=True)
                row, hidden = self._context.last(len(tokens))
                id = choose(draft, row[: self._n_vocab], more, sampling)
                if id is not None:
                    tokens = np.append(tokens, np.int32(id))
                    rows = np.concatenate([rows, hidden[None, :]])
            else:
                self._context.decode(committed, features, self._made, outputs=False)
        self._made += len(committed)
        draft.draft_s = time.perf_counter() - started
        return draft

    def _turn_to(self, layer: int) -> None:
        """Give the positions behind the committed cells to another layer."""
        if self._context.truncate(self._made) < self._made:
            raise EngineError("an MTP layer's window cannot go back to the committed text")
        self._layers.use_layer(layer)

    def _read(self, n: int) -> None:
        while n > 0:
            take = min(n, self._context.n_batch - 1)
            tokens, rows = self._next_pairs(take)
            for layer in range(self._layers.n_layers):
                self._turn_to(layer)
                self._context.decode(tokens, rows, self._made, outputs=False)
            self._made += len(tokens)
            n -= take
