"""Token mixers of a block as graph sizes: attention (plain, gated, latent) and recurrent layers."""

from __future__ import annotations

from localspec.budget.builder import F32, I64, Builder
from localspec.header.facts import Layer

NO_ROPE = ("nemotron_h", "nemotron_h_moe", "jamba")
GATED = ("qwen35", "qwen35moe", "qwen3next", "qwen4exp")


def mixer(b: Builder, index: int, layer: Layer, x: int) -> int:
    """The block's mixer on normed input `x` (handle); returns its output, F32 [n_embd, t]."""
    if layer.kind == "recurrent":
        if b.facts.architecture in GATED:
            return _delta_net(b, x)
        return _mamba2(b, x) if b.facts.ssm_inner else _short_convolution(b, x)
    if layer.kind == "both":
        first = _mamba2(b, x)
        return b.same("hybrid sum", attention(b, index, layer, x), first)
    if b.facts.mla:
        return _latent_attention(b, index, layer, x)
    if b.facts.architecture == "deepseek2":
        return _decompressed_attention(b, index, layer, x)
    return attention(b, index, layer, x)


def _rotated(b: Builder, kind: str, width: int) -> bool:
    """Whether quantised caches are stored rotated by a Hadamard matrix (`attn_rot_k`, `attn_rot_v`)."""
    quantised = kind not in ("f32", "f16", "bf16")
    same = len({layer.head_k for layer in b.facts.layers if layer.n_head_kv}) == 1
    return quantised and same and width % 64 == 0


def attend(
    b: Builder, index: int, layer: Layer, q: int, k: int | None, v: int | None, sources: tuple[int, ...] = ()
) -> int:
    """Store K and V, attend, and return the heads side by side."""
    g, t, shape = b.graph, b.t, b.shape
    k_cache, v_cache = b.cache(layer, index)
    cache_device = g.devices[k_cache]
    rotate_k, rotate_v = _rotated(b, shape.type_k, layer.head_k), _rotated(b, shape.type_v, layer.head_v)
    if rotate_k:
        width = 64
        while layer.head_k % (2 * width) == 0:
            width *= 2
        matrix = b.input("K rotation", F32 * width * width)
        q = g.op(g.sizes[q], "rotated Q", matrix, q)
        k = g.op(g.sizes[k], "rotated K", matrix, k) if k is not None else None
    if rotate_v:
        matrix = b.input("V rotation", F32 * 64 * 64)
        v = g.op(g.sizes[v], "rotated V", matrix, v) if v is not None else None
    suffix = " (window)" if layer.windowed else ""
    if k is not None and b.build.index_inputs:
        g.sink("store K", k, b.input("K rows" + suffix, I64 * t), device=cache_device)
    elif k is not None:
        g.sink("store K", k, device=cache_device)
    if v is not None:
        per_token = 1 if shape.flash else max(la.n_head_kv * la.head_v for la in b.facts.layers)
        if not shape.flash and layer.n_head_kv * layer.head_v < per_token:
            v = g.op(F32 * per_token * t, "padded V", v)
        rows = (b.input("V rows" + suffix, I64 * t * per_token),) if b.build.index_inputs else ()
        g.sink("store V", v, *rows, device=cache_device)
    mask = b.mask(layer)
    cells = shape.cells(layer.windowed, b.facts.window)
    out = F32 * layer.n_head * layer.head_v * t
    if shape.flash:
        streams = shape.streams
        if shape.type_k == "f32":
            k_cache = g.op(2 * layer.n_head_kv * layer.head_k * cells * streams, "K as f16", k_cache)
        if shape.type_v == "f32":
            v_cache = g.op(2 * layer.n_head_kv * layer.head_v * cells * streams, "V as f16", v_cache)
        cur = g.op(out, "attention", q, k_cache, v_cache, mask)
    else:
        scores = g.op(F32 * layer.n_head * cells * t, "scores", k_cache, q)
        if "attn_softcap" in b.facts.features:
            scores = b.same("capped scores", scores)
        scores = b.same("softmax", scores, mask)
        heads = g.op(out, "weighted V", v_cache, scores)
        cur = g.op(out, "heads", heads)
    if rotate_v:
        cur = g.op(out, "rotated back", b.inputs["V rotation"], cur)
    return cur


