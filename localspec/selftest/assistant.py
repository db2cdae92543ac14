"""Writers of a tiny Gemma 4 target and of the assistant that drafts by reading its cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec.selftest.drafts import Draft
from localspec.selftest.targets import (
    ROPE_BASE,
    Shape,
    Target,
    attention,
    attention_keys,
    feed_forward,
    head_norms,
)
from localspec.selftest.weights import TinyFile, Value, tiny_file

WINDOW = 32
EMBEDDING_GAIN = 0.015
"""The graph multiplies embeddings by the square root of the width, which would drown the history."""
ASSISTANT = Shape(width=32, layers=2)


def _window_keys(shape: Shape, windowed: list[bool]) -> dict[str, Value]:
    return {
        "attention__key_length_swa": shape.head_dim,
        "attention__value_length_swa": shape.head_dim,
        "attention__sliding_window": WINDOW,
        "attention__sliding_window_pattern": windowed,
        "rope__dimension_count_swa": shape.head_dim,
        "rope__freq_base_swa": ROPE_BASE,
    }


def write_gemma4(path: Path, target: Target) -> None:
    """Gemma 4 whose last layer sees everything and whose others see a window."""
    shape = target.shape
    with tiny_file(path, "gemma4", target.name, target.draw) as file:
        windowed = [layer < shape.layers - 1 for layer in range(shape.layers)]
        target.keys(
            file,
            **{**attention_keys(shape), **_window_keys(shape, windowed)},
            embedding_length_per_layer_input=0,
            final_logit_softcapping=0.0,  # llama.cpp's default would bend the logits
        )
        file.matrix("token_embd", len(target.vocab), shape.width, gain=EMBEDDING_GAIN)
        file.add("output.weight", target.output_matrix(), quantize=True)
        file.norm("output_norm", shape.width)
        _rope_factors(file, shape)
        for layer in range(shape.layers):
            block = f"blk.{layer}"
            file.norm(f"{block}.attn_norm", shape.width)
            attention(file, block, shape)
            head_norms(file, block, shape)
            _rest_of_block(file, block, shape)


def write_assistant(path: Path, draft: Draft, *, live: Sequence[int]) -> None:
    """Two layers, one for the window and one for the whole text, without keys and values of their own.

    Args:
        live: ids it proposes.
    """
    shape, outer = draft.shape, draft.target_width
    wide = shape.heads * shape.head_dim
    with tiny_file(path, "gemma4-assistant", draft.name, draft.draw) as file:
        draft.vocab.write(file.writer)
        draft.keys(
            file,
            nextn_predict_layers=shape.layers,
            embedding_length_out=outer,
            **_window_keys(shape, [True, False]),
        )
        table = file.draw.vocabulary_table("token_embd", len(draft.vocab), shape.width, live)
        file.add("token_embd.weight", table, quantize=True)
        file.norm("output_norm", shape.width)
        file.matrix("nextn.pre_projection", shape.width, 2 * outer)
        file.matrix("nextn.post_projection", outer, shape.width)
        _rope_factors(file, shape)
        for layer in range(shape.layers):
            block = f"blk.{layer}"
            file.norm(f"{block}.attn_norm", shape.width)
            file.matrix(f"{block}.attn_q", wide, shape.width)
            file.matrix(f"{block}.attn_output", shape.width, wide)
            file.norm(f"{block}.attn_q_norm", shape.head_dim)
            file.vector(f"{block}.layer_output_scale.weight", 1, shift=1.0)
            _rest_of_block(file, block, shape)


def _rest_of_block(file: TinyFile, block: str, shape: Shape) -> None:
    file.norm(f"{block}.post_attention_norm", shape.width)
    file.norm(f"{block}.ffn_norm", shape.width)
    feed_forward(file, block, shape)
    file.norm(f"{block}.post_ffw_norm", shape.width)


def _rope_factors(file: TinyFile, shape: Shape) -> None:
    """Add the frequency factors of the layers that see everything."""
    file.vector("rope_freqs.weight", shape.head_dim // 2, shift=1.0)
