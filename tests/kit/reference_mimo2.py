"""Independent numpy pass of the tiny MiMo-V2: windowed attention, and NextN layers that take turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.kit.reference import Array, Block, Weights, attend, rms_norm


@dataclass(frozen=True)
class FinalState:
    """A target's forward pass, as far as NextN layers read it."""

    hidden: Array
    """Before the final norm, `[n, width]`."""
    logits: Array


class Mimo2:
    """The trunk and its NextN layers."""

    def __init__(self, path: Path) -> None:
        self._weights = weights = Weights(path)
        self._nextn: int = weights.key("nextn_predict_layers")
        self._blocks = [Block(weights, layer) for layer in range(weights.key("block_count"))]
        self._windowed: list[bool] = weights.key("attention.sliding_window_pattern")
        self._window: int = weights.key("attention.sliding_window")

    def forward(self, ids: Sequence[int]) -> FinalState:
        x = self._weights["token_embd.weight"][list(ids)]
        for layer in range(len(self._blocks) - self._nextn):
            x = self._layer(layer, x)
        normed = rms_norm(x, self._weights["output_norm.weight"], self._blocks[0].eps)
        return FinalState(x, normed @ self._weights["output.weight"].T)

    def _layer(self, layer: int, x: Array) -> Array:
        block = self._blocks[layer]
        x = x + self._attention(layer, block.norm(x, "attn_norm"))
        return x + block.feed_forward(block.norm(x, "ffn_norm"))

    def _attention(self, layer: int, x: Array) -> Array:
        block, n = self._blocks[layer], len(x)
        fused = x @ block["attn_qkv"].T
        head = fused.shape[1] // (block.heads + 2 * block.kv_heads)
        parts = fused.reshape(n, -1, head)
        q, k, v = np.split(parts, [block.heads, block.heads + block.kv_heads], axis=1)
        positions = np.arange(n, dtype=np.float64)
        q, k = (block.rotate(rows, positions, adjacent=False) for rows in (q, k))
        distance = positions[:, None] - positions
        visible = distance >= 0
        if self._windowed[layer]:
            visible &= distance < self._window
        return attend(q, k, v, visible) @ block["attn_output"].T

    def nextn(self, index: int, tokens: Sequence[int], hidden: Array) -> tuple[Array, Array]:
        """NextN layer `index`: row p reads token p beside the hidden state of p - 1 → logits, hidden rows."""
        layer = len(self._blocks) - self._nextn + index
        block = self._blocks[layer]
        embedded = block.norm(self._weights["token_embd.weight"][list(tokens)], "nextn.enorm")
        joined = np.concatenate([embedded, block.norm(hidden, "nextn.hnorm")], axis=1)
        x = self._layer(layer, joined @ block["nextn.eh_proj"].T)
        return block.norm(x, "nextn.shared_head_norm") @ self._weights["output.weight"].T, x

    def seed(self, ids: Sequence[int], hidden: Array) -> tuple[Array, Array]:
        """Logits and hidden row of the first layer behind `ids`, given hidden states of all but the last."""
        logits, rows = self.nextn(0, ids, np.concatenate([np.zeros((1, hidden.shape[1])), hidden]))
        return logits[-1], rows[-1]

    def draft(self, ids: Sequence[int], hidden: Array, k: int) -> list[int]:
        """The greedy draft behind `ids`; token i is layer i's, which reads the earlier layers' states."""
        tokens, rows = list(ids), np.concatenate([np.zeros((1, hidden.shape[1])), hidden])
        for index in range(min(k, self._nextn)):
            logits, out = self.nextn(index, tokens, rows)
            tokens.append(int(logits[-1].argmax()))
            rows = np.concatenate([rows, out[-1:]])
        return tokens[len(ids) :]
