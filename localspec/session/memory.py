"""What llama.cpp really allocated for a loaded pair, per purpose and device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from localspec.engine.backend.devices import BufferUse, memory_breakdown
from localspec.interfaces import MemoryItem, MemoryTerm

if TYPE_CHECKING:
    from localspec.engine.backend.context import Context
    from localspec.session.loading import LoadedPair

Role = Literal["target", "draft"]


def memory_items(pair: LoadedPair) -> tuple[MemoryItem, ...]:
    """Bytes of weights, cache and compute buffers; empty where llama.cpp's figures cannot be read."""
    items = _items("target", pair.context)
    for context in pair.draft_contexts:
        # llama.cpp lists weights under every context of a model; MTP layers inside the target are its own.
        shared = context.model is pair.model
        items += [item for item in _items("draft", context) if not (shared and item.term == "draft weights")]
    if items and pair.draft_host_bytes:
        items.append(MemoryItem("draft weights", "CPU", pair.draft_host_bytes))
    return tuple(items)


def _items(role: Role, context: Context) -> list[MemoryItem]:
    items: list[MemoryItem] = []
    for use in memory_breakdown(context) or ():
        items += _terms(role, use)
    return items


def _terms(role: Role, use: BufferUse) -> list[MemoryItem]:
    terms: list[tuple[MemoryTerm, int]]
    if role == "target":
        terms = [
            ("target weights", use.model_bytes),
            ("target KV", use.context_bytes),
            ("target compute", use.compute_bytes),
        ]
    else:
        terms = [
            ("draft weights", use.model_bytes),
            ("draft KV", use.context_bytes),
            ("draft compute", use.compute_bytes),
        ]
    return [MemoryItem(term, use.device, size) for term, size in terms if size]
