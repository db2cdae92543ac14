"""Recurrent mixers of a block as graph sizes: gated delta net, Mamba 1 and 2, short convolution."""

from __future__ import annotations

from localspec.budget.builder import F32, I32, Builder


def _states(b: Builder) -> tuple[int, int]:
    """(convolution, state matrix) rows gathered for the micro-batch's sequences."""
    g = b.graph
    ids = b.input("state ids", I32 * b.shape.n_seq)
    return g.op(F32 * b.facts.state_r * b.shape.n_seq, "convolution state", ids), ids


def delta_net(b: Builder, x: int) -> int:
    """Gated delta net of Qwen 3.5 / 3.6 / 3.8 and Qwen3-Next."""
    f, g, t = b.facts, b.graph, b.t
    channels = f.ssm_inner + 2 * f.ssm_groups * f.ssm_state
    conv_state, ids = _states(b)
    mixed = b.mm(x, channels, "QKV")
    joined = g.op(
        F32 * channels * (t + (f.ssm_conv - 1) * b.shape.n_seq), "convolution input", conv_state, mixed
    )
    g.sink("store convolution state", joined)
    state = g.op(F32 * f.state_s * b.shape.n_seq, "state", ids)
    conv = b.same("convolution silu", g.op(F32 * channels * t, "convolution", joined))
    q = g.op(F32 * f.ssm_groups * f.ssm_state * t, "Q", conv)
    k = g.op(F32 * f.ssm_groups * f.ssm_state * t, "K", conv)
    alpha = b.graph.op(F32 * f.ssm_heads * t, "decay", b.mm(x, f.ssm_heads, "alpha"))
    beta = b.graph.op(F32 * f.ssm_heads * t, "beta sigmoid", b.mm(x, f.ssm_heads, "beta"))
    snapshots = b.shape.n_rs_seq + 1
    out = g.op(
        F32 * (f.ssm_inner * t + f.state_s * snapshots * b.shape.n_seq),
        "delta net",
        q,
        k,
        conv,
        alpha,
        beta,
        state,
    )
    g.sink("store state", out)
    normed = g.op(F32 * f.ssm_inner * t, "normed", out)
    z = g.op(F32 * f.ssm_inner * t, "Z silu", b.mm(x, f.ssm_inner, "Z"))
    return b.mm(b.same("gated", normed, z), f.n_embd, "linear out")


def mamba2(b: Builder, x: int) -> int:
    """Mamba-2 mixer (Nemotron-H, Granite hybrid, Falcon-H1)."""
    f, g, t = b.facts, b.graph, b.t
    channels = f.ssm_inner + 2 * f.ssm_groups * f.ssm_state
    conv_state, ids = _states(b)
    projected = b.mm(x, f.ssm_inner + channels + f.ssm_heads, "ssm in")
    joined = g.op(
        F32 * channels * (t + (f.ssm_conv - 1) * b.shape.n_seq), "convolution input", conv_state, projected
    )
    g.sink("store convolution state", joined)
    conv = b.same("convolution silu", g.op(F32 * channels * t, "convolution", joined))
    dt = g.op(F32 * f.ssm_heads * t, "dt", projected)
    snapshots = b.shape.n_rs_seq + 1
    out = g.op(F32 * (f.ssm_inner * t + f.state_s * snapshots * b.shape.n_seq), "scan", conv, dt, ids)
    g.sink("store state", out)
    z = g.op(F32 * f.ssm_inner * t, "z", projected)
    scaled = g.op(F32 * f.ssm_inner * t, "x times d", conv)
    y = g.op(F32 * f.ssm_inner * t, "y", out, scaled, inplace=True)
    y = g.op(F32 * f.ssm_inner * t, "normed y", g.op(F32 * f.ssm_inner * t, "gated y", z, y))
    return b.mm(y, f.n_embd, "ssm out")


def short_convolution(b: Builder, x: int) -> int:
    """Gated short convolution (LFM2)."""
    f, g, t = b.facts, b.graph, b.t
    projected = b.mm(x, 3 * f.n_embd, "in")
    conv_state, _ = _states(b)
    gated = g.op(F32 * f.n_embd * t, "gated", projected)
    joined = g.op(F32 * (f.n_embd * t + f.state_r * b.shape.n_seq), "convolution input", conv_state, gated)
    g.sink("store convolution state", joined)
    conv = g.op(F32 * f.n_embd * t, "convolution", joined)
    y = g.op(F32 * f.n_embd * t, "y", projected, conv)
    return b.mm(y, f.n_embd, "out")


def mamba1(b: Builder, x: int) -> int:
    """Mamba-1 mixer (Mamba, Jamba)."""
    f, g, t = b.facts, b.graph, b.t
    inner = F32 * f.ssm_inner * t
    conv_state, ids = _states(b)
    projected = b.mm(x, 2 * f.ssm_inner, "ssm in")
    joined = g.op(inner + F32 * f.state_r * b.shape.n_seq, "convolution input", conv_state, projected)
    g.sink("store convolution state", joined)
    conv = b.same("convolution silu", g.op(inner, "convolution", joined))
    packed = b.mm(conv, f.ssm_heads + 2 * f.ssm_state, "dt, B and C")
    dt = b.mm(g.op(F32 * f.ssm_heads * t, "dt", packed), f.ssm_inner, "dt per channel")
    reads = [packed]
    if "inner_norms" in f.features:
        reads = [g.op(F32 * f.ssm_state * t, "B norm", packed), g.op(F32 * f.ssm_state * t, "C norm", packed)]
    out = g.op(inner + F32 * f.state_s * b.shape.n_seq, "scan", conv, dt, *reads, ids)
    g.sink("store state", out)
    z = g.op(inner, "z", projected)
    y = g.op(inner, "y", out, g.op(inner, "x times d", conv), inplace=True)
    return b.mm(g.op(inner, "gated y", z, y), f.n_embd, "ssm out")
