"""Tensor tables of well-known architectures with the real shapes, and headers made of them.

For tests of the budget: a header needs no weights, so a 235B model costs a millisecond. Shapes follow
llama.cpp's `load_arch_tensors`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from localspec.header import Header, Tensor

Typing = Callable[[str, int, int], str]
"""(tensor name without `blk.N.`, block or -1, blocks) -> ggml type."""


@dataclass
class Table:
    """A header under construction."""

    architecture: str
    typing: Typing
    n_blocks: int
    metadata: dict[str, Any] = field(default_factory=dict)
    rows: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)

    def add(self, block: int, tail: str, *shape: int) -> None:
        name = tail if block < 0 else f"blk.{block}.{tail}"
        small = len(shape) == 1 or tail.startswith(("ffn_gate_inp", "ssm_a", "ssm_conv", "ssm_d"))
        self.rows.append((name, shape, "F32" if small else self.typing(tail, block, self.n_blocks)))

    def header(self, name: str = "model.gguf") -> Header:
        tensors, offset = [], 0
        for tensor, shape, kind in self.rows:
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
            elements = 1
            for n in shape:
                elements *= n
            total = elements // block * size
            tensors.append(Tensor(tensor, shape, kind, offset, total))
            offset += -(-total // 32) * 32
        metadata = {"general.architecture": self.architecture, "general.name": name}
        metadata |= {f"{self.architecture}.{key}": value for key, value in self.metadata.items()}
        return Header(name, metadata, tuple(tensors), offset, True)


def more_bits(block: int, n_blocks: int) -> bool:
    """llama.cpp's `use_more_bits`: the blocks that `_M` mixes favour."""
    return block < n_blocks // 8 or block >= 7 * n_blocks // 8 or (block - n_blocks // 8) % 3 == 2


def recipe(default: str, rules: Sequence[Sequence[str]] = ()) -> Typing:
    """Types by name part, first match wins; a third item `more` limits a rule to the favoured blocks."""

    def typing(tail: str, block: int, n_blocks: int) -> str:
        for rule in rules:
            part, kind = rule[0], rule[1]
            if not tail.startswith(part):
                continue
            if len(rule) < 3 or (rule[2] == "more" and more_bits(block, n_blocks)):
                return kind
            if rule[2] == "first" and block < n_blocks // 8:
                return kind
        return default

    return typing


def build(architecture: str, typing: Typing, **size: Any) -> Header:
    """A header of `architecture`; sizes by the catalogue's names (`n_layer`, `n_embd`, `n_head`, …)."""
    n_blocks = size["n_layer"] + size.get("n_nextn", 0)
    table = Table(architecture, typing, n_blocks)
    e, v = size["n_embd"], size["n_vocab"]
    table.metadata = {"block_count": n_blocks, "context_length": size.get("n_ctx_train", 32768),
                      "embedding_length": e, "vocab_size": v}  # fmt: skip
    for key, gguf_key in _KEYS.items():
        if key in size:
            value = size[key]
            table.metadata[gguf_key] = tuple(value) if isinstance(value, list) else value
    table.add(-1, "token_embd.weight", e, v)
    table.add(-1, "output_norm.weight", e)
    if not size.get("tied"):
        table.add(-1, "output.weight", e, v)
    for block in range(n_blocks):
        _BLOCKS.get(architecture, _dense)(table, block, size)
        if block >= size["n_layer"]:
            table.add(block, "nextn.eh_proj.weight", 2 * e, e)
            for tail in ("enorm", "hnorm", "shared_head_norm"):
                table.add(block, f"nextn.{tail}.weight", e)
    return table.header(size.get("name", f"{architecture}.gguf"))


