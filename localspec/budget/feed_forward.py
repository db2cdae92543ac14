"""Feed-forward parts of a block as graph sizes: dense, mixture of experts, shared experts."""

from __future__ import annotations

from localspec.budget.builder import F32, I32, OFFLOAD_ROWS, Builder
from localspec.budget.replay import HOST
from localspec.header.facts import Layer


def feed_forward(b: Builder, index: int, layer: Layer, x: int) -> int:
    """The block's feed-forward part on normed input `x`; returns F32 [n_embd, rows]."""
    if not layer.experts:
        return _dense(b, x, layer.n_ff)
    experts = _experts(b, index, layer, x)
    if not layer.n_ff_shared:
        return experts
    shared = _dense(b, x, layer.n_ff_shared)
    if "shared_gate" in b.facts.features:
        gate = b.same("shared gate sigmoid", b.mm(x, 1, "shared gate", _rows(b, x)), device=b.tail)
        shared = b.same("shared gated", shared, gate, device=b.tail)
    return b.same("ffn out", experts, shared, device=b.tail)


def _rows(b: Builder, x: int) -> int:
    return b.graph.sizes[x] // (F32 * b.facts.n_embd)


def _dense(b: Builder, x: int, width: int) -> int:
    rows = _rows(b, x)
    if "fused_gate_up" in b.facts.features:
        both = b.mm(x, 2 * width, "ffn gate and up", rows)
        act = b.graph.op(F32 * width * rows, "ffn activation", both)
    elif "no_gate" in b.facts.features:
        act = b.same("ffn activation", b.mm(x, width, "ffn up", rows))
    else:
        gate = b.mm(x, width, "ffn gate", rows)
        up = b.mm(x, width, "ffn up", rows)
        act = b.graph.op(F32 * width * rows, "ffn activation", gate, up, inplace=not b.build.fused_glu)
    return b.mm(act, b.facts.n_embd, "ffn down", rows)


def _experts(b: Builder, index: int, layer: Layer, x: int, logits: int | None = None) -> int:
    """Routed experts (`build_moe_ffn`)."""
    f, g, rows = b.facts, b.graph, _rows(b, x)
    used, width = f.n_expert_used, f.n_ff_expert
    scores = F32 * f.n_expert * rows
    if logits is None:
        logits = b.mm(x, f.n_expert, "router", rows)
    probs = b.same("router probabilities", logits)
    biased = (
        g.op(scores, "biased probabilities", probs, inplace=True) if "expert_bias" in f.features else probs
    )
    order = g.op(I32 * f.n_expert * rows, "expert order", biased)
    weights = g.op(F32 * used * rows, "expert weights", probs, order)
    total = g.op(F32 * rows, "weight sum", weights)
    weights = g.op(F32 * used * rows, "normed weights", weights, total)

    def routed(source: int, out_width: int, label: str) -> int:
        return _routed(b, index, layer, (source, order), F32 * out_width * used * rows, label)

    if f.architecture == "gemma4":
        x = g.op(g.sizes[x], "expert norm", x)
    if "fused_experts" in f.features:
        both = routed(x, 2 * width, "expert gate and up")
        act = g.op(F32 * width * used * rows, "expert activation", both)
    elif "no_gate" in f.features or f.architecture.startswith("nemotron"):
        act = b.same("expert activation", routed(x, width, "expert up"))
    else:
        up = routed(x, width, "expert up")
        gate = routed(x, width, "expert gate")
        act = g.op(F32 * width * used * rows, "expert activation", gate, up)
    down = routed(act, f.n_embd, "expert down")
    ends_block = not (layer.n_ff_shared or f.architecture == "gemma4")
    device = b.tail if ends_block else None
    down = b.same("weighted experts", down, weights, device=device)
    return g.op(F32 * f.n_embd * rows, "expert sum", down, device=device)


def _routed(b: Builder, index: int, layer: Layer, reads: tuple[int, int], size: int, label: str) -> int:
    """One product with the routed experts; host ones are copied to the first accelerator, whole."""
    on_host = b.density > 0 or index in b.placement.host_experts
    if not on_host:
        return b.graph.op(size, label, *reads)
    if not b.placement.op_offload or b.t < OFFLOAD_ROWS:
        return b.graph.op(size, label, *reads, device=HOST)
    weight = b.graph.buffer(layer.expert_tensor_bytes, label + " weight", HOST)
    return b.graph.op(size, label, weight, *reads, device=1)


def gemma4_experts(b: Builder, index: int, layer: Layer, x: int) -> int:
    """Gemma 4: routed experts and a dense part side by side, each with its own norm of the residual `x`."""
    g, size = b.graph, b.graph.sizes[x]
    logits = b.mm(g.op(size, "router norm", x), b.facts.n_expert, "router", _rows(b, x))
    moe = _experts(b, index, layer, x, logits)
    dense = b.norm(_dense(b, g.op(size, "ffn norm", x), layer.n_ff))
    return b.same("ffn combined", dense, b.norm(moe))
