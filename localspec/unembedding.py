"""Writes an output matrix as a model that does nothing but multiply by it, so that llama.cpp can run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

EPS = 1e-6
"""RMS epsilon of the written model; callers need it to undo the norm."""
_NARROW = 32
_ROPE_BASE = 10000.0


def write_unembedding(path: Path, matrix: NDArray[Any], *, kind: int, width: int) -> None:
    """Write a model that multiplies embedding rows by `matrix`.

    One llama layer with zero attention and feed-forward weights and norms of one: fed with rows x as
    embeddings it returns `matrix · x / rms(x)`, so scale row i by `sqrt(mean(x_i²) + EPS)` to undo the norm.
    Its KV cache holds nothing of use and is cleared before each call.

    Args:
        matrix: `[n_vocab, row bytes or width]`, copied verbatim.
        kind: ggml type of `matrix`, as `gguf.GGMLQuantizationType`.
        width: columns of the matrix before quantisation.
    """
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "llama")
    try:
        writer.add_name("unembedding")
        writer.add_tokenizer_model("none")
        writer.add_vocab_size(len(matrix))
        writer.add_context_length(512)
        writer.add_embedding_length(width)
        writer.add_block_count(1)  # none at all is rejected
        writer.add_feed_forward_length(_NARROW)
        writer.add_head_count(1)
        writer.add_head_count_kv(1)
        writer.add_key_length(_NARROW)
        writer.add_value_length(_NARROW)
        writer.add_rope_dimension_count(_NARROW)
        writer.add_rope_freq_base(_ROPE_BASE)
        writer.add_layer_norm_rms_eps(EPS)
        writer.add_tensor("token_embd.weight", matrix, raw_dtype=gguf.GGMLQuantizationType(kind))
        for norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
            writer.add_tensor(f"{norm}.weight", np.ones(width, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"):
            writer.add_tensor(f"blk.0.{name}.weight", np.zeros((_NARROW, width), np.float32))
        for name in ("attn_output", "ffn_down"):
            writer.add_tensor(f"blk.0.{name}.weight", np.zeros((width, _NARROW), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
