"""Medusa heads in memory: residual blocks on the host, each output matrix as a model of its own.

Mirrors `session.medusa` and `unembedding`: an output matrix becomes a one-layer llama model with a context
that returns logits for every head's row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from localspec.budget.contexts import Footprint, footprint
from localspec.budget.placement import Placement
from localspec.budget.replay import HOST
from localspec.budget.shape import ContextShape
from localspec.header.facts import Layer, ModelFacts

CTX = 256
_NARROW = 32
_F32 = 4


def unembedding(width: int, n_vocab: int, matrix_bytes: int) -> ModelFacts:
    """Facts of the model that multiplies by one output matrix."""
    matrices, norms = 7 * _NARROW * width, 2 * width
    layer = Layer("attention", 1, 1, _NARROW, _NARROW, n_ff=_NARROW, weight_bytes=_F32 * (matrices + norms))
    return ModelFacts(
        name="unembedding", architecture="llama", size_bytes=matrix_bytes, file_type="", n_ctx_train=512,
        n_embd=width, n_vocab=n_vocab, n_layer=1, n_nextn=0, layers=(layer,), rope_dim=_NARROW, tied=True,
        embedding_bytes=matrix_bytes, output_bytes=_F32 * width,
    )  # fmt: skip


def medusa_footprint(
    heads: ModelFacts,
    target: ModelFacts,
    placed: Callable[[ModelFacts], Placement],
    *,
    alignments: tuple[int, ...],
    detail: bool = False,
) -> Footprint:
    """All of a head file: its own output matrices, and the target's for heads without one.

    Args:
        placed: where the model of an output matrix goes.
    """
    rows = max(len(heads.head_matrices), 1)
    shape = ContextShape.of(CTX, n_batch=rows, n_ubatch=rows, n_outputs_max=rows, flash=False, swa_full=False)
    shared = target.embedding_bytes if target.tied else target.output_bytes - _F32 * target.n_embd
    sizes = [own for own in heads.head_matrices if own]
    sizes += [shared] * (len(sizes) < len(heads.head_matrices))
    parts = []
    for size in sizes:
        facts = unembedding(target.n_embd, target.n_vocab, size)
        parts.append(footprint(facts, shape, placed(facts), alignments=alignments, detail=detail))
    weights = _sum([part.weights for part in parts])
    return replace(
        parts[0],
        weights=(weights[HOST] + heads.host_bytes, *weights[HOST + 1 :]),
        kv=_sum([part.kv for part in parts]),
        state=_sum([part.state for part in parts]),
        compute=_sum([part.compute for part in parts]),
        output=sum(part.output for part in parts),
    )


def _sum(rows: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*rows, strict=True))
