"""Turn a catalogue entry (`facts` of models.toml) or a short header into `ModelFacts`.

Both know the shapes but not the tensor table, so bytes per block are derived: the embedding and output
matrices from the quantisation label (llama.cpp's rule for each file type), the rest of the file spread
over the blocks by their element counts. Good to about 1 % of the file; shown with `~`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from localspec.errors import unknown
from localspec.header.architecture import guess_tied
from localspec.header.facts import Layer, ModelFacts
from localspec.header.reader import Header

CATALOGUE_KEYS = {
    "architecture": "general.architecture",
    "n_layer": "block_count",
    "n_nextn": "nextn_predict_layers",
    "n_embd": "embedding_length",
    "n_vocab": "vocab_size",
    "n_ctx_train": "context_length",
    "n_head": "attention.head_count",
    "n_head_kv": "attention.head_count_kv",
    "head_k": "attention.key_length",
    "head_v": "attention.value_length",
    "head_k_swa": "attention.key_length_swa",
    "head_v_swa": "attention.value_length_swa",
    "n_ff": "feed_forward_length",
    "window": "attention.sliding_window",
    "window_pattern": "attention.sliding_window_pattern",
    "attention_interval": "full_attention_interval",
    "shared_kv_layers": "attention.shared_kv_layers",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "rope_dim": "rope.dimension_count",
    "mla_head_k": "attention.key_length_mla",
    "mla_head_v": "attention.value_length_mla",
    "n_expert": "expert_count",
    "n_expert_used": "expert_used_count",
    "n_ff_expert": "expert_feed_forward_length",
    "n_ff_shared": "expert_shared_feed_forward_length",
    "dense_lead": "leading_dense_block_count",
    "ssm_conv": "ssm.conv_kernel",
    "ssm_inner": "ssm.inner_size",
    "ssm_state": "ssm.state_size",
    "ssm_groups": "ssm.group_count",
    "ssm_heads": "ssm.time_step_rank",
    "shortconv": "shortconv.l_cache",
    "n_embd_per_layer": "embedding_length_per_layer_input",
    "target_layers": "target_layers",
    "target_hidden": "target_hidden_size",
    "block_size": "block_size",
}
"""Catalogue fact -> GGUF key (below the architecture) that says the same."""

DIRECT_KEYS = ("n_head_kv_swa", "tied", "embedding_type", "output_type", "own_embedding", "own_output",
               "n_draft_vocab", "base_models", "state_bytes")  # fmt: skip
"""Further facts: KV heads of windowed blocks, tensor types of the two big matrices, …"""

_BITS = {"F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q6_K": 6.5625, "Q5_K": 5.5, "Q5_0": 5.5, "Q5_1": 6,
         "Q4_K": 4.5, "Q4_0": 4.5, "Q4_1": 5, "Q3_K": 3.4375, "Q2_K": 2.625, "IQ4_XS": 4.25, "IQ4_NL": 4.5,
         "IQ3_S": 3.4375, "IQ3_XXS": 3.0625, "MXFP4": 4.25}  # fmt: skip
_TOKENIZER_BYTES = 36
"""Header bytes per vocabulary entry: text, merge, score and type."""


def matrix_types(label: str, tied: bool) -> tuple[str, str]:
    """(embedding type, output type) of a file type label, by llama.cpp's `llama_tensor_get_type`."""
    base = label.upper().removeprefix("UD-")
    base = base.removesuffix("_XL").removesuffix("_L").removesuffix("_M").removesuffix("_S")
    if base in ("F32", "F16", "BF16", "Q8_0", "Q6_K"):
        return base, base
    if base.startswith(("MXFP4", "NVFP4")):
        return "Q8_0", "Q8_0"
    if tied:
        return "Q6_K", "Q6_K"
    if base.startswith(("IQ1", "IQ2")):
        return "Q2_K", "Q5_K"
    if base.startswith("IQ3"):
        return "IQ3_S", "Q6_K"
    return (base if base in _BITS else "Q4_K"), "Q6_K"


def _attention_elements(facts: ModelFacts, layer: Layer) -> float:
    if layer.n_head == 0:
        return 0
    if facts.mla:
        q_in, q_out = facts.q_lora_rank or facts.n_embd, layer.n_head * facts.mla_head_k
        query = facts.n_embd * facts.q_lora_rank + q_in * q_out
        nope = facts.mla_head_k - facts.rope_dim
        key_value = facts.n_embd * (facts.kv_lora_rank + facts.rope_dim)
        key_value += facts.kv_lora_rank * layer.n_head * (nope + facts.mla_head_v)
        return query + key_value + layer.n_head * facts.mla_head_v * facts.n_embd
    gate = 2 if facts.architecture.startswith(("qwen35", "qwen3next", "qwen4")) else 1
    query, out = gate * layer.n_head * layer.head_k, layer.n_head * layer.head_v
    return facts.n_embd * (query + out + layer.n_head_kv * (layer.head_k + layer.head_v))


