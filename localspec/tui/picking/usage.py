"""A plan's bytes on one device, summed into the terms a person thinks in. No widgets."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.budget import DeviceUse, PlanItem
from localspec.planning import PairPlan

TERMS = ("target weights", "target KV", "draft weights", "draft KV", "buffers", "reserve")
"""Caches include recurrent states, buffers are compute and output, the reserve includes the driver's."""
_TERM_OF = {
    "target state": "target KV",
    "draft state": "draft KV",
    "target compute": "buffers",
    "draft compute": "buffers",
    "output buffer": "buffers",
    "backend context": "reserve",
}


@dataclass(frozen=True, slots=True)
class Usage:
    """What a pair would take of a device, in bytes."""

    device: DeviceUse
    terms: tuple[tuple[str, int], ...]
    """(one of `TERMS`, bytes), in their order; zeros are left out."""

    @property
    def others(self) -> int:
        """Held by other programs now."""
        return max(0, self.device.total_bytes - self.device.free_bytes)

    @property
    def taken(self) -> int:
        return sum(size for _, size in self.terms)

    @property
    def free(self) -> int:
        """What would stay free; negative when it does not fit."""
        return self.device.free_bytes - self.taken


def usages(plan: PairPlan) -> list[Usage]:
    """Every device that would hold a part of the pair, accelerators first."""
    found = [_usage(device, plan.bytes) for device in plan.devices]
    held = [usage for usage in found if usage.device.needed_bytes]
    return sorted(held, key=lambda usage: usage.device.kind == "cpu")


def _usage(device: DeviceUse, items: tuple[PlanItem, ...]) -> Usage:
    sums = dict.fromkeys(TERMS, 0)
    for item in items:
        if item.device == device.name:
            sums[_TERM_OF.get(item.term, item.term)] += item.size_bytes
    return Usage(device, tuple((term, size) for term, size in sums.items() if size))
