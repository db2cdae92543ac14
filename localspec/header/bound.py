"""Fill in what is not stated about a learned head from the target it is bound to.

A head shares the target's vocabulary, width and attention shape, so a catalogue row that gives only its size
still allows an estimate. What the row or header does state is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from localspec.header.architecture import ASSISTANT
from localspec.header.catalogue_facts import with_estimated_bytes
from localspec.header.facts import Layer, ModelFacts

HeadKind = Literal["eagle3", "dflash", "mtp", "medusa"]
BLOCKS = {"eagle3": 1, "dflash": 5, "mtp": 1}
MEDUSA_HEADS = 4
F32_BYTES = 4
TAPS = {"eagle3": 3, "dflash": 5}


def head_facts(head: ModelFacts, target: ModelFacts, kind: HeadKind) -> ModelFacts:
    """`head` with missing shapes taken from `target`; unchanged when complete or of unknown size."""
    if kind == "medusa":
        return _medusa(head, target)
    if not head.unknown or "size" in head.unknown or target.unknown:
        return head
    sample = next((layer for layer in target.layers if layer.kind == "attention"), target.layers[0])
    assistant = head.architecture == ASSISTANT or (kind == "mtp" and target.architecture == "gemma4")
    block = Layer(
        kind="attention",
        n_head=sample.n_head,
        n_head_kv=sample.n_head_kv,
        head_k=sample.head_k,
        head_v=sample.head_v,
        own_kv=not assistant,
        n_ff=sample.n_ff or target.n_ff_expert * max(target.n_expert_used, 1),
    )
    own_layers = head.n_layer if kind != "mtp" or assistant else 0
    n_layer = target.n_layer if kind == "mtp" and not assistant else own_layers or BLOCKS[kind]
    nextn = 1 if kind == "mtp" and not assistant else 0
    blocks = (*target.layers[:n_layer], block) if nextn else (block,) * n_layer
    empty = tuple(replace(one, weight_bytes=0, expert_bytes=0, expert_tensor_bytes=0) for one in blocks)
    filled = replace(
        head,
        architecture=target.architecture if nextn else ASSISTANT if assistant else head.architecture,
        n_ctx_train=head.n_ctx_train or target.n_ctx_train,
        n_embd=head.n_embd or target.n_embd,
        n_vocab=head.n_vocab or target.n_vocab,
        n_layer=n_layer,
        n_nextn=nextn,
        layers=empty,
        target_layers=head.target_layers or tuple(range(1, TAPS.get(kind, 0) + 1)),
        target_hidden=head.target_hidden or target.n_embd,
        own_embedding=False,
        own_output=False,
        unknown=(),
    )
    return _all_in_head(with_estimated_bytes(filled)) if nextn else with_estimated_bytes(filled)


def _medusa(head: ModelFacts, target: ModelFacts) -> ModelFacts:
    """Heads of one F16 residual block; what the file holds beyond these are output matrices of their own."""
    if head.host_bytes or not head.size_bytes or head.architecture not in ("medusa", "unknown"):
        return head
    count = head.n_layer or MEDUSA_HEADS
    block = (target.n_embd + 1) * target.n_embd
    rest = (head.size_bytes - 2 * block * count) // count
    own = rest if rest > target.n_embd * target.n_vocab // 4 else 0
    return replace(
        head,
        n_embd=target.n_embd,
        n_vocab=target.n_vocab,
        n_layer=count,
        layers=(),
        host_bytes=F32_BYTES * block * count,
        head_matrices=(own,) * count,
        unknown=(),
        estimated=True,
    )


def _all_in_head(facts: ModelFacts) -> ModelFacts:
    """A nextn sidecar carries no trunk: all its bytes are the last block's."""
    total = sum(layer.weight_bytes + layer.expert_bytes for layer in facts.layers)
    blank = (replace(layer, weight_bytes=0, expert_bytes=0) for layer in facts.layers[:-1])
    return replace(facts, layers=(*blank, replace(facts.layers[-1], weight_bytes=total, expert_bytes=0)))
