"""Medusa heads in a GGUF of our own, and the tiny model that turns their output into logits.

llama.cpp has no Medusa, so the file is read with the `gguf` package. Format, version 1:

    general.architecture            "medusa"
    general.name                    free text
    medusa.format_version           uint32, 1
    medusa.block_count              uint32, number of heads K
    medusa.residual_block_count     uint32, residual blocks per head, usually 1
    medusa.embedding_length         uint32, width of the target's final hidden state
    medusa.vocab_size               uint32, the target's vocabulary
    medusa.target.name              string, optional: `general.name` of the target
    medusa.target.architecture      string, optional: `general.architecture` of the target
    medusa.target.tokenizer_digest  string, optional: what `tokenizer_digest` makes of the target's tokens

    head.{i}.{j}.weight             [embedding_length, embedding_length], outputs × inputs, any ggml type
    head.{i}.{j}.bias               [embedding_length], F32
    head.{i}.lm_head.weight         [vocab_size, embedding_length], optional, any ggml type

Head i = 0…K−1, residual block j. With x the target's hidden state *after* its final norm at the position
whose logits chose token t, head i predicts the token i + 2 places behind that position, so head 0 follows
the target's own choice:

    x ← x + SiLU(W_ij x + b_ij) for each j,  logits_i = lm_head_i · x

A head without `lm_head` uses the target's output matrix. Heads as published (Cai et al. 2024, "Medusa")
each own one, trained apart from the target's; dropping it wrecks acceptance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.selftest.drafts import Draft
from localspec.selftest.targets import ROPE_BASE
from localspec.selftest.weights import Draw, tiny_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT_VERSION = 1


def tokenizer_digest(tokens: Iterable[str]) -> str:
    """SHA-256 of the token texts in id order, each followed by a zero byte, in hex."""
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(token.encode() + b"\0")
    return digest.hexdigest()


def write_medusa(path: Path, draft: Draft, *, heads: int = 4, own_lm_heads: int = 0) -> None:
    """Write `heads` heads of one residual block; the first `own_lm_heads` bring an output matrix."""
    width = draft.target_width
    with tiny_file(path, "medusa", draft.name, draft.draw) as file:
        file.set(
            format_version=FORMAT_VERSION, block_count=heads, residual_block_count=1, embedding_length=width,
            vocab_size=len(draft.vocab), target__name=draft.base, target__architecture=draft.base_arch,
            target__tokenizer_digest=tokenizer_digest(draft.vocab.tokens),
        )  # fmt: skip
        for head in range(heads):
            file.matrix(f"head.{head}.0", width, width)
            file.vector(f"head.{head}.0.bias", width)
            if head < own_lm_heads:
                file.matrix(f"head.{head}.lm_head", len(draft.vocab), width)


def write_unembedding(path: Path, matrix: NDArray[Any], *, kind: int, width: int, eps: float = 1e-6) -> None:
    """Write a model that multiplies embedding rows by `matrix`.

    One llama layer with zero attention and feed-forward weights and norms of one: fed with rows x as
    embeddings it returns `matrix · x / rms(x)`, so scale row i by `sqrt(mean(x_i²) + eps)` to undo the
    norm. Its KV cache holds nothing of use and is cleared before each call.

    Args:
        matrix: `[n_vocab, row bytes or width]`, copied verbatim.
        kind: ggml type of `matrix`, as `gguf.GGMLQuantizationType`.
        width: columns of the matrix before quantisation.
        eps: RMS epsilon.
    """
    import gguf
    import numpy as np

    narrow = 32
    n_vocab = len(matrix)
    with tiny_file(path, "llama", "unembedding", Draw(seed=0)) as file:
        file.writer.add_tokenizer_model("none")
        file.set(
            vocab_size=n_vocab, context_length=512, embedding_length=width, block_count=1,
            feed_forward_length=narrow, attention__head_count=1, attention__head_count_kv=1,
            attention__key_length=narrow, attention__value_length=narrow, rope__dimension_count=narrow,
            rope__freq_base=ROPE_BASE, attention__layer_norm_rms_epsilon=eps,
        )  # fmt: skip
        file.writer.add_tensor("token_embd.weight", matrix, raw_dtype=gguf.GGMLQuantizationType(kind))
        for norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
            file.add(f"{norm}.weight", np.ones(width, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"):
            file.add(f"blk.0.{name}.weight", np.zeros((narrow, width), np.float32))
        for name in ("attn_output", "ffn_down"):
            file.add(f"blk.0.{name}.weight", np.zeros((width, narrow), np.float32))
