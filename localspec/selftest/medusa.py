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

from localspec.selftest.drafts import Draft
from localspec.selftest.weights import tiny_file

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
