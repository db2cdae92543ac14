"""Compute graphs of learned heads: nextn (MTP) blocks, EAGLE-3 and DFlash decoders, as sizes."""

from __future__ import annotations

from collections.abc import Callable

from localspec.budget.builder import F32, I32, Builder
from localspec.budget.feed_forward import feed_forward
from localspec.budget.graph import block
from localspec.budget.mixers import mixer
from localspec.budget.placement import Placement
from localspec.budget.replay import HOST, Reserved, replay
from localspec.budget.shape import CURRENT, Build, ContextShape
from localspec.header.facts import ModelFacts


def reserve_mtp(
    facts: ModelFacts,
    shape: ContextShape,
    placement: Placement,
    *,
    alignments: tuple[int, ...],
    build: Build = CURRENT,
    detail: bool = False,
) -> Reserved:
    """Context of the first nextn block: embedding and hidden state joined, one block, output matrix."""
    b = Builder(facts, shape, placement, build)
    g, index, size = b.graph, facts.n_layer, F32 * facts.n_embd * b.t
    layer = facts.layers[index]
    rows = g.op(size, "embeddings", b.input("tokens", I32 * b.t), device=HOST)
    own = placement.blocks[index]
    b.enter(index, own)  # it ends in a norm of its own
    joined = g.op(2 * size, "joined", b.norm(rows), b.norm(b.input("hidden states", size)))
    residual = b.mm(joined, facts.n_embd, "joined projection")
    cur = mixer(b, index, layer, g.op(size, "attn norm", residual))
    middle = b.same("attn residual", cur, residual)
    cur = feed_forward(b, index, layer, g.op(size, "ffn norm", middle))
    cur = b.same("block out", cur, middle)
    normed = b.norm(cur, "head norm")
    g.kept.add(normed)
    g.device = own if own != HOST else placement.output
    rows = b.gather(normed)[0]
    g.kept.add(rows)
    g.device = placement.output
    g.kept.add(b.mm(rows, facts.n_vocab, "logits", shape.n_outputs))
    return replay(g, alignments, detail=detail)


def reserve_eagle3(
    facts: ModelFacts,
    shape: ContextShape,
    placement: Placement,
    *,
    alignments: tuple[int, ...],
    build: Build = CURRENT,
    detail: bool = False,
) -> Reserved:
    """Decoder of an EAGLE-3 head; it computes logits for every row of the batch."""
    b = Builder(facts, shape, placement, build)
    g, t, size = b.graph, b.t, F32 * facts.n_embd * b.t
    b.enter(0, placement.output)
    reduced = g.op(F32 * facts.n_vocab * t, "full logits") if facts.n_draft_vocab else -1
    rows = g.op(size, "embeddings", b.input("tokens", I32 * t), device=HOST)
    features = b.input("target features", size)
    joined = g.op(2 * size, "joined", b.norm(rows), g.op(size, "feature norm", features))
    cur = mixer(b, 0, facts.layers[0], joined)
    middle = b.same("attn residual", cur, features)
    cur = feed_forward(b, 0, facts.layers[0], g.op(size, "ffn norm", middle))
    cur = b.same("block out", cur, middle)
    g.kept.add(cur)
    g.device = placement.output
    normed = b.norm(cur, "final norm")
    g.device = placement.matrix
    logits = b.mm(normed, facts.n_draft_vocab or facts.n_vocab, "logits")
    if reduced >= 0:
        g.sink("scatter logits", reduced, logits)
        g.kept.add(reduced)
    else:
        g.kept.add(logits)
    return replay(g, alignments, detail=detail)


def reserve_dflash(
    facts: ModelFacts,
    shape: ContextShape,
    placement: Placement,
    *,
    alignments: tuple[int, ...],
    build: Build = CURRENT,
    detail: bool = False,
) -> Reserved:
    """Block decoder of a DFlash head: all rows through all blocks and the (borrowed) output matrix."""
    b = Builder(facts, shape, placement, build)
    g, size = b.graph, F32 * facts.n_embd * b.t
    x = g.op(size, "embeddings", b.input("tokens", I32 * b.t), device=HOST)
    for index in range(len(facts.layers)):
        following = placement.blocks[index + 1] if index + 1 < len(facts.layers) else placement.output
        if facts.conv_kernel and facts.conv_group:
            x = _convolved_block(b, index, x, following)
        else:
            x = block(b, index, x, gather=False, next_device=following)
    if facts.conv_kernel:
        b.input("selector lattice", F32 * facts.n_embd)
    g.device = placement.output
    normed = b.norm(x, "final norm")
    g.kept.add(normed)
    g.device = placement.matrix
    g.kept.add(b.mm(normed, facts.n_vocab, "logits"))
    return replay(g, alignments, detail=detail)


def _convolved_block(b: Builder, index: int, x: int, next_device: int) -> int:
    """DFlash2: what goes into attention and feed-forward part, and what comes out, is convolved."""
    b.enter(index, next_device)
    layer, width = b.facts.layers[index], 2 * b.facts.conv_kernel * (b.facts.n_embd // b.facts.conv_group)
    normed = b.norm(x, "attn norm")
    weights = b.mm(normed, width, "convolution weights")
    mixed = mixer(b, index, layer, _convolution(b, weights, lambda: normed))
    middle = b.same("attn residual", _convolution(b, weights, lambda: mixed), x)
    narrow = b.norm(middle, "ffn norm")
    weights = b.mm(narrow, width, "convolution weights")

    def fed() -> int:
        return feed_forward(b, index, layer, _convolution(b, weights, lambda: narrow))

    return b.same("block out", _convolution(b, weights, fed), middle, device=b.tail)


def _convolution(b: Builder, weights: int, source: Callable[[], int]) -> int:
    """Sum over taps of shifted rows times weights that depend on the row (`build_dflash2_conv`).

    Args:
        source: the rows; llama.cpp computes them after the first tap's weights.
    """
    g, size, kernel = b.graph, F32 * b.facts.n_embd * b.t, b.facts.conv_kernel
    side = g.op(g.sizes[weights] // 2, "convolution side", weights)
    wide = b.same("convolution wide", g.op(size * kernel, "convolution repeated", side))
    x = total = -1
    for tap in range(min(kernel, b.t)):
        weight = g.op(size, "convolution tap", wide)
        x = x if tap else source()
        values = g.op(size, "shifted rows", x) if tap else x
        term = b.same("convolution term", weight, values)
        total = b.same("convolution sum", total, term) if tap else term
    return total
