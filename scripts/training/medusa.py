"""Medusa heads: residual blocks that guess further tokens from one hidden state (Cai et al. 2024).

Head i reads the hidden state of position P, whose own logits choose token P + 1, and predicts token
P + 2 + i through the target's unembedding, which is not trained. A head is trained where all heads before
it are right: elsewhere it is never asked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.corpus import Batch, candidates, whole_blocks
from training.target import Floats, TargetFacts

HEAD_WEIGHT = 0.9
"""Weight of each further head, relative to the one before."""


class Medusa(nn.Module):
    """`heads` heads of `blocks` residual blocks; `unembedding` is `[n_vocab, width]`."""

    unembedding: Tensor

    def __init__(
        self,
        facts: TargetFacts,
        unembedding: Floats,
        heads: int = 4,
        blocks: int = 4,
    ) -> None:
        super().__init__()
        rows = torch.tensor(unembedding).to(torch.bfloat16)
        self.register_buffer("unembedding", rows, persistent=False)
        self.heads: Any = nn.ModuleList(
            nn.ModuleList(nn.Linear(facts.width, facts.width) for _ in range(blocks)) for _ in range(heads)
        )
        for parameter in self.parameters():
            # Nearly zero: a head starts as the target's own output.
            nn.init.normal_(parameter, std=1e-3)

    def guess(self, i: int, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits `[n, …]` of head i over the whole vocabulary, or the ids `rows`."""
        x = hidden.float()
        for block in self.heads[i]:
            x = x + functional.silu(block(x))
        weight = self.unembedding if rows is None else self.unembedding[rows]
        return functional.linear(x.to(torch.bfloat16), weight)


def loss(medusa: Medusa, batch: Batch) -> Tensor:
    """Mean distillation loss of the heads, weighted by `HEAD_WEIGHT`."""
    vocabulary = candidates(batch, len(medusa.unembedding))
    total = torch.zeros(())
    row, at = torch.nonzero(batch.is_reply[:, 1:], as_tuple=True)
    hidden = batch.hidden[row, at]
    for i in range(len(medusa.heads)):
        inside = at + i + 1 < batch.length[row]
        row, at, hidden = whole_blocks(row[inside], at[inside], hidden[inside])
        if not len(row):
            break
        logits = medusa.guess(i, hidden, vocabulary.ids)
        top_ids, top_p = batch.top_ids[row, at + i + 1], batch.top_p[row, at + i + 1]
        total = total + HEAD_WEIGHT**i * vocabulary.distillation(logits, top_ids, top_p).mean()
        right = vocabulary.best(logits.detach()) == top_ids[:, 0]
        row, at, hidden = row[right], at[right], hidden[right]
    return total


def hits(medusa: Medusa, batch: Batch, k: int) -> Tensor:
    """`[k, B, T]`: whether head s at position P proposes the token that follows."""
    found = torch.zeros((k, *batch.tokens.shape), dtype=torch.bool)
    n = batch.tokens.shape[1]
    for s in range(min(k, len(medusa.heads))):
        proposed = medusa.guess(s, batch.hidden).argmax(-1)
        reach = max(n - s - 2, 0)
        found[s, :, :reach] = proposed[:, :reach] == batch.tokens[:, s + 2 :]
    return found