_KEYS = {
    "n_nextn": "nextn_predict_layers", "n_head": "attention.head_count",
    "n_head_kv": "attention.head_count_kv",
    "head_k": "attention.key_length", "head_v": "attention.value_length", "n_ff": "feed_forward_length",
    "head_k_swa": "attention.key_length_swa", "head_v_swa": "attention.value_length_swa",
    "window": "attention.sliding_window", "window_pattern": "attention.sliding_window_pattern",
    "n_expert": "expert_count", "n_expert_used": "expert_used_count",
    "n_ff_expert": "expert_feed_forward_length",
    "n_ff_shared": "expert_shared_feed_forward_length", "dense_lead": "leading_dense_block_count",
    "kv_lora_rank": "attention.kv_lora_rank", "q_lora_rank": "attention.q_lora_rank",
    "rope_dim": "rope.dimension_count", "mla_head_k": "attention.key_length_mla",
    "mla_head_v": "attention.value_length_mla", "ssm_conv": "ssm.conv_kernel", "ssm_inner": "ssm.inner_size",
    "ssm_state": "ssm.state_size", "ssm_groups": "ssm.group_count", "ssm_heads": "ssm.time_step_rank",
    "softcap": "final_logit_softcapping", "shared_kv_layers": "attention.shared_kv_layers",
    "n_embd_per_layer": "embedding_length_per_layer_input",
}  # fmt: skip


