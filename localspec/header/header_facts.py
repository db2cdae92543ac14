"""Turn a GGUF header into `ModelFacts`.

With a short header (64 KiB) the hyper-parameters are all there but the tensor table is not; per-block
bytes are then derived from the file size by the catalogue's rule. Knows which keys and tensor names
mean what; loads nothing.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from localspec.errors import ModelFileError
from localspec.header.architecture import (
    ASSISTANT,
    DEFAULT_WINDOW,
    MULTI_ROPE,
    MULTI_ROPE_WITH_SECTIONS,
    block_kind,
    first_shared_block,
    guess_tied,
    window_pattern,
)
from localspec.header.facts import Layer, ModelFacts
from localspec.header.reader import Header, Tensor, printable

MAX_BLOCKS = 512
LAZY_BYTES = 4 << 30
"""llama.cpp reads a per-layer embedding table above this size row by row and keeps it on disk."""

FEATURES = {
    "fused_qkv": "attn_qkv.weight",
    "qk_norm": "attn_q_norm.weight",
    "fused_experts": "ffn_gate_up_exps.weight",
    "shared_gate": "ffn_gate_inp_shexp.weight",
    "expert_bias": "exp_probs_b.bias",
    "no_v": "",
    "no_gate": "",
    "fused_gate_up": "",
    "multi_rope": "",
    "softcap": "",
    "attn_softcap": "",
    "inner_norms": "ssm_b_norm.weight",
    "no_block_scale": "",
}
"""Marks of the compute graph and, where there is one, the block tensor that shows it."""

F32_BYTES = 4
_HEAD = re.compile(r"head\.(\d+)\.lm_head\.weight$")
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)$")
_INPUT = ("token_embd.weight", "position_embd.weight", "token_types.weight", "per_layer_token_embd.weight")
_OUTPUT = ("output.", "output_norm.", "enc.output_norm.", "fc.", "d2t", "markov_", "selector_", "conf_proj.",
           "cls.", "dense_", "altup_", "nextn.post_projection.")  # fmt: skip
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16",
    36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4",
}  # fmt: skip


@dataclass(slots=True)
class _Keys:
    """Typed access to `<architecture>.<key>`."""

    header: Header
    architecture: str

    def raw(self, key: str) -> object:
        return self.header.get(f"{self.architecture}.{key}")

    def integer(self, key: str, default: int = 0) -> int:
        value = self.raw(key)
        if isinstance(value, tuple) and value and isinstance(value[0], int):
            value = value[0]
        return max(value, 0) if isinstance(value, int) and not isinstance(value, bool) else default

    def per_block(self, key: str, count: int, default: int = 0) -> list[int]:
        value = self.raw(key)
        if isinstance(value, tuple):
            values = [max(int(v), 0) if isinstance(v, int) else 0 for v in value[:count]]
            return values + [0] * (count - len(values))
        return [max(value, 0) if isinstance(value, int) else default] * count

    def texts(self, prefix: str) -> Iterable[str]:
        for key in (f"{prefix}.name", f"{prefix}.repo_url", f"{prefix}.organization"):
            value = self.header.get(key)
            if isinstance(value, str) and value:
                yield value


@dataclass(slots=True)
class _Bytes:
    """Tensor bytes sorted by where llama.cpp puts them."""

    blocks: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    experts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    largest_expert: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    without_ffn: set[int] = field(default_factory=set)
    """Blocks that have tensors, but no dense feed-forward ones."""
    embedding: int = 0
    output: int = 0
    host: int = 0


def _sort_tensors(tensors: Sequence[Tensor]) -> _Bytes:
    total = _Bytes()
    for tensor in tensors:
        match = _BLOCK.match(tensor.name)
        if match:
            block = int(match[1])
            if "_exps." in match[2]:
                total.experts[block] += tensor.size_bytes
                total.largest_expert[block] = max(total.largest_expert[block], tensor.size_bytes)
            else:
                total.blocks[block] += tensor.size_bytes
        elif tensor.name == "token_embd.weight":
            total.embedding += tensor.size_bytes
        elif tensor.name in _INPUT:
            if not tensor.name.startswith("per_layer") or tensor.size_bytes <= LAZY_BYTES:
                total.host += tensor.size_bytes
        elif tensor.name.startswith(_OUTPUT):
            total.output += tensor.size_bytes
        else:
            # rope factors and projections shared by all blocks live where the first block does
            total.blocks[0] += tensor.size_bytes
    blocks = (_BLOCK.match(tensor.name) for tensor in tensors)
    dense = {int(match[1]) for match in blocks if match and match[2].startswith(("ffn_up.", "ffn_down."))}
    total.without_ffn = set(total.blocks) - dense
    return total


def _features(header: Header, keys: _Keys) -> frozenset[str]:
    names = {tensor.name: tensor for tensor in header.tensors}
    found = {mark for mark, tail in FEATURES.items() if tail and any(n.endswith("." + tail) for n in names)}
    first = {match[2] for name in names if (match := _BLOCK.match(name))}
    if header.complete and "attn_k.weight" in first and "attn_v.weight" not in first:
        found.add("no_v")
    if "ffn_up.weight" in first and "ffn_gate.weight" not in first:
        up = next(t for n, t in names.items() if n.endswith(".ffn_up.weight"))
        down = next((t for n, t in names.items() if n.endswith(".ffn_down.weight")), up)
        found.add("fused_gate_up" if up.shape[-1] == 2 * down.shape[0] else "no_gate")
    if keys.architecture == "gemma4" and first and "layer_output_scale.weight" not in first:
        found.add("no_block_scale")
    sections = keys.raw("rope.dimension_sections")
    has_sections = isinstance(sections, tuple) and len(sections) > 1 and all(sections[:2])
    if keys.architecture in MULTI_ROPE or (keys.architecture in MULTI_ROPE_WITH_SECTIONS and has_sections):
        found.add("multi_rope")
    if keys.raw("final_logit_softcapping"):
        found.add("softcap")
    if keys.raw("attn_logit_softcapping"):
        found.add("attn_softcap")
    return frozenset(found)


def _state(keys: _Keys, n_embd: int, n_head: int) -> tuple[int, int]:
    """(r, s) F32 elements per recurrent block and sequence: `n_embd_r` and `n_embd_s` of llama.cpp."""
    head = keys.integer("wkv.head_size")
    if head:
        return keys.integer("token_shift_count", 2) * n_embd, n_embd * head
    if keys.integer("shortconv.l_cache"):
        return n_embd * (keys.integer("shortconv.l_cache") - 1), 0
    conv = keys.integer("ssm.conv_kernel")
    kda = keys.integer("kda.head_dim")
    if kda:
        return 3 * max(conv - 1, 0 if conv else 3) * n_head * kda, kda * kda * n_head
    inner, state, groups = (keys.integer(f"ssm.{k}") for k in ("inner_size", "state_size", "group_count"))
    return max(conv - 1, 0) * (inner + 2 * groups * state), state * inner


def _n_vocab(header: Header, keys: _Keys) -> int:
    n_vocab = header.array_lengths.get("tokenizer.ggml.tokens", 0) or keys.integer("vocab_size")
    for tensor in header.tensors:
        if not n_vocab and tensor.name == "token_embd.weight" and len(tensor.shape) == 2:
            n_vocab = tensor.shape[1]
    return n_vocab


def _layers(keys: _Keys, total: _Bytes, n_layer: int, n_blocks: int, window: int) -> tuple[Layer, ...]:
    architecture = keys.architecture
    heads = keys.per_block("attention.head_count", n_blocks)
    heads_kv = (
        keys.per_block("attention.head_count_kv", n_blocks)
        if keys.raw("attention.head_count_kv") is not None
        else heads
    )
    n_head = next((h for h in heads if h), 0)
    size = keys.integer("embedding_length") // n_head if n_head else 0
    head_k, head_v = keys.integer("attention.key_length", size), keys.integer("attention.value_length", size)
    window_k = keys.integer("attention.key_length_swa", head_k)
    window_v = keys.integer("attention.value_length_swa", head_v)
    widths = keys.per_block("feed_forward_length", n_blocks)
    listed = n_blocks if architecture == ASSISTANT else n_layer
    windowed = window_pattern(architecture, listed, window, keys.raw("attention.sliding_window_pattern"))
    windowed += [False] * (n_blocks - listed)
    shared_from = first_shared_block(architecture, n_blocks, keys.integer("attention.shared_kv_layers"))
    interval = keys.integer("full_attention_interval", 4) or 4
    recurrent = keys.raw("attention.recurrent_layers")
    n_expert, dense_lead = keys.integer("expert_count"), keys.integer("leading_dense_block_count")
    shared = keys.integer("expert_shared_feed_forward_length")
    shared = shared or keys.integer("expert_shared_count") * keys.integer("expert_feed_forward_length")
    result = []
    for n in range(n_blocks):
        kind = block_kind(architecture, n, n_layer, heads_kv[n], widths[n], interval)
        if isinstance(recurrent, tuple) and n < min(len(recurrent), n_layer):
            kind = "recurrent" if recurrent[n] else "attention"
        experts = bool(total.experts.get(n)) if total.embedding else n_expert > 0 and n >= dense_lead
        dense = widths[n] if (not experts or architecture == "gemma4") and n not in total.without_ffn else 0
        result.append(
            Layer(
                kind=kind,  # type: ignore[arg-type]
                n_head=heads[n] if kind != "none" else 0,
                n_head_kv=heads_kv[n] if kind in ("attention", "both") else 0,
                head_k=window_k if windowed[n] else head_k,
                head_v=window_v if windowed[n] else head_v,
                windowed=windowed[n] and kind == "attention",
                own_kv=n < shared_from,
                n_ff=dense,
                n_ff_shared=shared if experts else 0,
                experts=experts,
                weight_bytes=total.blocks.get(n, 0),
                expert_bytes=total.experts.get(n, 0),
                expert_tensor_bytes=total.largest_expert.get(n, 0),
            )
        )
    return tuple(result)


def _base_models(keys: _Keys) -> tuple[str, ...]:
    count = keys.header.get("general.base_model.count")
    found = [text for n in range(min(count, 8) if isinstance(count, int) else 1)
             for text in keys.texts(f"general.base_model.{n}")]  # fmt: skip
    return tuple(dict.fromkeys(found))


def _label(header: Header) -> str:
    kind = header.get("general.file_type")
    return _FILE_TYPES.get(kind, "") if isinstance(kind, int) else ""


def _missing(facts: Mapping[str, int], complete: bool) -> tuple[str, ...]:
    needed = ["n_embd", "n_blocks", "n_vocab"] if complete else ["n_embd", "n_blocks"]
    return tuple(name for name in needed if not facts[name])


def _medusa(header: Header, facts: ModelFacts) -> ModelFacts:
    """Heads have no blocks: residual matrices that run in host memory, and output matrices."""
    matrices, residual = [0] * facts.n_layer, 0
    for tensor in header.tensors:
        match = _HEAD.match(tensor.name)
        if match and int(match[1]) < facts.n_layer:
            matrices[int(match[1])] = tensor.size_bytes
        else:
            residual += F32_BYTES * math.prod(tensor.shape)
    return replace(facts, layers=(), host_bytes=residual, head_matrices=tuple(matrices))


def facts_from_header(header: Header) -> ModelFacts:
    """Everything the budget and pairing need from a header.

    Raises:
        ModelFileError: no architecture, or a block count no model has.
    """
    architecture = header.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise ModelFileError(f"`{header.name}` names no architecture")
    keys = _Keys(header, architecture)
    n_blocks, n_nextn = keys.integer("block_count"), keys.integer("nextn_predict_layers")
    if not 0 <= n_blocks <= MAX_BLOCKS or not 0 <= n_nextn <= n_blocks:
        raise ModelFileError(f"`{header.name}` claims {n_blocks} blocks, {n_nextn} of them nextn")
    n_embd, n_layer = keys.integer("embedding_length"), n_blocks - n_nextn
    window = keys.integer("attention.sliding_window", DEFAULT_WINDOW.get(architecture, 0))
    total = _sort_tensors(header.tensors)
    layers = _layers(keys, total, n_layer, n_blocks, window)
    names = {tensor.name: tensor for tensor in header.tensors}
    n_vocab = _n_vocab(header, keys)
    output = names.get("output.weight")
    state_r, state_s = _state(keys, n_embd, layers[0].n_head if layers else 0)
    target_layers = keys.raw("target_layers")
    facts = ModelFacts(
        name=printable(header.get("general.name") or header.name),
        architecture=architecture,
        size_bytes=header.size_bytes,
        file_type=_label(header),
        n_ctx_train=keys.integer("context_length"),
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_layer=n_layer,
        n_nextn=n_nextn,
        layers=layers,
        window=window if any(layer.windowed for layer in layers) else 0,
        mla=bool(keys.integer("attention.key_length_mla")),
        kv_lora_rank=keys.integer("attention.kv_lora_rank"),
        q_lora_rank=keys.integer("attention.q_lora_rank"),
        rope_dim=keys.integer("rope.dimension_count"),
        mla_head_k=keys.integer("attention.key_length_mla"),
        mla_head_v=keys.integer("attention.value_length_mla"),
        state_r=state_r,
        state_s=state_s,
        ssm_conv=keys.integer("ssm.conv_kernel"),
        ssm_inner=keys.integer("ssm.inner_size"),
        ssm_state=keys.integer("ssm.state_size"),
        ssm_groups=keys.integer("ssm.group_count"),
        ssm_heads=keys.integer("ssm.time_step_rank"),
        n_expert=keys.integer("expert_count"),
        n_expert_used=keys.integer("expert_used_count"),
        n_ff_expert=keys.integer("expert_feed_forward_length", keys.integer("feed_forward_length"))
        if keys.integer("expert_count")
        else 0,
        tied=(output is None and "token_embd.weight" in names)
        if header.complete
        else guess_tied(architecture, n_embd),
        embedding_bytes=total.embedding,
        output_bytes=total.output,
        host_bytes=total.host,
        n_embd_per_layer=keys.integer("embedding_length_per_layer_input"),
        base_models=_base_models(keys),
        target_layers=tuple(v for v in target_layers if isinstance(v, int))
        if isinstance(target_layers, tuple)
        else (),
        target_hidden=keys.integer(
            "embedding_length_out" if architecture == ASSISTANT else "target_hidden_size"
        ),
        block_size=keys.integer("block_size"),
        conv_kernel=keys.integer("conv_kernel_size"),
        conv_group=keys.integer("conv_group_size"),
        n_draft_vocab=output.shape[1] if output and "d2t" in names and len(output.shape) == 2 else 0,
        own_embedding=not header.complete or "token_embd.weight" in names,
        own_output=not header.complete or output is not None,
        features=_features(header, keys),
        unknown=_missing({"n_embd": n_embd, "n_blocks": n_blocks, "n_vocab": n_vocab}, header.complete),
    )
    if architecture == "medusa":
        return _medusa(header, facts)
    if header.complete:
        return facts
    from localspec.header.catalogue_facts import with_estimated_bytes

    return with_estimated_bytes(facts)
