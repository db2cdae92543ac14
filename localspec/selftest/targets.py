"""Writers of the tiny target models: llama (dense and MoE), qwen2, gemma3, qwen35, jamba and mamba.

Each writes what llama.cpp's loader of that architecture asks for, with the width of `Shape`. Which
variants exist and how loud their weights are is `variants`' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.selftest.vocab import TEXT, Vocabulary
from localspec.selftest.weights import Draw, TinyFile, Value, tiny_file

if TYPE_CHECKING:
    from localspec.selftest.weights import Array

RMS_EPS = 1e-5
ROPE_BASE = 10_000.0
EMBEDDING_GAIN = 0.25
"""Softer than the other matrices, so that the last token does not drown the history."""
QK_GAIN = 0.3
"""Softer than the other matrices: at full loudness the softmax sees one position only."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes all tiny models share; head_dim 32 so that quantised KV types work."""

    width: int = 64
    layers: int = 3
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 32
    ff: int = 128
    n_ctx: int = 4096


SHAPE = Shape()


@dataclass(frozen=True, slots=True)
class Target:
    """What a target file is made of."""

    name: str
    draw: Draw
    vocab: Vocabulary = TEXT
    shape: Shape = SHAPE
    live: Sequence[int] | None = None
    """Ids the model may put into the text; None = the readable ones."""
    output_gain: float = 1.0
    """Loudness of the logits: below one flattens the distribution, the argmax stays."""
    tied: bool = False
    """The output matrix is the embedding table."""
    quiet: float = 0.2
    """Loudness of all llama layers but the first: a drafter of one layer can then resemble the target."""

    base: str | None = None
    """Name of the model this one belongs to, for a file that is no target by itself."""

    @property
    def live_ids(self) -> Sequence[int]:
        return self.vocab.readable if self.live is None else self.live

    def output_matrix(self) -> Array:
        """What turns the final hidden state into logits, `[n_vocab, width]`."""
        name = "token_embd" if self.tied else "output"
        table = self.draw.vocabulary_table(name, len(self.vocab), self.shape.width, self.live_ids)
        return table * self.output_gain

    def embeddings(self, file: TinyFile) -> None:
        """Add the vocabulary-sized tensors and the output norm."""
        if self.tied:
            file.add("token_embd.weight", self.output_matrix(), quantize=True)
        else:
            file.matrix("token_embd", len(self.vocab), self.shape.width, gain=EMBEDDING_GAIN)
            file.add("output.weight", self.output_matrix(), quantize=True)
        file.norm("output_norm", self.shape.width)

    def keys(self, file: TinyFile, **more: Value) -> None:
        """Add the tokenizer and the keys every architecture has; `more` adds to them or replaces one."""
        shape = self.shape
        self.vocab.write(file.writer)
        if self.base is not None:
            file.base_model(self.base)
        common: dict[str, Value] = {
            "vocab_size": len(self.vocab),
            "context_length": shape.n_ctx,
            "embedding_length": shape.width,
            "block_count": shape.layers,
            "feed_forward_length": shape.ff,
            "attention__layer_norm_rms_epsilon": RMS_EPS,
        }
        file.set(**{**common, **more})


def attention_keys(shape: Shape) -> dict[str, Value]:
    """Head counts and rotary settings."""
    return {
        "attention__head_count": shape.heads,
        "attention__head_count_kv": shape.kv_heads,
        "attention__key_length": shape.head_dim,
        "attention__value_length": shape.head_dim,
        "rope__dimension_count": shape.head_dim,
        "rope__freq_base": ROPE_BASE,
    }


def attention(file: TinyFile, block: str, shape: Shape, *, gated: bool = False, loud: float = 1.0) -> None:
    """Add q, k, v and output; `gated` doubles q as Qwen3.5 does, `loud` scales the output."""
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    file.matrix(f"{block}.attn_q", wide * (2 if gated else 1), shape.width, gain=QK_GAIN)
    file.matrix(f"{block}.attn_k", narrow, shape.width, gain=QK_GAIN)
    file.matrix(f"{block}.attn_v", narrow, shape.width)
    file.matrix(f"{block}.attn_output", shape.width, wide, gain=loud)


def head_norms(file: TinyFile, block: str, shape: Shape, *, gain: float = 1.0) -> None:
    """Add the per-head norms of q and k; a larger `gain` sharpens the attention."""
    file.norm(f"{block}.attn_q_norm", shape.head_dim, gain=gain)
    file.norm(f"{block}.attn_k_norm", shape.head_dim, gain=gain)


def feed_forward(file: TinyFile, block: str, shape: Shape, *, loud: float = 1.0) -> None:
    """Add a gated feed-forward network whose output is scaled by `loud`."""
    file.matrix(f"{block}.ffn_gate", shape.ff, shape.width)
    file.matrix(f"{block}.ffn_up", shape.ff, shape.width)
    file.matrix(f"{block}.ffn_down", shape.width, shape.ff, gain=loud)


