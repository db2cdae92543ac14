"""Compute graph of Gemma 4's assistant: MTP blocks that attend to the target's own cache."""

from __future__ import annotations

from localspec.budget.attention import attention
from localspec.budget.builder import F32, I32, Builder
from localspec.budget.feed_forward import feed_forward
from localspec.budget.placement import Placement
from localspec.budget.replay import HOST, Reserved, replay
from localspec.budget.shape import CURRENT, Build, ContextShape
from localspec.header.facts import ModelFacts


def reserve_assistant(
    facts: ModelFacts,
    shape: ContextShape,
    placement: Placement,
    *,
    alignments: tuple[int, ...],
    build: Build = CURRENT,
    detail: bool = False,
) -> Reserved:
    """Token rows and hidden states of the target's width, narrowed, through all blocks, and widened again."""
    b = Builder(facts, shape, placement, build)
    g, outer = b.graph, F32 * (facts.target_hidden or facts.n_embd)
    rows = g.op(outer * b.t, "embeddings", b.input("tokens", I32 * b.t), device=HOST)
    rows = b.same("scaled embeddings", rows, device=HOST)
    b.enter(0, placement.output)
    joined = g.op(2 * outer * b.t, "joined", rows, b.input("hidden states", outer * b.t))
    x = b.mm(joined, facts.n_embd, "joined projection")
    last = len(facts.layers) - 1
    for index in range(len(facts.layers)):
        b.enter(index, placement.output)
        layer = facts.layers[index]
        cur = attention(b, index, layer, g.op(g.sizes[x], "attn norm", x))
        if index == last:
            cur, x = b.gather(cur, x)
        middle = b.same("attn residual", b.norm(cur), x)
        cur = feed_forward(b, index, layer, g.op(g.sizes[middle], "ffn norm", middle))
        x = b.same("block out", b.norm(cur), middle)
    g.device = placement.output
    normed = b.norm(x, "final norm")
    g.kept.add(normed)
    g.kept.add(b.mm(normed, facts.n_vocab, "logits", shape.n_outputs))
    g.kept.add(g.op(outer * shape.n_outputs, "next hidden states", normed))
    return replay(g, alignments, detail=detail)