def _attention(t: Table, block: int, s: dict[str, Any], *, gate: int = 1, norms: bool = False) -> None:
    e, heads, kv = s["n_embd"], s["n_head"], s["n_head_kv"]
    kv = kv[block] if isinstance(kv, list) else kv
    k, v = s.get("head_k", e // heads), s.get("head_v", e // heads)
    pattern = s.get("window_pattern")
    if isinstance(pattern, list) and pattern[block]:
        k, v = s.get("head_k_swa", k), s.get("head_v_swa", v)
    t.add(block, "attn_norm.weight", e)
    t.add(block, "attn_q.weight", e, heads * k * gate)
    t.add(block, "attn_k.weight", e, kv * k)
    t.add(block, "attn_v.weight", e, kv * v)
    t.add(block, "attn_output.weight", heads * v, e)
    if norms:
        t.add(block, "attn_q_norm.weight", k)
        t.add(block, "attn_k_norm.weight", k)


def _ffn(t: Table, block: int, e: int, width: int, suffix: str = "") -> None:
    t.add(block, f"ffn_gate{suffix}.weight", e, width)
    t.add(block, f"ffn_up{suffix}.weight", e, width)
    t.add(block, f"ffn_down{suffix}.weight", width, e)


def _experts(t: Table, block: int, s: dict[str, Any]) -> None:
    e, n, width = s["n_embd"], s["n_expert"], s["n_ff_expert"]
    t.add(block, "ffn_gate_inp.weight", e, n)
    t.add(block, "ffn_gate_exps.weight", e, width, n)
    t.add(block, "ffn_up_exps.weight", e, width, n)
    t.add(block, "ffn_down_exps.weight", width, e, n)
    if s.get("n_ff_shared"):
        _ffn(t, block, e, s["n_ff_shared"], "_shexp")


def _dense(t: Table, block: int, s: dict[str, Any]) -> None:
    _attention(t, block, s, norms=t.architecture in ("qwen3", "gemma3"))
    t.add(block, "ffn_norm.weight", s["n_embd"])
    _ffn(t, block, s["n_embd"], s["n_ff"])


def _gemma4(t: Table, block: int, s: dict[str, Any]) -> None:
    _dense(t, block, s)
    if not s["window_pattern"][block]:
        t.rows = [row for row in t.rows if row[0] != f"blk.{block}.attn_v.weight"]
    t.add(block, "post_attention_norm.weight", s["n_embd"])
    t.add(block, "post_ffw_norm.weight", s["n_embd"])


def _glm4(t: Table, block: int, s: dict[str, Any]) -> None:
    _attention(t, block, s)
    for tail in ("ffn_norm", "post_attention_norm", "post_ffw_norm"):
        t.add(block, f"{tail}.weight", s["n_embd"])
    t.add(block, "ffn_up.weight", s["n_embd"], 2 * s["n_ff"])
    t.add(block, "ffn_down.weight", s["n_ff"], s["n_embd"])


def _qwen3moe(t: Table, block: int, s: dict[str, Any]) -> None:
    _attention(t, block, s, norms=True)
    t.add(block, "ffn_norm.weight", s["n_embd"])
    _experts(t, block, s)


def _gpt_oss(t: Table, block: int, s: dict[str, Any]) -> None:
    _attention(t, block, s)
    t.add(block, "attn_sinks.weight", s["n_head"])
    t.add(block, "post_attention_norm.weight", s["n_embd"])
    _experts(t, block, s)
    for tail, width in (("gate", s["n_ff_expert"]), ("up", s["n_ff_expert"]), ("down", s["n_embd"])):
        t.rows.append((f"blk.{block}.ffn_{tail}_exps.bias", (width, s["n_expert"]), "F32"))


def _glm4moe(t: Table, block: int, s: dict[str, Any]) -> None:
    _attention(t, block, s)
    t.add(block, "post_attention_norm.weight", s["n_embd"])
    if block < s.get("dense_lead", 0):
        _ffn(t, block, s["n_embd"], s["n_ff"])
    else:
        _experts(t, block, s)
        t.add(block, "exp_probs_b.bias", s["n_expert"])


def _deepseek2(t: Table, block: int, s: dict[str, Any]) -> None:
    e, heads, rank, rope = s["n_embd"], s["n_head"], s["kv_lora_rank"], s["rope_dim"]
    head_k, head_v = s.get("mla_head_k", s["head_k"]), s.get("mla_head_v", s["head_v"])
    t.add(block, "attn_norm.weight", e)
    t.add(block, "attn_kv_a_mqa.weight", e, rank + rope)
    t.add(block, "attn_output.weight", heads * head_v, e)
    if s.get("q_lora_rank"):
        t.add(block, "attn_q_a.weight", e, s["q_lora_rank"])
        t.add(block, "attn_q_b.weight", s["q_lora_rank"], heads * head_k)
    else:
        t.add(block, "attn_q.weight", e, heads * head_k)
    if "mla_head_k" in s:
        t.add(block, "attn_k_b.weight", head_k - rope, rank, heads)
        t.add(block, "attn_v_b.weight", rank, head_v, heads)
    else:
        t.add(block, "attn_kv_b.weight", rank, heads * (head_k - rope + head_v))
    t.add(block, "ffn_norm.weight", e)
    if block < s.get("dense_lead", 0):
        _ffn(t, block, e, s["n_ff"])
    else:
        _experts(t, block, s)


def _qwen35(t: Table, block: int, s: dict[str, Any]) -> None:
    e, inner, heads = s["n_embd"], s["ssm_inner"], s["ssm_heads"]
    channels = inner + 2 * s["ssm_groups"] * s["ssm_state"]
    if block >= s["n_layer"] or (block + 1) % 4 == 0:
        _attention(t, block, s, gate=2, norms=True)
    else:
        t.add(block, "attn_norm.weight", e)
        t.add(block, "attn_qkv.weight", e, channels)
        t.add(block, "attn_gate.weight", e, inner)
        t.add(block, "ssm_conv1d.weight", s["ssm_conv"], channels)
        t.add(block, "ssm_a", heads)
        t.add(block, "ssm_alpha.weight", e, heads)
        t.add(block, "ssm_beta.weight", e, heads)
        t.add(block, "ssm_out.weight", inner, e)
    t.add(block, "post_attention_norm.weight", e)
    if s.get("n_expert"):
        _experts(t, block, s)
        t.add(block, "ffn_gate_inp_shexp.weight", e)
    else:
        _ffn(t, block, e, s["n_ff"])


_BLOCKS: dict[str, Callable[[Table, int, dict[str, Any]], None]] = {
    "deepseek2": _deepseek2, "gemma4": _gemma4, "glm4": _glm4, "glm4moe": _glm4moe, "gpt-oss": _gpt_oss,
    "qwen3moe": _qwen3moe, "qwen35": _qwen35, "qwen35moe": _qwen35,
}  # fmt: skip