def write_llama(path: Path, target: Target, *, experts: int = 0) -> None:
    """Llama: exposes layer inputs. With `experts`, two of them serve each token."""
    shape = target.shape
    with tiny_file(path, "llama", target.name, target.draw) as file:
        moe: dict[str, Value] = {"expert_count": experts, "expert_used_count": 2} if experts else {}
        target.keys(file, **attention_keys(shape), **moe)
        target.embeddings(file)
        for layer in range(shape.layers):
            block, loud = f"blk.{layer}", 1.0 if layer == 0 else target.quiet
            file.norm(f"{block}.attn_norm", shape.width)
            attention(file, block, shape, loud=loud)
            file.norm(f"{block}.ffn_norm", shape.width)
            if not experts:
                feed_forward(file, block, shape, loud=loud)
                continue
            file.matrix(f"{block}.ffn_gate_inp", experts, shape.width)
            file.matrix(f"{block}.ffn_gate_exps", experts, shape.ff, shape.width)
            file.matrix(f"{block}.ffn_up_exps", experts, shape.ff, shape.width)
            file.matrix(f"{block}.ffn_down_exps", experts, shape.width, shape.ff)


def write_qwen2(path: Path, target: Target) -> None:
    """Qwen2: biases on q, k, v and no layer inputs for learned drafters."""
    shape = target.shape
    with tiny_file(path, "qwen2", target.name, target.draw) as file:
        target.keys(file, **attention_keys(shape))
        target.embeddings(file)
        for layer in range(shape.layers):
            block = f"blk.{layer}"
            file.norm(f"{block}.attn_norm", shape.width)
            attention(file, block, shape)
            for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
                file.vector(f"{block}.attn_{name}.bias", heads * shape.head_dim)
            file.norm(f"{block}.ffn_norm", shape.width)
            feed_forward(file, block, shape)


def write_gemma3(path: Path, target: Target, *, window: int = 32) -> None:
    """Gemma 3: every second layer sees `window` tokens only."""
    shape = target.shape
    with tiny_file(path, "gemma3", target.name, target.draw) as file:
        sliding: dict[str, Value] = {
            "attention__sliding_window": window, "attention__sliding_window_pattern": 2,
        }  # fmt: skip
        target.keys(file, **attention_keys(shape), **sliding)
        target.embeddings(file)
        for layer in range(shape.layers):
            block = f"blk.{layer}"
            file.norm(f"{block}.attn_norm", shape.width)
            attention(file, block, shape)
            head_norms(file, block, shape)
            file.norm(f"{block}.post_attention_norm", shape.width)
            file.norm(f"{block}.ffn_norm", shape.width)
            feed_forward(file, block, shape)
            file.norm(f"{block}.post_ffw_norm", shape.width)


def write_qwen35(path: Path, target: Target, *, nextn: int = 0, trunk: bool = True) -> None:
    """Qwen3.5: recurrent layers with an attention layer every second, undone by native snapshots.

    Args:
        nextn: NextN layers behind the trunk (0 or 1).
        trunk: False writes a companion file that has the NextN layer and the vocabulary only.
    """
    shape = target.shape
    with tiny_file(path, "qwen35", target.name, target.draw) as file:
        target.keys(file, **{**attention_keys(shape), **_delta_net_keys(shape, nextn)})
        target.embeddings(file)
        for layer in range(shape.layers if trunk else 0):
            _qwen35_block(file, f"blk.{layer}", shape, recurrent=layer % 2 == 0)
        for layer in range(shape.layers, shape.layers + nextn):
            block = f"blk.{layer}"
            _qwen35_block(file, block, shape, recurrent=False)
            file.matrix(f"{block}.nextn.eh_proj", shape.width, 2 * shape.width)
            file.norm(f"{block}.nextn.enorm", shape.width)
            file.norm(f"{block}.nextn.hnorm", shape.width)
            file.norm(f"{block}.nextn.shared_head_norm", shape.width)


DELTA_STATE, DELTA_K_HEADS, DELTA_V_HEADS, DELTA_CONV = 16, 2, 4, 4
"""Gated delta net: state size per head, key heads, value heads, convolution taps."""


def _delta_net_keys(shape: Shape, nextn: int) -> dict[str, Value]:
    keys: dict[str, Value] = {
        "block_count": shape.layers + nextn,
        "full_attention_interval": 2,
        "ssm__conv_kernel": DELTA_CONV,
        "ssm__inner_size": DELTA_STATE * DELTA_V_HEADS,
        "ssm__state_size": DELTA_STATE,
        "ssm__time_step_rank": DELTA_V_HEADS,
        "ssm__group_count": DELTA_K_HEADS,
        "rope__dimension_count": shape.head_dim // 2,
        "rope__dimension_sections": [3, 3, 2, 0],
    }
    return {**keys, "nextn_predict_layers": nextn} if nextn else keys