def _recurrent_elements(facts: ModelFacts) -> float:
    channels = facts.ssm_inner + 2 * facts.ssm_groups * facts.ssm_state
    return facts.n_embd * (channels + 2 * facts.ssm_inner + 2 * facts.ssm_heads) + channels * facts.ssm_conv


def _feed_forward_elements(facts: ModelFacts, layer: Layer) -> float:
    matrices = 2 if facts.architecture in ("nemotron_h", "nemotron_h_moe") else 3
    router = facts.n_embd * facts.n_expert if layer.experts else 0
    return matrices * facts.n_embd * (layer.n_ff + layer.n_ff_shared) + router


def dense_elements(facts: ModelFacts, layer: Layer) -> float:
    """Weights of a block without its routed experts, by its shapes."""
    elements = _attention_elements(facts, layer) + _feed_forward_elements(facts, layer)
    return elements + (_recurrent_elements(facts) if layer.kind in ("recurrent", "both") else 0)


def _more_bits(label: str, block: int, n_layer: int) -> float:
    """Extra weight of the blocks in which the `_M` mixes give a third of the elements two more bits."""
    if not label.upper().endswith(("Q4_K_M", "Q5_K_M")):
        return 1.0
    eighth = n_layer // 8
    more = block < eighth or block >= 7 * n_layer // 8 or (block - eighth) % 3 == 2
    return 1.15 if more and label.upper().endswith("Q4_K_M") else 1.07 if more else 1.0


def with_estimated_bytes(
    facts: ModelFacts, embedding_type: str | None = None, output_type: str | None = None
) -> ModelFacts:
    """The same facts with the file's bytes spread over embedding, output and blocks."""
    by_label = matrix_types(facts.file_type, facts.tied)
    cells = facts.n_vocab * facts.n_embd
    embedding = int(cells * _BITS[embedding_type or by_label[0]] / 8) if facts.own_embedding else 0
    rows = facts.n_draft_vocab or facts.n_vocab
    separate = facts.own_output and not facts.tied
    output = int(rows * facts.n_embd * _BITS[output_type or by_label[1]] / 8) if separate else 0
    host = int(facts.n_vocab * facts.n_embd_per_layer * facts.n_layer * _BITS[by_label[0]] / 8)
    if embedding + output + host > facts.size_bytes:  # not in this file after all
        embedding = output = host = 0
    fusion = len(facts.target_layers) * facts.n_embd * (facts.target_hidden or facts.n_embd)
    body = max(facts.size_bytes - embedding - output - host - facts.n_vocab * _TOKENIZER_BYTES, 0)
    dense_bits = 2.0 if facts.file_type.upper().startswith("MXFP4") else 1.0
    dense, expert = [], []
    for n, layer in enumerate(facts.layers):
        mixed = _more_bits(facts.file_type, n, facts.n_layer)
        elements = dense_elements(facts, layer)
        elements += 2 * facts.n_embd**2 if n >= facts.n_layer else 0
        dense.append(elements * mixed * dense_bits)
        expert.append(
            3.0 * facts.n_expert * facts.n_embd * facts.n_ff_expert * mixed if layer.experts else 0.0
        )
    total = sum(dense) + sum(expert) + fusion * dense_bits
    scale = body / total if total else 0.0
    layers = tuple(
        replace(
            layer,
            weight_bytes=int(dense[n] * scale),
            expert_bytes=int(expert[n] * scale),
            expert_tensor_bytes=int(expert[n] * scale / 3),
        )
        for n, layer in enumerate(facts.layers)
    )
    return replace(
        facts,
        layers=layers,
        embedding_bytes=embedding,
        output_bytes=output + int(fusion * dense_bits * scale),
        host_bytes=host,
        estimated=True,
    )


def _metadata(facts: Mapping[str, Any], architecture: str) -> dict[str, object]:
    metadata: dict[str, object] = {"general.architecture": architecture}
    for key, gguf_key in CATALOGUE_KEYS.items():
        value = facts.get(key)
        if value is None or key == "architecture":
            continue
        metadata[f"{architecture}.{gguf_key}"] = tuple(value) if isinstance(value, list) else value
    nextn = int(facts.get("n_nextn") or 0)
    if "n_layer" in facts:
        metadata[f"{architecture}.block_count"] = int(facts["n_layer"]) + nextn
    return metadata


