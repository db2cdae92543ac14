"""A small llama with the target's tokenizer, trained on the target's probabilities.

Its tied embedding starts as the target's own, projected on its strongest directions, so that only its few
layers have to be learned from nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from training.corpus import Batch, candidates, whole_blocks
from training.layers import FeedForward, Projections, RmsNorm
from training.target import Floats, TargetFacts


@dataclass(frozen=True)
class Size:
    """Shape of the draft; the embedding outweighs everything else."""

    width: int = 192
    layers: int = 4
    ff: int = 512
    head_size: int = 64

    @property
    def heads(self) -> int:
        return self.width // self.head_size


class Layer(nn.Module):
    """One pre-norm llama layer."""

    def __init__(self, size: Size, facts: TargetFacts) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(size.width, facts.eps)
        self.attention = Projections(
            size.width, size.width, size.heads, size.heads, size.head_size, facts.rope_base
        )
        self.ff_norm = RmsNorm(size.width, facts.eps)
        self.ff = FeedForward(size.width, size.ff)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        q, k, v = self.attention(self.attention_norm(x), positions)
        x = x + self.attention.join(functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        out: Tensor = x + self.ff(self.ff_norm(x))
        return out


class SmallLlama(nn.Module):
    """`embedding` is the target's `[n_vocab, width]`, to start from."""

    def __init__(self, facts: TargetFacts, embedding: Floats, size: Size) -> None:
        super().__init__()
        self.size = size
        self.embedding = nn.Embedding(facts.n_vocab, size.width)
        self.layers: Any = nn.ModuleList(Layer(size, facts) for _ in range(size.layers))
        self.output_norm = RmsNorm(size.width, facts.eps)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.from_numpy(projected(embedding, size.width)))

    def forward(self, tokens: Tensor) -> Tensor:
        """`[B, T]` → hidden states `[B, T, width]` after the last norm."""
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, positions)
        out: Tensor = self.output_norm(x)
        return out

    def logits(self, hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        """Over the whole vocabulary, or some ids."""
        weight = self.embedding.weight if ids is None else self.embedding.weight[ids]
        return functional.linear(hidden, weight)


def projected(embedding: Floats, width: int) -> Floats:
    """The rows in their `width` strongest directions, scaled to a standard deviation of 0.1."""
    values, directions = np.linalg.eigh(embedding.T @ embedding)
    strongest = directions[:, np.argsort(values)[::-1][:width]]
    rows = embedding @ strongest
    return np.asarray(rows * (0.1 / rows.std()), np.float32)


def loss(draft: SmallLlama, batch: Batch) -> Tensor:
    """Mean distillation loss of all positions: the target judged the prompts too."""
    vocabulary = candidates(batch, draft.embedding.num_embeddings)
    inside = torch.arange(batch.tokens.shape[1]) < batch.length[:, None]
    where = whole_blocks(*inside.nonzero(as_tuple=True))
    logits = draft.logits(draft(batch.tokens)[where], vocabulary.ids)
    return vocabulary.distillation(logits, batch.top_ids[where], batch.top_p[where]).mean()


def hits(draft: SmallLlama, batch: Batch, k: int) -> Tensor:
    """`[k, B, T]`: whether draft s of a round at position P is the token that follows.

    A draft that is only asked while it was right has seen the text itself.
    """
    hidden = draft(batch.tokens)
    best = torch.stack([draft.logits(row).argmax(-1) for row in hidden])
    right = best[:, :-1] == batch.tokens[:, 1:]
    found = torch.zeros((k, *batch.tokens.shape), dtype=torch.bool)
    for s in range(k):
        reach = max(right.shape[1] - 1 - s, 0)
        found[s, :, :reach] = right[:, 1 + s :]
    return found