def _qwen35_block(file: TinyFile, block: str, shape: Shape, *, recurrent: bool) -> None:
    file.norm(f"{block}.attn_norm", shape.width)
    file.norm(f"{block}.post_attention_norm", shape.width)
    if recurrent:
        _delta_net(file, block, shape)
    else:
        attention(file, block, shape, gated=True)
        head_norms(file, block, shape)
    feed_forward(file, block, shape)


def _delta_net(file: TinyFile, block: str, shape: Shape) -> None:
    values = DELTA_STATE * DELTA_V_HEADS
    mixed = 2 * DELTA_STATE * DELTA_K_HEADS + values
    file.matrix(f"{block}.attn_qkv", mixed, shape.width)
    file.matrix(f"{block}.attn_gate", values, shape.width)
    file.vector(f"{block}.ssm_conv1d.weight", mixed, DELTA_CONV, scale=0.5)
    file.vector(f"{block}.ssm_dt.bias", DELTA_V_HEADS)
    _decay_rates(file, block, DELTA_V_HEADS, mean=-3)
    file.matrix(f"{block}.ssm_beta", DELTA_V_HEADS, shape.width)
    file.matrix(f"{block}.ssm_alpha", DELTA_V_HEADS, shape.width)
    file.norm(f"{block}.ssm_norm", DELTA_STATE)
    file.matrix(f"{block}.ssm_out", shape.width, values)


MAMBA_STATE, MAMBA_RANK, MAMBA_CONV = 16, 4, 4
"""Selective scan: state size per channel, rank of the time step, convolution taps."""


def write_jamba(path: Path, target: Target) -> None:
    """Jamba: Mamba layers with an attention layer every second; no native snapshots."""
    shape = target.shape
    with tiny_file(path, "jamba", target.name, target.draw) as file:
        attentive = [layer % 2 == 1 for layer in range(shape.layers)]
        per_layer: dict[str, Value] = {
            "attention__head_count_kv": [shape.kv_heads if attends else 0 for attends in attentive]
        }
        target.keys(file, **{**attention_keys(shape), **_mamba_keys(shape), **per_layer})
        target.embeddings(file)
        for layer, attends in enumerate(attentive):
            block = f"blk.{layer}"
            file.norm(f"{block}.attn_norm", shape.width)
            if attends:
                attention(file, block, shape)
            else:
                _mamba(file, block, shape, inner_norms=True)
            file.norm(f"{block}.ffn_norm", shape.width)
            feed_forward(file, block, shape)


def write_mamba(path: Path, target: Target) -> None:
    """Mamba: nothing but recurrent layers; no native snapshots, no attention cache."""
    shape = target.shape
    with tiny_file(path, "mamba", target.name, target.draw) as file:
        target.keys(file, attention__head_count=0, **_mamba_keys(shape))
        target.embeddings(file)
        for layer in range(shape.layers):
            file.norm(f"blk.{layer}.attn_norm", shape.width)
            _mamba(file, f"blk.{layer}", shape, inner_norms=False)


def _mamba_keys(shape: Shape) -> dict[str, Value]:
    return {
        "ssm__conv_kernel": MAMBA_CONV,
        "ssm__inner_size": 2 * shape.width,
        "ssm__state_size": MAMBA_STATE,
        "ssm__time_step_rank": MAMBA_RANK,
    }


def _mamba(file: TinyFile, block: str, shape: Shape, *, inner_norms: bool) -> None:
    inner = 2 * shape.width
    file.matrix(f"{block}.ssm_in", 2 * inner, shape.width)
    file.vector(f"{block}.ssm_conv1d.weight", inner, MAMBA_CONV, scale=0.5)
    file.vector(f"{block}.ssm_conv1d.bias", inner)
    file.matrix(f"{block}.ssm_x", MAMBA_RANK + 2 * MAMBA_STATE, inner)
    file.matrix(f"{block}.ssm_dt", inner, MAMBA_RANK)
    file.vector(f"{block}.ssm_dt.bias", inner, scale=1.0, shift=-2.0)
    _decay_rates(file, block, inner, MAMBA_STATE, mean=-2)
    file.vector(f"{block}.ssm_d", inner, scale=1.0)
    file.matrix(f"{block}.ssm_out", shape.width, inner)
    if inner_norms:
        file.norm(f"{block}.ssm_dt_norm", MAMBA_RANK)
        file.norm(f"{block}.ssm_b_norm", MAMBA_STATE)
        file.norm(f"{block}.ssm_c_norm", MAMBA_STATE)


def _decay_rates(file: TinyFile, block: str, *shape: int, mean: float) -> None:
    """Add `ssm_a`: rates around e^mean, small enough to keep a state alive for tens of tokens."""
    import numpy as np

    name = f"{block}.ssm_a"
    file.add(name, -np.exp(file.draw.normal(name, *shape) + np.float32(mean)))
