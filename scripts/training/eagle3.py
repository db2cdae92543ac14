"""An EAGLE-3 head: one layer that continues the target's hidden states (Li et al. 2025).

Pair position P holds (embedding of token P + 1, feature of token P) and predicts token P + 2. In training
a chain starts at every position and goes on from its own output, as it will when drafting
("training-time test"): step s of the chain from P stands at position P + s and sees the true pairs up to P
and its own s pairs behind them. Only positions where the chain is still right go on: others are never
reached in use.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from training.corpus import Batch, ReducedVocabulary, candidates, whole_blocks
from training.layers import FeedForward, Projections, RmsNorm
from training.target import Floats, TargetFacts

DISTANCE_WEIGHT = 0.5
"""Weight of the distance to the target's hidden states beside the distillation of its probabilities."""
DROPOUT = 0.1
"""Share of a layer's output that a training pass leaves out, against learning the texts by heart."""
STEP_WEIGHT = 0.9
"""Weight of each further step of a chain, relative to the step before."""
GOING_ON = (1.0, 0.5, 0.3, 0.2)
"""Share of a batch's positions whose chains take step s in training."""


def _adopt(weight: Tensor, rows: Floats | None, scale: float = 1.0) -> None:
    """Copy a target's matrix of the same shape, scaled."""
    if rows is not None and tuple(weight.shape) == rows.shape:
        weight.copy_(torch.tensor(rows) * scale)


