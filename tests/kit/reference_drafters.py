"""Independent numpy passes of the learned drafters: EAGLE-3, NextN, DFlash, DSpark, DFlash2 and Medusa."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.kit.reference import Array, Block, Llama, Weights, attend, rms_norm, sigmoid, silu


def softmax(row: Array) -> Array:
    weights: Array = np.exp(row - row.max())
    return weights / weights.sum()


class Eagle3:
    """An EAGLE-3 head on a target's embeddings and, unless it brings its own, output matrix."""

    def __init__(self, path: Path, target: Llama) -> None:
        self._weights = weights = Weights(path)
        self._block = Block(weights, 0)
        self.layers: list[int] = list(weights.key("target_layers"))
        self._embeddings = weights.get("token_embd.weight", target.embeddings)
        self._output = weights.get("output.weight", target.output)
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

    def draft(self, ids: Sequence[int], hidden: Array, k: int) -> list[int]:
        """The greedy draft behind `ids` `[n]`, given normed hidden states of all but the last position."""
        tokens, rows = list(ids), np.concatenate([np.zeros((1, hidden.shape[1])), hidden])
        for _ in range(k):
            logits, out = self.decode(tokens, rows)
            tokens.append(int(logits[-1].argmax()))
            rows = np.concatenate([rows, out[-1:]])
        return tokens[len(ids) :]

    def _gated_attention(self, x: Array) -> Array:
        block, positions = self._block, np.arange(len(x), dtype=np.float64)
        both = (x @ block["attn_q"].T).reshape(len(x), block.heads, 2, -1)
        q = block.rotate(rms_norm(both[:, :, 0], block["attn_q_norm"], block.eps), positions, adjacent=False)
        k = block.rotate(block.split(x, "attn_k", block.kv_heads), positions, adjacent=False)
        v = block.split(x, "attn_v", block.kv_heads)
        mixed = attend(q, k, v, np.tri(len(x), dtype=bool))
        return (mixed * sigmoid(both[:, :, 1].reshape(len(x), -1))) @ block["attn_output"].T


