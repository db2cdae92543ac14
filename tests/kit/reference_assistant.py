"""Independent numpy pass of the Gemma 4 assistant; keys and values come from the target's layer inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tests.kit.reference import Array, Weights, attend, rms_norm


def gelu(x: Array) -> Array:
    """The tanh approximation."""
    out: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return out


class Assistant:
    """An assistant's steps along a text.

    Args:
        inputs: of chosen target layers, `[n, len(layers)·width]`, as the engine's features are laid out.
    """

    def __init__(self, path: Path, target: Path, inputs: Callable[[Sequence[int]], Array]) -> None:
        self._weights, self._target = Weights(path), Weights(target)
        self._eps: float = self._weights.key("attention.layer_norm_rms_epsilon")
        self._heads: int = self._weights.key("attention.head_count")
        self._windowed: list[bool] = self._weights.key("attention.sliding_window_pattern")
        self._window: int = self._weights.key("attention.sliding_window")
        last = self._target.key("block_count") - 1
        # A windowed layer reads the target's last windowed layer, the other one its last layer.
        self._caches = [self._keys(last - 1 if windowed else last, inputs) for windowed in self._windowed]

    def _keys(self, layer: int, inputs: Callable[[Sequence[int]], Array]) -> tuple[Array, Array]:
        """(K, V) `[n, kv heads, head_dim]` of a target layer."""
        weights, block = self._target, f"blk.{layer}."
        heads = weights.key("attention.head_count_kv")
        x = rms_norm(inputs([layer]), weights[f"{block}attn_norm.weight"], self._eps)
        keys = (x @ weights[f"{block}attn_k.weight"].T).reshape(len(x), heads, -1)
        values = (x @ weights[f"{block}attn_v.weight"].T).reshape(len(x), heads, -1)
        keys = rms_norm(keys, weights[f"{block}attn_k_norm.weight"], self._eps)
        whole = layer == weights.key("block_count") - 1
        return self._rotate(keys, np.arange(len(x)), weights if whole else None), rms_norm(
            values, 1.0, self._eps
        )

    def _rotate(self, x: Array, positions: Array, factors: Weights | None) -> Array:
        """NEOX rotation; layers that see everything divide the angles by factors of the file."""
        half = x.shape[-1] // 2
        rates = 10_000.0 ** (-np.arange(half) / half)
        if factors is not None:
            rates = rates / factors["rope_freqs.weight"]
        angles = np.asarray(positions, np.float64)[:, None, None] * rates
        low, high = x[..., :half], x[..., half:]
        return np.concatenate(
            [low * np.cos(angles) - high * np.sin(angles), low * np.sin(angles) + high * np.cos(angles)],
            axis=-1,
        )

    def step(self, n: int, token: int, hidden: Array) -> tuple[Array, Array]:
        """Logits and next hidden state of a step at position n - 1, where n - 1 cells are filled."""
        weights = self._weights
        embedded = self._target["token_embd.weight"][token] * np.sqrt(len(hidden))
        x = weights["nextn.pre_projection.weight"] @ np.concatenate([embedded, hidden])
        for layer, windowed in enumerate(self._windowed):
            block = f"blk.{layer}."
            x = x + self._norm(block + "post_attention_norm", self._attention(layer, x, n, windowed))
            inner = self._norm(block + "ffn_norm", x)
            gate, up, down = (weights[f"{block}ffn_{part}.weight"] for part in ("gate", "up", "down"))
            x = x + self._norm(block + "post_ffw_norm", down @ (gelu(gate @ inner) * (up @ inner)))
            x = x * weights[block + "layer_output_scale.weight"]
        out = self._norm("output_norm", x)
        return weights["token_embd.weight"] @ out, weights["nextn.post_projection.weight"] @ out

    def _norm(self, name: str, x: Array) -> Array:
        return rms_norm(x, self._weights[f"{name}.weight"], self._eps)

    def _attention(self, layer: int, x: Array, n: int, windowed: bool) -> Array:
        weights, block, position = self._weights, f"blk.{layer}.", n - 1
        q = weights[f"{block}attn_q.weight"] @ self._norm(block + "attn_norm", x)
        q = rms_norm(q.reshape(1, self._heads, -1), weights[f"{block}attn_q_norm.weight"], self._eps)
        q = self._rotate(q, np.array([position]), None if windowed else weights)
        keys, values = (rows[:position] for rows in self._caches[layer])
        visible = np.ones((1, position), dtype=bool)
        if windowed:
            visible &= position - np.arange(position) < self._window
        # `attend` scales by 1/√d; this architecture does not scale.
        out: Array = (
            weights[f"{block}attn_output.weight"] @ attend(q * np.sqrt(q.shape[-1]), keys, values, visible)[0]
        )
        return out

    def draft(self, ids: Sequence[int], hidden: Array, k: int) -> list[int]:
        """The greedy draft behind `ids` `[n]`, from the hidden state of the last position but one."""
        token, state, out = ids[-1], hidden[-1], list[int]()
        for _ in range(k):
            logits, state = self.step(len(ids), token, state)
            token = int(logits.argmax())
            out.append(token)
        return out