def _split_heads(b: Builder, x: int, width: int, name: str) -> int:
    """Rope, after a norm in some models: the first of them reads a view, which ggml never overwrites."""
    return b.graph.op(F32 * width * b.t, f"{name} by head", x, b.positions())


def _has_rope(b: Builder, index: int, layer: Layer) -> bool:
    """Whether Q and K pass through a norm or rope, which copies them."""
    architecture = b.facts.architecture
    if "qk_norm" in b.facts.features:
        return True
    if architecture == "smollm3":
        return (index + 1) % 4 != 0
    return architecture not in NO_ROPE and (architecture != "cohere2" or layer.windowed)


def _keys_and_values(b: Builder, index: int, layer: Layer, x: int) -> tuple[int, int]:
    """K and V in the order in which ggml computes them: K first where windowed and global caches mix."""
    f, g = b.facts, b.graph
    k_width, v_width = layer.n_head_kv * layer.head_k, layer.n_head_kv * layer.head_v
    norm_v = f.architecture == "gemma4"
    shared = norm_v and "no_v" in f.features and not layer.windowed

    def keys() -> tuple[int, int]:
        raw = b.mm(x, k_width, "K")
        return raw, _split_heads(b, raw, k_width, "K") if _has_rope(b, index, layer) else raw

    def values(raw: int) -> int:
        v = raw if shared else b.mm(x, v_width, "V")
        return g.op(F32 * v_width * b.t, "V norm", v) if norm_v else v

    if f.windowed:
        raw, k = keys()
        return k, values(raw)
    v = values(-1)
    return keys()[1], v


def attention(b: Builder, index: int, layer: Layer, x: int) -> int:
    """Multi-head or grouped attention with separate or fused Q, K, V."""
    g, t = b.graph, b.t
    q_width, k_width = layer.n_head * layer.head_k, layer.n_head_kv * layer.head_k
    v_width = layer.n_head_kv * layer.head_v
    gate = None
    k: int | None
    v: int | None
    if "fused_qkv" in b.facts.features and b.facts.architecture not in GATED:
        qkv = b.mm(x, q_width + k_width + v_width, "QKV")
        q = g.op(F32 * q_width * t, "Q", qkv, b.positions())
        k, v = g.op(F32 * k_width * t, "K", qkv, b.positions()), qkv
    else:
        gated = b.facts.architecture in GATED
        q = b.mm(x, q_width * (2 if gated else 1), "Q and gate" if gated else "Q")
        full = q
        if _has_rope(b, index, layer):
            q = _split_heads(b, q, q_width, "Q")
        k = v = None
        if layer.own_kv:
            k, v = _keys_and_values(b, index, layer, x)
        if gated:
            gate = full
    cur = attend(b, index, layer, q, k, v)
    if gate is not None:
        opened = g.op(F32 * q_width * t, "gate", gate)
        opened = b.same("gate sigmoid", opened)
        # flash attention hands out a view, which is never overwritten
        cur = b.same("gated", *((opened, cur) if b.shape.flash else (cur, opened)))
    return b.mm(cur, b.facts.n_embd, "attn out")


