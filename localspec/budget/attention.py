"""Attention of a block as graph sizes: grouped, gated, latent (MLA), decompressed."""

from __future__ import annotations

from localspec.budget.builder import F16, F32, I64, Builder
from localspec.header.facts import Layer

NO_ROPE = ("nemotron_h", "nemotron_h_moe", "jamba")
GATED = ("qwen35", "qwen35moe", "qwen3next", "qwen4exp")
"""Attention with an output gate beside Q, and gated delta nets as recurrent blocks."""


def rotated(b: Builder, layer: Layer, cache: str, x: int | None) -> int:
    """`x` turned by a Hadamard matrix, as quantised caches store it (`attn_rot_k`, `attn_rot_v`)."""
    if x is None:
        return -1
    matrix = _rotation(b, layer, cache)
    return x if matrix is None else b.graph.op(b.graph.sizes[x], f"rotated {cache}", matrix, x)


def _rotation(b: Builder, layer: Layer, cache: str) -> int | None:
    """The rotation matrix of a cache, None when its type is not quantised or its heads differ."""
    kind = b.shape.type_k if cache == "K" else b.shape.type_v
    head = layer.head_k if cache == "K" else layer.head_v
    same = {la.head_k if cache == "K" else la.head_v for la in b.facts.layers
            if la.n_head_kv and la.windowed == layer.windowed}  # fmt: skip
    if not b.build.rotated_caches or kind in ("f32", "f16", "bf16") or len(same) != 1 or head % 64:
        return None
    width = 64
    while cache == "K" and head % (2 * width) == 0:
        width *= 2
    return b.input(f"{cache} rotation{_suffix(layer)}", F32 * width * width)


def _suffix(layer: Layer) -> str:
    return " (window)" if layer.windowed else ""


def _store(b: Builder, layer: Layer, k: int, v: int, device: int) -> None:
    """Write K and V (-1: none) into the caches."""
    g, t = b.graph, b.t
    if k >= 0:
        rows = (b.input("K rows" + _suffix(layer), I64 * t),) if b.build.index_inputs else ()
        g.sink("store K", k, *rows, device=device)
    if v >= 0:
        # Without flash attention V is stored transposed, padded to the widest block.
        per_token = 1 if b.shape.flash else max(la.n_head_kv * la.head_v for la in b.facts.layers)
        if not b.shape.flash and layer.n_head_kv * layer.head_v < per_token:
            v = g.op(F32 * per_token * t, "padded V", v)
        rows = (b.input("V rows" + _suffix(layer), I64 * t * per_token),) if b.build.index_inputs else ()
        g.sink("store V", v, *rows, device=device)


def attend(b: Builder, index: int, layer: Layer, q: int, k: int, v: int) -> int:
    """Store K and V, attend, and return the heads side by side."""
    g, t, shape = b.graph, b.t, b.shape
    k_cache, v_cache = b.cache(layer, index)
    _store(b, layer, k, v, g.devices[k_cache])
    here = g.device
    g.device = b.core
    mask = b.mask(layer)
    cells = shape.cells(layer.windowed, b.facts.window)
    out = F32 * layer.n_head * layer.head_v * t
    if shape.flash:
        if shape.type_k == "f32":
            k_cache = g.op(F16 * layer.n_head_kv * layer.head_k * cells * shape.streams, "K as f16", k_cache)
        if shape.type_v == "f32":
            v_cache = g.op(F16 * layer.n_head_kv * layer.head_v * cells * shape.streams, "V as f16", v_cache)
        cur = g.op(out, "attention", q, k_cache, v_cache, mask)
    else:
        scores = g.op(F32 * layer.n_head * cells * t, "scores", k_cache, q)
        if "attn_softcap" in b.facts.features:
            scores = b.same("capped scores", scores)
        cur = g.op(out, "heads", g.op(out, "weighted V", v_cache, b.same("softmax", scores, mask)))
    matrix = _rotation(b, layer, "V")
    if matrix is not None:
        cur = g.op(out, "rotated back", matrix, cur)
    g.device = here
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
        k = _split_heads(b, raw, k_width, "K") if _has_rope(b, index, layer) else raw
        return raw, rotated(b, layer, "K", k)

    def values(raw: int) -> int:
        v = raw if shared else b.mm(x, v_width, "V")
        return rotated(b, layer, "V", g.op(F32 * v_width * b.t, "V norm", v) if norm_v else v)

    if f.windowed:
        raw, k = keys()
        return k, values(raw)
    v = values(-1)
    return keys()[1], v


def attention(b: Builder, index: int, layer: Layer, x: int) -> int:
    """Multi-head or grouped attention with separate or fused Q, K, V."""
    g, t, f = b.graph, b.t, b.facts
    q_width, k_width = layer.n_head * layer.head_k, layer.n_head_kv * layer.head_k
    gated = f.architecture in GATED
    if "fused_qkv" in f.features and not gated:
        full = b.mm(x, q_width + k_width + layer.n_head_kv * layer.head_v, "QKV")
        q = rotated(b, layer, "K", _split_heads(b, full, q_width, "Q"))
        v = rotated(b, layer, "V", full)
        k = rotated(b, layer, "K", _split_heads(b, full, k_width, "K"))
    else:
        full = b.mm(x, q_width * (2 if gated else 1), "Q and gate" if gated else "Q")
        q = _split_heads(b, full, q_width, "Q") if _has_rope(b, index, layer) else full
        q = rotated(b, layer, "K", q)
        k, v = _keys_and_values(b, index, layer, x) if layer.own_kv else (-1, -1)
    cur = attend(b, index, layer, q, k, v)
    if gated:
        opened = b.same("gate sigmoid", g.op(F32 * q_width * t, "gate", full))
        # flash attention hands out a view, which is never overwritten
        cur = b.same("gated", *((opened, cur) if b.shape.flash else (cur, opened)))
    return b.mm(cur, f.n_embd, "attn out")


def latent_attention(b: Builder, index: int, layer: Layer, x: int) -> int:
    """MLA with absorbed matrices: one compressed K head, V is a view of it."""
    f, g, t = b.facts, b.graph, b.t
    if f.q_lora_rank:
        q = b.norm(b.mm(x, f.q_lora_rank, "Q low rank"))
        q = b.mm(q, layer.n_head * f.mla_head_k, "Q")
    else:
        q = b.mm(x, layer.n_head * f.mla_head_k, "Q")
    absorbed = g.op(F32 * layer.n_head * f.kv_lora_rank * t, "Q absorbed", q)
    rope = g.op(F32 * layer.n_head * f.rope_dim * t, "Q rope", q, b.positions())
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
        values = g.op(F16 * f.kv_lora_rank * cells, "V transposed", k_cache)
        cur = g.op(heads, "weighted V", values, scores)
        cur = g.op(F32 * layer.n_head * f.mla_head_v * t, "V up", cur)
        cur = g.op(g.sizes[cur], "heads", cur)
    return b.mm(cur, f.n_embd, "attn out")


def decompressed_attention(b: Builder, index: int, layer: Layer, x: int) -> int:
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
    q, k, v = rotated(b, layer, "K", q), rotated(b, layer, "K", k), rotated(b, layer, "V", v)
    return b.mm(attend(b, index, layer, q, k, v), f.n_embd, "attn out")
