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
    borrowed: int | None = None
    """Where the output matrix is when it is another model's."""
    caches: tuple[int, ...] = ()
    """Device of the cache that each block reads, where it is another context's; empty = the blocks' own."""
    copies: int = 1
    """Of inputs and of what crosses devices: accelerators that work as a pipeline hold several batches."""
    op_offload: bool = True
    """Large batches of host blocks are computed on the first accelerator, which copies their weights."""

    @property
    def matrix(self) -> int:
        """Where logits are computed."""
        return self.output if self.borrowed is None else self.borrowed
