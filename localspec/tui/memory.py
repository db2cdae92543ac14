"""Sums what llama.cpp allocated into the five terms a person thinks in, for one device. No widgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.interfaces import DeviceMemory, MemoryItem, SessionInfo

TERMS = ("target", "draft", "KV", "buffers")


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device and what this pair holds on it, in bytes."""

    label: str
    """`VRAM` or `RAM`."""
    name: str
    target: int
    draft: int
    kv: int
    """Caches and recurrent states of both models."""
    buffers: int
    free: int
    total: int

    @property
    def used(self) -> int:
        return self.target + self.draft + self.kv + self.buffers


def device_uses(info: SessionInfo) -> list[DeviceUse]:
    """Every device that holds a part of this pair, the fullest first."""
    uses = [_use(device, info.memory) for device in info.devices]
    return sorted((use for use in uses if use.used), key=lambda use: -use.used)


def _use(device: DeviceMemory, items: Sequence[MemoryItem]) -> DeviceUse:
    sums = dict.fromkeys(TERMS, 0)
    for item in items:
        if item.device == device.name:
            sums[_term(item.term)] += item.size_bytes
    return DeviceUse(
        "RAM" if device.kind == "cpu" else "VRAM", device.name, sums["target"], sums["draft"], sums["KV"],
        sums["buffers"], device.free_bytes, device.total_bytes,
    )  # fmt: skip


def _term(term: str) -> str:
    if term.endswith(("KV", "state")):
        return "KV"
    if term.endswith("weights"):
        return term.split(" ")[0]
    return "buffers"
