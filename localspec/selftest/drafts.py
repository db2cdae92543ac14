"""Writers of tiny learned drafters for the tiny targets: EAGLE-3, DFlash, DFlash2 and DSpark.

EAGLE-3 heads share the seed of their target and resemble its first layer, so many of their drafts are
right; the others are random, and a target with few live ids is what gets their drafts accepted. Tensor
names and keys are those llama.cpp's loaders of `eagle3` and `dflash` ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.selftest.targets import (
    EMBEDDING_GAIN,
    QK_GAIN,
    RMS_EPS,
    Shape,
    attention,
    attention_keys,
    feed_forward,
    head_norms,
)
from localspec.selftest.vocab import TEXT, Vocabulary
from localspec.selftest.weights import Draw, TinyFile, Value, tiny_file

EAGLE3_LAYERS = (0, 1, 2)
"""Target layers whose input an EAGLE-3 head reads; their order matters."""
DFLASH_LAYERS = (1, 2)
DFLASH_BLOCK = 8
ONE_LAYER = Shape(layers=1)


@dataclass(frozen=True, slots=True)
class Draft:
    """What a draft file is made of."""

    name: str
    base: str
    """Name of the target it was made for."""
    draw: Draw
    vocab: Vocabulary = TEXT
    shape: Shape = ONE_LAYER
    base_arch: str = "llama"
    target_width: int = 64

    def keys(self, file: TinyFile, **more: Value) -> None:
        """Add the base model's name and the sizes."""
        shape = self.shape
        file.base_model(self.base)
        file.set(
            vocab_size=len(self.vocab), context_length=shape.n_ctx, embedding_length=shape.width,
            block_count=shape.layers, feed_forward_length=shape.ff,
            attention__layer_norm_rms_epsilon=RMS_EPS, **attention_keys(shape), **more,
        )  # fmt: skip


def write_eagle3(
    path: Path, draft: Draft, *, reduced: Sequence[int] = (), norm_features: bool = False
) -> None:
    """An EAGLE-3 head that resembles the first layer of the target with its seed.

    Args:
        reduced: target ids of a reduced draft vocabulary, with an output matrix and embeddings of its
            own and no tokenizer; empty = the target's matrices.
        norm_features: normalise the three features before fusing them and pass the normed result on
            (`norm_before_fc`, `norm_before_residual`).
    """
    import numpy as np

    shape = draft.shape
    with tiny_file(path, "eagle3", draft.name, draft.draw) as file:
        draft.keys(
            file,
            target_layers=list(EAGLE3_LAYERS),
            target_hidden_size=draft.target_width,
            norm_before_fc=norm_features,
            norm_before_residual=norm_features,
        )
        if reduced:
            file.writer.add_tokenizer_model("none")
        else:
            draft.vocab.write(file.writer)
        features = len(EAGLE3_LAYERS) * draft.target_width
        file.matrix("fc", shape.width, features, gain=0.005)
        if norm_features:
            file.norm("enc.output_norm", features)
        file.norm("blk.0.attn_norm", shape.width)
        file.norm("blk.0.attn_norm_2", shape.width, gain=0.1)
        _fused_attention(file, "blk.0", shape)
        file.norm("blk.0.ffn_norm", shape.width)
        feed_forward(file, "blk.0", shape)
        file.norm("output_norm", shape.width)
        if reduced:
            n_vocab, ids = len(draft.vocab), list(reduced)
            file.matrix("token_embd", n_vocab, shape.width, gain=EMBEDDING_GAIN)
            output = file.draw.vocabulary_table("output", n_vocab, shape.width, draft.vocab.readable)
            file.add("output.weight", output[ids], quantize=True)
            file.add("d2t", np.array(ids, dtype=np.int64))


def _fused_attention(file: TinyFile, block: str, shape: Shape) -> None:
    """Add attention over [embedding; feature] whose embedding half is the target's own layer 0."""
    import numpy as np

    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for part, rows, gain in (("q", wide, QK_GAIN), ("k", narrow, QK_GAIN), ("v", narrow, 1.0)):
        name = f"{block}.attn_{part}"
        halves = (
            file.draw.normal(name, rows, shape.width),
            file.draw.normal(f"{name}.feature", rows, shape.width),
        )
        file.add(f"{name}.weight", np.hstack(halves) * (file.draw.scale * gain), quantize=True)
    file.matrix(f"{block}.attn_output", shape.width, wide)


def write_dflash(path: Path, draft: Draft, **more: Value) -> None:
    """A DFlash block drafter that shares the target's embeddings and output; `more` adds keys."""
    with tiny_file(path, "dflash", draft.name, draft.draw) as file:
        _dflash_keys(file, draft, **more)
        _dflash_body(file, draft)


def write_dspark(path: Path, draft: Draft, *, rank: int = 8, from_anchor: bool = True) -> None:
    """DFlash with a Markov head of `rank` and a confidence head.

    Args:
        from_anchor: the newest token's own row holds the first proposal; else that row is left unread.
    """
    with tiny_file(path, "dflash", draft.name, draft.draw) as file:
        _dflash_keys(file, draft, sample_from_anchor=from_anchor, has_confidence_head=True)
        _dflash_body(file, draft)
        file.matrix("markov_w1", len(draft.vocab), rank)
        file.matrix("markov_w2", len(draft.vocab), rank)
        file.matrix("conf_proj", 1, draft.shape.width + rank, gain=0.2)
        file.vector("conf_proj.bias", 1)


def write_dflash2(
    path: Path, draft: Draft, *, top_k: int = 4, rank: int = 8, taps: int = 3, group: int = 8
) -> None:
    """DFlash with block convolutions and a selector that scores transitions between `top_k` candidates."""
    width = draft.shape.width
    with tiny_file(path, "dflash", draft.name, draft.draw) as file:
        _dflash_keys(
            file,
            draft,
            conv_kernel_size=taps,
            conv_group_size=group,
            selector_rank=rank,
            selector_top_k=top_k,
        )
        _dflash_body(file, draft)
        file.matrix("selector_predecessor", len(draft.vocab), rank)
        file.matrix("selector_successor", len(draft.vocab), rank)
        file.matrix("selector_hidden", rank, width)
        for layer in range(draft.shape.layers):
            for part in ("attn", "ffn"):
                name = f"blk.{layer}.{part}_conv"
                file.vector(f"{name}_base", 2, taps, width, scale=0.3)
                file.matrix(f"{name}_proj", 2 * taps * (width // group), width, gain=0.2)


def _dflash_keys(file: TinyFile, draft: Draft, **more: Value) -> None:
    draft.vocab.write(file.writer)
    draft.keys(file, target_layers=list(DFLASH_LAYERS), block_size=DFLASH_BLOCK, **more)


def _dflash_body(file: TinyFile, draft: Draft) -> None:
    shape = draft.shape
    file.matrix("fc", shape.width, len(DFLASH_LAYERS) * draft.target_width)
    file.norm("enc.output_norm", shape.width)
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        file.norm(f"{block}.attn_norm", shape.width)
        attention(file, block, shape)
        # All mask rows are alike but for their position, which only sharp attention tells apart.
        head_norms(file, block, shape, gain=2.0)
        file.norm(f"{block}.ffn_norm", shape.width)
        feed_forward(file, block, shape)
    file.norm("output_norm", shape.width)
