"""Bytes of caches and recurrent states per device (llama-kv-cache.cpp, llama-memory-recurrent.cpp)."""

from __future__ import annotations

from localspec.budget.placement import Placement
from localspec.budget.replay import HOST
from localspec.budget.shape import CURRENT, Build, ContextShape, row_bytes
from localspec.header.architecture import ASSISTANT, SNAPSHOTS
from localspec.header.facts import ModelFacts

F32 = 4


def kv_bytes(
    facts: ModelFacts, shape: ContextShape, placement: Placement, *, mtp: bool = False, build: Build = CURRENT
) -> list[int]:
    """KV cache per device number.

    Args:
        mtp: the cache of a nextn context (nextn blocks only) instead of the model's own.
    """
    sizes = [0] * (placement.n_devices + 1)
    window = facts.window if build.windowed_cache else 0
    # Without flash attention V is stored transposed, padded to the widest block.
    widest = max((layer.n_head_kv * layer.head_v for layer in facts.layers), default=0)
    for block, layer in enumerate(facts.layers):
        if (block >= facts.n_layer) != mtp or layer.kind in ("recurrent", "none") or not layer.own_kv:
            continue
        cells = shape.cells(layer.windowed and window > 0, window) * shape.streams
        size = row_bytes(shape.type_k, layer.n_head_kv * layer.head_k) * cells
        if not facts.mla or build.mla_caches_v:
            width = layer.n_head_kv * layer.head_v if shape.flash else widest
            size += row_bytes(shape.type_v, width) * cells
        sizes[placement.blocks[block] if shape.offload_kv else HOST] += size
    return sizes


def state_bytes(facts: ModelFacts, shape: ContextShape, placement: Placement) -> list[int]:
    """Recurrent state per device number: per sequence, once more for every snapshot."""
    sizes = [0] * (placement.n_devices + 1)
    snapshots = shape.n_rs_seq if facts.architecture in SNAPSHOTS else 0
    size = F32 * (facts.state_r + facts.state_s) * shape.n_seq * (1 + snapshots)
    for block, layer in enumerate(facts.layers[: facts.n_layer]):
        if layer.kind in ("recurrent", "both"):
            sizes[placement.blocks[block] if shape.offload_kv else HOST] += size
    return sizes


def output_bytes(
    facts: ModelFacts, shape: ContextShape, *, taps: int = 0, nextn: bool = False, hidden: bool = False
) -> int:
    """Host buffer for logits, and for the hidden states a drafter reads (`output_reserve`)."""
    rows = max(shape.n_outputs, shape.n_seq)
    size = F32 * facts.n_vocab * rows + F32 * facts.n_embd * shape.n_batch * taps
    size += F32 * facts.n_embd * rows if hidden else 0
    width = facts.target_hidden if facts.architecture == ASSISTANT else facts.n_embd
    return size + (F32 * width * shape.n_batch if nextn else 0)
