"""Where the parts of a model are: device numbers, host 0, accelerators from 1."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a context's blocks are: one device number per block, and the output's."""

    blocks: tuple[int, ...]
    output: int
    n_devices: int
    """Accelerators, without the host."""
    host_experts: frozenset[int] = frozenset()
    """Blocks whose routed experts stay in host memory."""
    op_offload: bool = True
    """Large batches of host blocks are computed on the first accelerator, which copies their weights."""
