"""The worst-case compute graph of a model, as sizes: what llama.cpp's `src/models/*.cpp` would build.

Only tensors that take space in the compute buffer appear. Blocks that repeat are built once per kind
and neighbour, since the allocator reaches the same peaks again. Follows llama.cpp 0c1e57098.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from localspec.budget.attention import GATED
from localspec.budget.builder import OFFLOAD_ROWS, Builder
from localspec.budget.feed_forward import feed_forward, gemma4_experts
from localspec.budget.mixers import mixer
from localspec.budget.placement import Placement
from localspec.budget.replay import HOST, Reserved, replay
from localspec.budget.shape import CURRENT, Build, ContextShape
from localspec.header.facts import Layer, ModelFacts

F32 = 4
HANDS_OUT_VIEW = frozenset({*GATED, "jamba", "mamba", "mamba2"})
"""Recurrent mixers whose result is a view, which ggml never overwrites: the residual is, instead."""
ALL_ROWS = frozenset({
    "bailingmoe3", "deepseek4", "gemma4", "glm5-next", "gpt-oss", "mimo2", "nemotron_h", "nemotron_h_moe",
    "qwen35", "qwen35moe", "qwen3next", "step35",
})  # fmt: skip
"""Architectures that keep all rows up to the final norm (for hidden states) and gather outputs after it."""


def _distinct(
    facts: ModelFacts, placement: Placement, blocks: Sequence[int], taps: Collection[int]
) -> list[int]:
    """Blocks that show every kind in every neighbourhood; the first and the last always."""

    def look(block: int) -> tuple[object, ...]:
        layer: Layer = facts.layers[block]
        # weight sizes matter only where weights are copied
        bytes_seen = layer.expert_tensor_bytes if block in placement.host_experts else 0
        return (
            layer.kind, layer.n_head, layer.n_head_kv, layer.head_k, layer.head_v, layer.windowed,
            layer.own_kv, layer.n_ff, layer.n_ff_shared, layer.experts, bytes_seen, placement.blocks[block],
            block if block in taps else None,
        )  # fmt: skip

    kept: list[int] = []
    seen: set[object] = set()
    looks = [look(block) for block in blocks]
    for position, block in enumerate(blocks):
        step = tuple(looks[max(position - 2, 0) : position + 1])
        if step not in seen or position >= len(blocks) - 2:
            kept.append(block)
            seen.add(step)
    return kept


def reserve(
    facts: ModelFacts,
    shape: ContextShape,
    placement: Placement,
    *,
    alignments: tuple[int, ...],
    taps: tuple[int, ...] = (),
    nextn: bool = False,
    build: Build = CURRENT,
    detail: bool = False,
) -> Reserved:
    """Compute buffers of a model's context.

    Args:
        alignments: buffer alignment per device number, host first.
        taps: blocks whose inputs are kept for EAGLE-3 / DFlash.
        nextn: hidden states of all rows are read (MTP, EAGLE-3 on some architectures).
    """
    b = Builder(facts, shape, placement, build)
    x = b.embed()
    blocks = _distinct(facts, placement, range(facts.n_layer), taps)
    gather_late = facts.architecture in ALL_ROWS or nextn
    for position, index in enumerate(blocks):
        last = position == len(blocks) - 1 and not gather_late
        following = (
            placement.output if position == len(blocks) - 1 else placement.blocks[blocks[position + 1]]
        )
        if index in taps:
            b.graph.kept.add(x)
        x = block(b, index, x, gather=last, next_device=following)
    output(b, x, gather=gather_late)
    return replay(b.graph, alignments, detail=detail)


def block(b: Builder, index: int, x: int, *, gather: bool, next_device: int) -> int:
    """One block: mixer, residual, feed-forward part, residual.

    Args:
        gather: only output rows go on after the mixer (the last block of most architectures).
        next_device: where the following block or the output is.
    """
    layer, architecture = b.facts.layers[index], b.facts.architecture
    following = b.facts.layers[index + 1].kind if index + 1 < b.facts.n_layer else "none"
    b.enter(index, next_device, recurrent_next=following == "recurrent" and architecture not in GATED)
    residual = x
    pre_norm = architecture not in ("exaone4", "olmo2")
    cur = b.norm(x, "attn norm") if pre_norm else x
    if layer.kind == "none":
        cur = feed_forward(b, index, layer, cur)
        return b.same("block out", cur, residual, device=b.tail)
    cur = mixer(b, index, layer, cur)
    if gather:
        cur, residual = b.gather(cur, residual)
    if layer.kind == "recurrent" and architecture in HANDS_OUT_VIEW and not gather:
        cur, residual = residual, cur
    if not (layer.n_ff or layer.experts):
        return b.same("block out", cur, residual, device=b.tail)
    middle = b.same("attn residual", cur, residual)
    if layer.experts and architecture == "gemma4":
        cur = gemma4_experts(b, index, layer, middle)
    else:
        cur = feed_forward(b, index, layer, b.norm(middle, "ffn norm") if pre_norm else middle)
    ends = (middle, cur) if architecture == "phi3" else (cur, middle)
    out = b.same("block out", *ends, device=b.tail)
    return _own_embedding(b, out) if b.facts.n_embd_per_layer else out


def _own_embedding(b: Builder, x: int) -> int:
    """Gemma 3n / 4 E-series: the block's own embedding is mixed in."""
    gate = b.same("own embedding gate", b.mm(x, b.facts.n_embd_per_layer, "own embedding"))
    gate = b.same("own embedding gated", gate, b.own_embeddings())
    return b.same("block out", b.norm(b.mm(gate, b.facts.n_embd, "own embedding out")), x)


def output(b: Builder, x: int, *, gather: bool) -> None:
    """Final norm and output matrix; hidden states and logits are kept."""
    g, facts = b.graph, b.facts
    offloads = b.placement.n_devices > 0 and b.placement.op_offload and b.shape.n_outputs >= OFFLOAD_ROWS
    borrowed = b.placement.output == HOST and offloads
    g.device = 1 if borrowed else b.placement.output
    matrix = facts.embedding_bytes if facts.tied else facts.output_bytes
    b.density = matrix / max(facts.n_vocab * facts.n_embd, 1) if borrowed else 0.0
    if gather and facts.architecture == "gpt-oss":
        g.kept.add(x)
        cur = b.norm(b.gather(x)[0], "final norm")
    else:
        cur = b.norm(x, "final norm")
        g.kept.add(cur)
        cur = b.gather(cur)[0] if gather else cur
    g.kept.add(cur)
    logits = b.mm(cur, facts.n_vocab, "logits", b.shape.n_outputs)
    if "softcap" in facts.features:
        logits = b.same("softcap", logits)
    g.kept.add(logits)
