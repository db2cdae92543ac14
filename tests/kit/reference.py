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

    def key(self, name: str, default: Any = None) -> Any:
        """An architecture key."""
        field = self._fields.get(f"{self.arch}.{name}")
        return default if field is None else field.contents()


def rms_norm(x: Array, weight: Array | float, eps: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


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
    """Grouped-query attention: `[n, heads, d]` over `[m, kv_heads, d]`, `visible[n, m]`; returns `[n, heads·d]`."""
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    scores = np.einsum("nhd,mhd->hnm", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hnm,mhd->nhd", weights, v).reshape(len(q), -1)


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

    def __init__(self, path: Path) -> None:
        self._weights = weights = Weights(path)
        self.blocks = [Block(weights, layer) for layer in range(weights.key("block_count"))]
        self.embeddings = weights["token_embd.weight"]
        self.output = weights["output.weight"] if "output.weight" in weights else self.embeddings

    def forward(self, ids: Sequence[int]) -> Trace:
        x = self.embeddings[list(ids)]
        inputs = []
        for block in self.blocks:
            inputs.append(x)
            x = x + block.causal_attention(block.norm(x, "attn_norm"))
            x = x + block.feed_forward(block.norm(x, "ffn_norm"))
        hidden = rms_norm(x, self._weights["output_norm.weight"], self.blocks[0].eps)
        return Trace(inputs, hidden, hidden @ self.output.T)


class Eagle3:
    """An EAGLE-3 head on a target's embeddings and, unless it brings its own, output matrix."""

    def __init__(self, path: Path, target: Llama) -> None:
        self._weights = weights = Weights(path)
        self._block = Block(weights, 0)
        self.layers: list[int] = list(weights.key("target_layers"))
        own = "token_embd.weight" in weights
        self._embeddings = weights["token_embd.weight"] if own else target.embeddings
        self._output = weights["output.weight"] if "output.weight" in weights else target.output
        self._n_vocab = len(target.output)

    def encode(self, features: Array) -> Array:
        """Features `[n, 3·width]` of target positions → g `[n, width]`."""
        if self._weights.key("norm_before_fc", False):
            features = rms_norm(features, self._weights["enc.output_norm.weight"], self._block.eps)
        return features @ self._weights["fc.weight"].T

    def decode(self, tokens: Sequence[int], g: Array) -> tuple[Array, Array]:
        """Row P reads token P + 1 of the text beside g[P]; `[n]`, `[n, width]` → logits, hidden rows.

        Logits outside a reduced vocabulary are -inf; the last hidden row is the next draft step's g.
        """
        block = self._block
        embedded = block.norm(self._embeddings[list(tokens)], "attn_norm")
        normed = block.norm(g, "attn_norm_2")
        residual = normed if self._weights.key("norm_before_residual", False) else g
        x = residual + block.causal_attention(np.concatenate([embedded, normed], axis=1))
        hidden = x + block.feed_forward(block.norm(x, "ffn_norm"))
        logits = rms_norm(hidden, self._weights["output_norm.weight"], block.eps) @ self._output.T
        if "d2t" in self._weights:
            full = np.full((len(logits), self._n_vocab), -np.inf)
            full[:, self._weights["d2t"].astype(int)] = logits
            logits = full
        return logits, hidden

    def draft(self, ids: Sequence[int], features: Array, k: int) -> list[int]:
        """The greedy draft behind `ids` `[n]`, given features of all but the last position."""
        tokens, g = list(ids[1:]), self.encode(features)
        out: list[int] = []
        for _ in range(k):
            logits, hidden = self.decode(tokens, g)
            out.append(int(logits[-1].argmax()))
            tokens.append(out[-1])
            g = np.concatenate([g, hidden[-1:]])
        return out


class Nextn:
    """The NextN layer of a qwen35 file."""

    def __init__(self, path: Path) -> None:
        self._weights = weights = Weights(path)
        self._block = Block(weights, weights.key("block_count") - 1)

    def decode(self, tokens: Sequence[int], hidden: Array) -> tuple[Array, Array]:
        """Row p reads token p beside the target's normed hidden state of p - 1 (zeros for p = 0).

        Returns logits `[n, n_vocab]` and the normed hidden rows that feed the next draft step.
        """
        block, weights = self._block, self._weights
        embedded = block.norm(weights["token_embd.weight"][list(tokens)], "nextn.enorm")
        joined = np.concatenate([embedded, block.norm(hidden, "nextn.hnorm")], axis=1)
        x = joined @ block["nextn.eh_proj"].T
        x = x + self._gated_attention(block.norm(x, "attn_norm"))
        x = x + block.feed_forward(block.norm(x, "post_attention_norm"))
        out = block.norm(x, "nextn.shared_head_norm")
        return out @ weights["output.weight"].T, out

    def _gated_attention(self, x: Array) -> Array:
        block, positions = self._block, np.arange(len(x), dtype=np.float64)
        both = (x @ block["attn_q"].T).reshape(len(x), block.heads, 2, -1)
        q = block.rotate(rms_norm(both[:, :, 0], block["attn_q_norm"], block.eps), positions, adjacent=False)
        k = block.rotate(block.split(x, "attn_k", block.kv_heads), positions, adjacent=False)
        v = block.split(x, "attn_v", block.kv_heads)
        mixed = attend(q, k, v, np.tri(len(x), dtype=bool))
        return (mixed * sigmoid(both[:, :, 1].reshape(len(x), -1))) @ block["attn_output"].T


class DFlash:
    """A DFlash block drafter; with Markov tensors it is DSpark."""

    def __init__(self, path: Path, target: Llama) -> None:
        self._weights = weights = Weights(path)
        self._blocks = [Block(weights, layer) for layer in range(weights.key("block_count"))]
        self._target = target
        self.layers: list[int] = list(weights.key("target_layers"))
        self.mask: int = weights._fields["tokenizer.ggml.mask_token_id"].contents()

    def draft(self, features: Array, last: int, k: int) -> Array:
        """Logits `[k + 1, n_vocab]` of the block [last, mask × k] behind `features` `[n, layers·width]`."""
        eps = self._blocks[0].eps
        context = rms_norm(
            features @ self._weights["fc.weight"].T, self._weights["enc.output_norm.weight"], eps
        )
        tokens = [last] + [self.mask] * k
        past, here = (
            np.arange(len(context), dtype=np.float64),
            len(context) + np.arange(k + 1, dtype=np.float64),
        )
        x = self._target.embeddings[tokens]
        for block in self._blocks:
            noise = block.norm(x, "attn_norm")
            q = block.rotate(block.split(noise, "attn_q", block.heads), here, adjacent=False)
            k_all = np.concatenate(
                [
                    block.rotate(block.split(rows, "attn_k", block.kv_heads), at, adjacent=False)
                    for rows, at in ((context, past), (noise, here))
                ]
            )
            v_all = np.concatenate([block.split(rows, "attn_v", block.kv_heads) for rows in (context, noise)])
            everything = np.ones((len(x), len(k_all)), dtype=bool)
            x = x + attend(q, k_all, v_all, everything) @ block["attn_output"].T
            x = x + block.feed_forward(block.norm(x, "ffn_norm"))
        hidden = rms_norm(x, self._weights["output_norm.weight"], eps)
        logits = hidden @ self._target.output.T
        return self._with_markov_bias(logits, last) if "markov_w1.weight" in self._weights else logits

    def _with_markov_bias(self, logits: Array, last: int) -> Array:
        """Each row gets a bias that depends on the previous row's choice; row 0 follows `last`."""
        out, previous = logits.copy(), last
        for row in out:
            row += self._weights["markov_w2.weight"] @ self._weights["markov_w1.weight"][previous]
            previous = int(row.argmax())
        return out


class Medusa:
    """Medusa heads in our own format, on a target's output matrix."""

    def __init__(self, path: Path, output: Array) -> None:
        self._weights, self._output = Weights(path), output
        self.heads: int = self._weights.key("block_count")

    def logits(self, hidden: Array) -> Array:
        """Logits `[heads, n_vocab]` for one hidden state `[width]` after the target's final norm."""
        rows = []
        for head in range(self.heads):
            x = hidden
            for block in range(self._weights.key("residual_block_count")):
                name = f"head.{head}.{block}"
                x = x + silu(self._weights[f"{name}.weight"] @ x + self._weights[f"{name}.bias"])
            own = f"head.{head}.lm_head.weight"
            rows.append((self._weights[own] if own in self._weights else self._output) @ x)
        return np.array(rows)
