"""Memory to fit into: real devices as measured, or a simulated card."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from localspec.errors import UsageError

MIB = 1 << 20
GIB = 1 << 30
DRIVER_BYTES = 512 * MIB
"""Driver, backend context and captured graphs on a GPU: measured 451 MiB on an idle 24 GB card."""
RESERVE_BYTES = GIB
"""Left free on a GPU: loads that kept less than about 0.75 GiB died at the first unseen batch shape."""
HOST_RESERVE_BYTES = GIB
PRESETS = {
    "24GB-card": 24_077 * MIB,  # an RTX 4090 as CUDA reports it
    "8GB-card": 8_188 * MIB,
    "12GB-card": 12_282 * MIB,
    "16GB-card": 16_376 * MIB,
}
"""Simulated cards, one key away in the picker; the first is the default."""

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|[KMGT]i?B?)?\s*$", re.IGNORECASE)
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": MIB, "G": GIB, "T": 1 << 40}


@dataclass(frozen=True, slots=True)
class Device:
    """One memory the plan can use."""

    name: str
    kind: Literal["gpu", "igpu", "cpu"]
    free_bytes: int
    """What llama.cpp reports free now, memory of our own worker included."""
    total_bytes: int
    reserve_bytes: int = RESERVE_BYTES
    """Kept free after everything is loaded."""
    overhead_bytes: int = DRIVER_BYTES
    """Backend context that this process will add."""
    alignment: int = 128
    op_offload: bool = True
    """Large batches of host blocks run here (CUDA, Vulkan, Metal); False for RPC."""
    simulated: bool = False

    @property
    def usable_bytes(self) -> int:
        return max(self.free_bytes - self.reserve_bytes - self.overhead_bytes, 0)


def host_device(free_bytes: int, total_bytes: int) -> Device:
    """This machine's RAM as a device."""
    return Device(
        "CPU", "cpu", free_bytes, total_bytes, HOST_RESERVE_BYTES, 0, alignment=32, op_offload=False
    )


def simulated_card(total_bytes: int, name: str = "SIM") -> Device:
    """A card of `total_bytes` with nothing else on it."""
    return Device(name, "gpu", total_bytes, total_bytes, simulated=True)


def parse_size(text: str) -> int:
    """Bytes of `24GiB`, `24G`, `24576M`, `1.5 GiB`, …; units are powers of 1024.

    Raises:
        UsageError: not a positive size.
    """
    match = _SIZE.match(text)
    size = int(float(match[1]) * _UNITS[(match[2] or "").upper()[:1]]) if match else 0
    if size <= 0:
        raise UsageError(f"`{text}` is no memory size", hint="write it like `24GiB` or `24576MiB`")
    return size


def parse_budget(text: str) -> Device:
    """The simulated card of `--budget`: a preset name (`24GB-card`) or a size (`24GiB`).

    Raises:
        UsageError: neither.
    """
    for name, total in PRESETS.items():
        if text.strip().lower() == name.lower():
            return simulated_card(total, name)
    try:
        return simulated_card(parse_size(text), text.strip())
    except UsageError as error:
        raise UsageError(error.message, hint=f"a size like `24GiB`, or one of {', '.join(PRESETS)}") from None