class DFlash:
    """A DFlash block drafter; its tensors say whether it is plain, DSpark or DFlash2."""

    def __init__(self, path: Path, target: Llama) -> None:
        self._weights = weights = Weights(path)
        self._blocks = [Block(weights, layer) for layer in range(weights.key("block_count"))]
        self._target = target
        self.layers: list[int] = list(weights.key("target_layers"))
        self._mask: int = weights.tokenizer_key("mask_token_id")
        self._convolves = "selector_hidden.weight" in weights
        self._causal = bool(weights.key("attention.causal", False))
        window = weights.key("attention.sliding_window")
        pattern = weights.key("attention.sliding_window_pattern", [False] * len(self._blocks))
        self._windows: list[int | None] = [window if windowed else None for windowed in pattern]
        # DSpark predicts from its first row on, DFlash from the first mask on.
        self._first = 0 if weights.key("sample_from_anchor", False) else 1

    def hidden(self, features: Array, last: int, k: int) -> Array:
        """Normed rows `[k + 1, width]` of [last, mask × k] behind `features` `[n, layers·width]`."""
        eps = self._blocks[0].eps
        fused = features @ self._weights["fc.weight"].T
        context = rms_norm(fused, self._weights["enc.output_norm.weight"], eps)
        past = np.arange(len(context), dtype=np.float64)
        here = len(context) + np.arange(k + 1, dtype=np.float64)
        x = self._target.embeddings[[last] + [self._mask] * k]
        for block, window in zip(self._blocks, self._windows, strict=True):
            noise = block.norm(x, "attn_norm")
            mixed = self._attention(
                block, self._convolve(block, "attn", noise, noise, 0), context, here, past, window
            )
            x = x + self._convolve(block, "attn", mixed, noise, 1)
            inner = block.norm(x, "ffn_norm")
            out = block.feed_forward(self._convolve(block, "ffn", inner, inner, 0))
            x = x + self._convolve(block, "ffn", out, inner, 1)
        return rms_norm(x, self._weights["output_norm.weight"], eps)

    def _attention(
        self, block: Block, noise: Array, context: Array, here: Array, past: Array, window: int | None
    ) -> Array:
        """Every row of the block sees the context and the block, as far as window and causal mask allow."""
        q = block.rotate(block.split(noise, "attn_q", block.heads), here, adjacent=False)
        keys = [
            block.rotate(block.split(rows, "attn_k", block.kv_heads), at, adjacent=False)
            for rows, at in ((context, past), (noise, here))
        ]
        values = [block.split(rows, "attn_v", block.kv_heads) for rows in (context, noise)]
        k, v = np.concatenate(keys), np.concatenate(values)
        distance = here[:, None] - np.concatenate([past, here])
        visible = np.ones(distance.shape, dtype=bool)
        if self._causal:
            visible &= distance >= 0
        if window:
            visible &= distance < window
        return attend(q, k, v, visible) @ block["attn_output"].T

    def _convolve(self, block: Block, part: str, rows: Array, steering: Array, side: int) -> Array:
        """DFlash2: each row mixes its predecessors in the block with weights that `steering` shifts.

        Side 0 is in front of attention or feed-forward network, side 1 behind it.
        """
        if not self._convolves:
            return rows
        base = block.tensor(f"{part}_conv_base")
        taps, width = base.shape[1:]
        shift = (steering @ block[f"{part}_conv_proj"].T).reshape(len(rows), 2, taps, -1)[:, side]
        weights = base[side] + np.repeat(shift, width // shift.shape[-1], axis=-1)
        out = np.zeros_like(rows)
        for tap in range(min(taps, len(rows))):
            out[tap:] += weights[tap:, tap] * rows[: len(rows) - tap]
        return out

    def logits(self, features: Array, last: int, k: int) -> Array:
        """Logits `[k + 1, n_vocab]`; DSpark's carry the bias of the previous row's choice."""
        logits = self.hidden(features, last, k) @ self._target.output.T
        if "markov_w1.weight" in self._weights:
            previous = last
            for row in logits[self._first :]:
                row += self._weights["markov_w2.weight"] @ self._weights["markov_w1.weight"][previous]
                previous = int(row.argmax())
        return logits

    def propose(self, features: Array, last: int, k: int) -> list[tuple[int, float]]:
        """The greedy draft of `k` tokens behind `last`, with confidences.

        A confidence is the token's probability, or what DSpark's confidence head says.
        """
        weights = self._weights
        first = self._first
        masks = k - 1 + first
        logits, hidden = self.logits(features, last, masks), self.hidden(features, last, masks)
        if self._convolves:
            return self._walk(logits, hidden, last)
        tokens = [int(row.argmax()) for row in logits[first:]]
        if "conf_proj.weight" not in weights:
            return [(id, float(softmax(row)[id])) for id, row in zip(tokens, logits[first:], strict=True)]
        before = weights["markov_w1.weight"][[last, *tokens[:-1]]]
        said = np.concatenate([hidden[first:], before], axis=1) @ weights["conf_proj.weight"].reshape(-1)
        chances = sigmoid(said + weights["conf_proj.bias"])
        return [(id, float(chance)) for id, chance in zip(tokens, chances, strict=True)]

    def draft(self, features: Array, last: int, k: int) -> list[int]:
        """The greedy draft of `k` tokens behind `last`."""
        return [id for id, _ in self.propose(features, last, k)]

    def _walk(self, logits: Array, hidden: Array, last: int) -> list[tuple[int, float]]:
        """DFlash2's selector: the best transition into one of each row's `top_k` candidates."""
        weights, out = self._weights, [(last, 1.0)]
        for row, state in zip(logits[1:], hidden[1:], strict=True):
            candidates = np.argsort(-row)[: weights.key("selector_top_k")]
            gate = weights["selector_hidden.weight"] @ state
            key = weights["selector_predecessor.weight"][out[-1][0]] * gate
            scores = weights["selector_successor.weight"][candidates] @ key + row[candidates]
            out.append((int(candidates[scores.argmax()]), float(softmax(scores).max())))
        return out[1:]


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
            rows.append(self._weights.get(f"head.{head}.lm_head.weight", self._output) @ x)
        return np.array(rows)
