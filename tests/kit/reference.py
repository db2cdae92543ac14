"""Independent numpy forward passes of the tiny models: what llama.cpp and the drafters should compute.

Written from the formulas, in float64, sharing no code with the engine. Sequences are evaluated whole from
position 0, so there is no cache that could be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Weights:
    """Tensors and keys of a GGUF, dequantised."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._fields = reader.fields
        self.arch: str = self._fields["general.architecture"].contents()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Array:
        """A tensor, outputs × inputs."""
        tensor = self._tensors[name]
        if tensor.tensor_type == gguf.GGMLQuantizationType.I64:
            return np.asarray(tensor.data)
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        return np.asarray(data.reshape([int(n) for n in reversed(tensor.shape)]), np.float64)

    def get(self, name: str, default: Array) -> Array:
        """The tensor, or `default` when the file lacks it."""
        known = name in self._tensors
        return self[name] if known else default

    def key(self, name: str, default: Any = None) -> Any:
        """An architecture key."""
        field = self._fields.get(f"{self.arch}.{name}")
        return default if field is None else field.contents()

    def tokenizer_key(self, name: str) -> Any:
        return self._fields[f"tokenizer.ggml.{name}"].contents()


def rms_norm(x: Array, weight: Array | float, eps: float) -> Array:
    out: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight
    return out


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def sigmoid(x: Array) -> Array:
    out: Array = 1 / (1 + np.exp(-x))
    return out


def rotate(x: Array, positions: Array, base: float, *, adjacent: bool, width: int) -> Array:
    """Rotary embedding of `x` `[n, heads, head_dim]` over its first `width` dimensions.

    `adjacent` pairs dimensions (2i, 2i+1) as llama's NORM type, else (i, i + width/2) as NEOX.
    """
    angles = positions[:, None] * base ** (-np.arange(0, width, 2) / width)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    out = x.copy()
    even, odd = (
        (slice(0, width, 2), slice(1, width, 2))
        if adjacent
        else (slice(0, width // 2), slice(width // 2, width))
    )
    out[..., even] = x[..., even] * cos - x[..., odd] * sin
    out[..., odd] = x[..., even] * sin + x[..., odd] * cos
    return out


def attend(q: Array, k: Array, v: Array, visible: NDArray[np.bool_]) -> Array:
    """Grouped-query attention of `[n, heads, d]` over `[m, kv_heads, d]` where `visible[n, m]`.

    Returns `[n, heads·d]`.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    scores = np.einsum("nhd,mhd->hnm", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed: Array = np.einsum("hnm,mhd->nhd", weights, v)
    return mixed.reshape(len(q), -1)


class Block:
    """One attention layer with its feed-forward network, by tensor names `blk.N.*`."""

    def __init__(self, weights: Weights, layer: int) -> None:
        self._weights, self._prefix = weights, f"blk.{layer}."
        self.heads: int = weights.key("attention.head_count")
        self.kv_heads: int = weights.key("attention.head_count_kv")
        self.eps: float = weights.key("attention.layer_norm_rms_epsilon")
        self._base: float = weights.key("rope.freq_base")
        self._width: int = weights.key("rope.dimension_count")

    def __getitem__(self, name: str) -> Array:
        return self._weights[self._prefix + name + ".weight"]

    def tensor(self, name: str) -> Array:
        """A tensor of the block that is no `.weight`."""
        return self._weights[self._prefix + name]

    def norm(self, x: Array, name: str) -> Array:
        return rms_norm(x, self[name], self.eps)

    def split(self, x: Array, name: str, heads: int) -> Array:
        """Project and cut into heads; q and k norms are applied where the file has them."""
        out = (x @ self[name].T).reshape(len(x), heads, -1)
        norm = f"{name}_norm"
        return rms_norm(out, self[norm], self.eps) if f"{self._prefix}{norm}.weight" in self._weights else out

    def rotate(self, x: Array, positions: Array, *, adjacent: bool) -> Array:
        return rotate(x, positions, self._base, adjacent=adjacent, width=self._width)

    def feed_forward(self, x: Array) -> Array:
        return (silu(x @ self["ffn_gate"].T) * (x @ self["ffn_up"].T)) @ self["ffn_down"].T

    def causal_attention(self, x: Array, *, adjacent: bool = True) -> Array:
        """Self-attention over a whole sequence from position 0, output projection included."""
        positions = np.arange(len(x), dtype=np.float64)
        q = self.rotate(self.split(x, "attn_q", self.heads), positions, adjacent=adjacent)
        k = self.rotate(self.split(x, "attn_k", self.kv_heads), positions, adjacent=adjacent)
        v = self.split(x, "attn_v", self.kv_heads)
        return attend(q, k, v, np.tri(len(x), dtype=bool)) @ self["attn_output"].T


@dataclass(frozen=True)
class Trace:
    """A target's forward pass: everything a learned drafter may read."""

    layer_inputs: list[Array]
    """Input of each layer, `[n, width]`."""
    hidden: Array
    """After the final norm, `[n, width]`."""
    logits: Array
    """`[n, n_vocab]`."""

    def features(self, layers: Sequence[int]) -> Array:
        """Layer inputs side by side, `[n, len(layers)·width]`."""
        return np.concatenate([self.layer_inputs[layer] for layer in layers], axis=1)


class Llama:
    """Dense llama."""

    _block = Block

    def __init__(self, path: Path) -> None:
        self._weights = weights = Weights(path)
        self.blocks = [self._block(weights, layer) for layer in range(weights.key("block_count"))]
        self.embeddings = weights["token_embd.weight"]
        self.output = weights.get("output.weight", self.embeddings)

    def forward(self, ids: Sequence[int]) -> Trace:
        x = self.embeddings[list(ids)]
        inputs = []
        for block in self.blocks:
            inputs.append(x)
            x = x + block.causal_attention(block.norm(x, "attn_norm"))
            x = x + block.feed_forward(block.norm(x, "ffn_norm"))
        hidden = rms_norm(x, self._weights["output_norm.weight"], self.blocks[0].eps)
        return Trace(inputs, hidden, hidden @ self.output.T)


class BiasedBlock(Block):
    """Qwen2's: biases on q, k and v, and rotation of distant pairs."""

    def split(self, x: Array, name: str, heads: int) -> Array:
        return (x @ self[name].T + self.tensor(f"{name}.bias")).reshape(len(x), heads, -1)

    def causal_attention(self, x: Array, *, adjacent: bool = False) -> Array:
        return super().causal_attention(x, adjacent=adjacent)


class Qwen2(Llama):
    """Dense Qwen2."""

    _block = BiasedBlock