def _latent_attention(b: Builder, index: int, layer: Layer, x: int) -> int:
    """MLA with absorbed matrices: one compressed K head, V is a view of it."""
    f, g, t = b.facts, b.graph, b.t
    if f.q_lora_rank:
        q = b.norm(b.mm(x, f.q_lora_rank, "Q low rank"))
        q = b.mm(q, layer.n_head * f.mla_head_k, "Q")
    else:
        q = b.mm(x, layer.n_head * f.mla_head_k, "Q")
    nope = f.mla_head_k - f.rope_dim
    absorbed = g.op(F32 * layer.n_head * f.kv_lora_rank * t, "Q absorbed", q)
    rope = g.op(F32 * layer.n_head * f.rope_dim * t, "Q rope", q, b.positions())
    del nope
    query = g.op(F32 * layer.n_head * (f.kv_lora_rank + f.rope_dim) * t, "Q latent", absorbed, rope)
    packed = b.mm(x, f.kv_lora_rank + f.rope_dim, "KV low rank")
    latent = g.op(F32 * f.kv_lora_rank * t, "KV norm", packed)
    k_rope = g.op(F32 * f.rope_dim * t, "K rope", packed, b.positions())
    key = g.op(F32 * (f.kv_lora_rank + f.rope_dim) * t, "K latent", latent, k_rope)
    k_cache, _ = b.cache(layer, index)
    rows = (b.input("K rows", I64 * t),) if b.build.index_inputs else ()
    g.sink("store K", key, *rows, device=g.devices[k_cache])
    mask = b.mask(layer)
    cells = b.shape.cells(False, 0)
    heads = F32 * layer.n_head * f.kv_lora_rank * t
    if b.shape.flash:
        cur = g.op(heads, "attention", query, k_cache, mask)
        cur = g.op(F32 * layer.n_head * f.mla_head_v * t, "V up", cur)
        cur = g.op(g.sizes[cur], "heads", cur)
    else:
        scores = b.same("softmax", g.op(F32 * layer.n_head * cells * t, "scores", k_cache, query), mask)
        values = g.op(F16_BYTES * f.kv_lora_rank * cells, "V transposed", k_cache)
        cur = g.op(heads, "weighted V", values, scores)
        cur = g.op(F32 * layer.n_head * f.mla_head_v * t, "V up", cur)
        cur = g.op(g.sizes[cur], "heads", cur)
    return b.mm(cur, f.n_embd, "attn out")


F16_BYTES = 2


def _decompressed_attention(b: Builder, index: int, layer: Layer, x: int) -> int:
    """DeepSeek-2 files without MLA tensors: heads are decompressed before they are cached."""
    f, g, t = b.facts, b.graph, b.t
    if f.q_lora_rank:
        q = b.norm(b.mm(x, f.q_lora_rank, "Q low rank"))
        q = b.mm(q, layer.n_head * layer.head_k, "Q")
    else:
        q = b.mm(x, layer.n_head * layer.head_k, "Q")
    q = _split_heads(b, q, layer.n_head * layer.head_k, "Q")
    nope = layer.head_k - f.rope_dim
    packed = b.mm(x, f.kv_lora_rank + f.rope_dim, "KV low rank")
    latent = g.op(F32 * f.kv_lora_rank * t, "KV norm", packed)
    kv = b.mm(latent, layer.n_head * (nope + layer.head_v), "KV")
    v = g.op(F32 * layer.n_head * layer.head_v * t, "V", kv)
    k_rope = g.op(F32 * f.rope_dim * t, "K rope", packed, b.positions())
    repeated = g.op(F32 * layer.n_head * f.rope_dim * t, "K rope repeated", k_rope)
    k = g.op(F32 * layer.n_head * layer.head_k * t, "K", kv, repeated)
    return b.mm(attend(b, index, layer, q, k, v), f.n_embd, "attn out")


def _states(b: Builder) -> tuple[int, int]:
    """(convolution, state matrix) rows gathered for the micro-batch's sequences."""
    g = b.graph
    ids = b.input("state ids", 4 * b.shape.n_seq)
    conv = g.op(F32 * b.facts.state_r * b.shape.n_seq, "convolution state", ids)
    return conv, ids


def _delta_net(b: Builder, x: int) -> int:
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


def _mamba2(b: Builder, x: int) -> int:
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


def _short_convolution(b: Builder, x: int) -> int:
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