def _with_window_heads(facts: ModelFacts, n_head_kv: int) -> ModelFacts:
    layers = tuple(replace(layer, n_head_kv=n_head_kv) if layer.windowed else layer for layer in facts.layers)
    return replace(facts, layers=layers)


_MEAN_BITS = {"Q4_K": 4.85, "Q5_K": 5.7, "Q6_K": 6.56, "Q8_0": 8.5, "Q4_0": 4.6, "Q3_K": 3.9, "Q2_K": 3.0}


def _with_widths(facts: ModelFacts) -> ModelFacts:
    """Feed-forward widths that the row leaves out, from the file's size and its label's bits per weight."""
    if not facts.layers or not facts.n_embd or facts.n_ff_expert or any(layer.n_ff for layer in facts.layers):
        return facts
    label = facts.file_type.upper().removeprefix("UD-")
    bits = next((b for start, b in _MEAN_BITS.items() if label.startswith(start)), _BITS.get(label, 5.0))
    matrices = facts.n_vocab * facts.n_embd * (1 if facts.tied else 2)
    weights = (
        facts.size_bytes * 8 / bits - matrices - sum(dense_elements(facts, layer) for layer in facts.layers)
    )
    if facts.n_expert:
        share = 3 * facts.n_embd * facts.n_expert * len(facts.layers)
        return replace(facts, n_ff_expert=max(int(weights / share), 1))
    width = max(int(weights / (3 * facts.n_embd * len(facts.layers))), facts.n_embd)
    return replace(facts, layers=tuple(replace(layer, n_ff=width) for layer in facts.layers))


def _missing(facts: ModelFacts, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Facts without which no plan can be honest."""
    missing = [key for key in ("architecture", "n_layer", "n_embd", "n_vocab") if not given.get(key)]
    attends = any(layer.kind in ("attention", "both") for layer in facts.layers)
    if attends and not given.get("n_head"):
        missing.append("n_head")
    if (
        any(layer.kind in ("recurrent", "both") for layer in facts.layers)
        and not facts.state_r + facts.state_s
    ):
        missing.append("ssm_inner")
    if given.get("n_expert") and not given.get("n_expert_used"):
        missing.append("n_expert_used")
    if not facts.size_bytes:
        missing.append("size")
    return tuple(missing)


def facts_from_catalogue(
    facts: Mapping[str, Any], size_bytes: int, *, name: str = "", file_type: str = ""
) -> ModelFacts:
    """Facts of a catalogue row; whatever is missing is listed in `unknown`.

    Args:
        facts: the row's `facts` table: `CATALOGUE_KEYS` and `DIRECT_KEYS`; per-block values may be lists.
        size_bytes: size of the file(s), 0 when unknown.
        name: model name for messages.
        file_type: quantisation label of the file, such as `Q4_K_M`.

    Raises:
        UsageError: an unknown key.
        ModelFileError: a block count no model has.
    """
    from localspec.header.header_facts import facts_from_header

    for key in facts:
        if key not in CATALOGUE_KEYS and key not in DIRECT_KEYS:
            raise unknown("model fact", key, [*CATALOGUE_KEYS, *DIRECT_KEYS])
    architecture = str(facts.get("architecture") or "unknown")
    lengths = {"tokenizer.ggml.tokens": int(facts.get("n_vocab") or 0)}
    header = Header(name or architecture, _metadata(facts, architecture), (), size_bytes, False, lengths)
    built = facts_from_header(header)
    if facts.get("n_head_kv_swa"):
        built = _with_window_heads(built, int(facts["n_head_kv_swa"]))
    if facts.get("state_bytes") and not built.state_r + built.state_s:
        built = replace(built, state_s=int(facts["state_bytes"]) // 4)
    built = replace(
        built,
        file_type=file_type,
        tied=bool(facts.get("tied", guess_tied(architecture, built.n_embd))),
        own_embedding=bool(facts.get("own_embedding", architecture not in ("eagle3", "dflash"))),
        own_output=bool(facts.get("own_output", architecture != "dflash")),
        n_draft_vocab=int(facts.get("n_draft_vocab") or 0),
        base_models=tuple(facts.get("base_models") or ()),
        unknown=_missing(built, facts),
    )
    built = _with_widths(built)
    return with_estimated_bytes(built, facts.get("embedding_type"), facts.get("output_type"))