class Eagle3(nn.Module):
    """The head; `embedding` and `unembedding` `[n_vocab, width]` are the target's and are not trained.

    With the unembedding fixed, the state after the last norm has one right answer: the target's own hidden
    state. That is a lesson in every dimension at every token, where a token's id alone says little.
    """

    embedding: Tensor
    unembedding: Tensor
    spread: Tensor
    """`[width, width]`: a difference x of hidden states moves logits by `|x · spread|²`, mean square."""

    def __init__(self, facts: TargetFacts, embedding: Floats, unembedding: Floats) -> None:
        super().__init__()
        width = facts.width
        self.register_buffer("embedding", torch.tensor(embedding), persistent=False)
        rows = torch.tensor(unembedding)
        self.register_buffer("unembedding", rows.to(torch.bfloat16), persistent=False)
        covariance = torch.cov(rows.T) + 1e-6 * torch.eye(width)
        self.register_buffer("spread", torch.linalg.cholesky(covariance), persistent=False)
        self.feature_norm = RmsNorm(3 * width, facts.eps)
        self.fc = nn.Linear(3 * width, width, bias=False)
        self.token_norm = RmsNorm(width, facts.eps)
        self.state_norm = RmsNorm(width, facts.eps)
        self.attention = Projections(
            2 * width, width, facts.n_head, facts.n_head_kv, facts.head_size, facts.rope_base
        )
        self.ff_norm = RmsNorm(width, facts.eps)
        self.ff = FeedForward(width, facts.n_ff)
        self.output_norm = RmsNorm(width, facts.eps)

    def start_from(self, features: Floats, output_norm: Floats, layer: Mapping[str, Floats]) -> None:
        """Start as the target seen through its late layer: that state, the layer behind it, the last norm.

        A start that reads the state out as the target does has nothing to learn first of how it is read.

        Args:
            features: `[n, 3 · width]` of replies; every dimension is scaled by its own size, because a few
                outliers would drown the others.
            output_norm: weight of the target's final norm.
            layer: matrices of the target's late layer by their name in the file; those that are missing or
                have another shape stay random.
        """
        width = self.fc.out_features
        normed = functional.rms_norm(torch.from_numpy(features), (3 * width,), eps=self.feature_norm.eps)
        size = normed.square().mean(0).sqrt()
        late = size[2 * width :]
        shrink = 1 / float(np.sqrt(np.square(features[:, 2 * width :], dtype=np.float64).mean()))
        with torch.no_grad():
            self.feature_norm.weight.copy_(1 / size)
            self.fc.weight.zero_()
            self.fc.weight[:, 2 * width :] += torch.diag(late / late.square().mean().sqrt())
            self.output_norm.weight.copy_(torch.tensor(output_norm))
            _adopt(self.state_norm.weight, layer.get("attn_norm"))
            _adopt(self.ff_norm.weight, layer.get("ffn_norm"))
            for name in ("q", "k", "v"):
                projection = getattr(self.attention, name).weight
                projection[:, :width] *= 0.3
                _adopt(projection[:, width:], layer.get(f"attn_{name}"))
            _adopt(self.ff.gate.weight, layer.get("ffn_gate"))
            _adopt(self.ff.up.weight, layer.get("ffn_up"))
            # The state has a size of 1 here; what the layer adds to it must shrink alike.
            _adopt(self.attention.output.weight, layer.get("attn_output"), shrink)
            _adopt(self.ff.down.weight, layer.get("ffn_down"), shrink)

    def encode(self, features: Tensor) -> Tensor:
        out: Tensor = self.fc(self.feature_norm(features))
        return out

    def project(self, tokens: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pair = torch.cat((self.token_norm(self.embedding[tokens]), self.state_norm(states)), -1)
        q, k, v = self.attention(pair, positions)
        return q, k, v

    def finish(self, states: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, which is also the state the next pair carries."""
        states = states + functional.dropout(self.attention.join(attended), DROPOUT, self.training)
        out: Tensor = states + functional.dropout(self.ff(self.ff_norm(states)), DROPOUT, self.training)
        return out

    def logits(self, states: Tensor, rows: Tensor | None = None) -> Tensor:
        """Over the whole vocabulary, or the ids `rows`."""
        weight = self.unembedding if rows is None else self.unembedding[rows]
        return functional.linear(self.output_norm(states).to(torch.bfloat16), weight)

    def distance(self, states: Tensor, hidden: Tensor) -> Tensor:
        """Mean squared difference `[n]` of the logits of states and of the target's hidden states."""
        difference = self.output_norm(states) - hidden.float()
        away: Tensor = (difference @ self.spread).square().sum(-1)
        return away


@dataclass(slots=True)
class Step:
    """Step s of chains that start at `starts`."""

    states: Tensor
    """`[B, M, width]`."""
    starts: Tensor
    """`[B, M]`."""


def chains(head: Eagle3, batch: Batch) -> Generator[Step, Tensor | None, None]:
    """Steps of chains from every position; `send` the columns `[B, M']` that go on, all when None."""
    n = batch.tokens.shape[1] - 1
    size = batch.tokens.shape[0]
    starts = torch.arange(n).expand(size, n)
    states = head.encode(batch.features[:, :-1])
    q, k, v = head.project(batch.tokens[:, 1:], states, starts)
    scale = q.shape[-1] ** -0.5
    states = head.finish(states, functional.scaled_dot_product_attention(q, k, v, is_causal=True))
    true_k, true_v = k, v
    own: list[tuple[Tensor, Tensor]] = []
    step = 0
    while True:
        columns = yield Step(states, starts)
        if columns is not None:
            starts = torch.gather(starts, 1, columns)
            states = _pick(states, columns)
            own = [(_pick_heads(k, columns), _pick_heads(v, columns)) for k, v in own]
        step += 1
        at = (starts + step).clamp(max=n - 1)
        q, k, v = head.project(torch.gather(batch.tokens, 1, at + 1), states, starts + step)
        own.append((k, v))
        scores = [q @ true_k.transpose(2, 3) * scale]
        hidden = torch.arange(n) > starts[:, None, :, None]
        scores[0] = scores[0].float().masked_fill(hidden, -torch.inf)
        scores += [(q * key).sum(-1, keepdim=True).float() * scale for key, _ in own]
        weights = torch.cat(scores, -1).softmax(-1).to(q.dtype)
        attended = weights[..., :n] @ true_v
        for i, (_, value) in enumerate(own):
            attended = attended + weights[..., n + i : n + i + 1] * value
        states = head.finish(states, attended)


def _pick(rows: Tensor, columns: Tensor) -> Tensor:
    return torch.gather(rows, 1, columns[..., None].expand(-1, -1, rows.shape[-1]))


def _pick_heads(rows: Tensor, columns: Tensor) -> Tensor:
    shape = (-1, rows.shape[1], -1, rows.shape[3])
    return torch.gather(rows, 2, columns[:, None, :, None].expand(*shape))


def loss(head: Eagle3, batch: Batch, steps: int) -> Tensor:
    """Mean loss of the chains' steps, weighted by `STEP_WEIGHT`."""
    vocabulary = candidates(batch, len(head.embedding))
    walk = chains(head, batch)
    step = next(walk)
    alive = torch.ones_like(step.starts, dtype=torch.bool)
    total = torch.zeros(())
    for s in range(steps):
        judged = step.starts + s + 1
        inside = judged < batch.length[:, None]
        judged = judged.clamp(max=batch.tokens.shape[1] - 1)
        wanted = inside & torch.gather(batch.is_reply, 1, judged) & alive
        where = whole_blocks(*wanted.nonzero(as_tuple=True))
        rows = (where[0], judged[where])
        if len(where[0]):
            logits = head.logits(step.states[where], vocabulary.ids)
            each = vocabulary.distillation(logits, batch.top_ids[rows], batch.top_p[rows])
            away = head.distance(step.states[where], batch.hidden[rows])
            total = total + STEP_WEIGHT**s * (each.mean() + DISTANCE_WEIGHT * away.mean())
            right = torch.zeros_like(alive)
            right[where] = vocabulary.best(logits.detach()) == batch.top_ids[rows][:, 0]
        if s + 1 < steps:
            keep = max(1, int(GOING_ON[min(s + 1, len(GOING_ON) - 1)] * batch.tokens.shape[1]))
            columns = _chosen(right if len(where[0]) else alive, keep)
            alive = torch.gather(right, 1, columns)
            step = walk.send(columns)
    return total


def _chosen(right: Tensor, keep: int) -> Tensor:
    """`[B, keep]` columns, those that are right first, in random order among equals."""
    ranks = right.float() + torch.rand(right.shape) * 0.5
    return ranks.topk(min(keep, right.shape[1]), dim=1).indices.sort(1).values


def hits(head: Eagle3, batch: Batch, k: int, kept: ReducedVocabulary) -> Tensor:
    """`[k, B, T]`: whether step s of the chain from P proposes, among `kept`, the token that follows."""
    found = torch.zeros((k, *batch.tokens.shape), dtype=torch.bool)
    walk = chains(head, batch)
    step = next(walk)
    n = batch.tokens.shape[1]
    for s in range(k):
        proposed = kept.best(head.logits(step.states, kept.ids))
        reach = n - s - 2
        if reach > 0:
            found[s, :, :reach] = proposed[:, :reach] == batch.tokens[:, s + 2 :]
        if s + 1 < k:
            step = walk.send(None)
    return found
