"""Which blocks and weights llama.cpp puts on which device.

The rule of the pinned build (`llama_model_base::load_tensors`): `gpu_layers = N` moves the output and the
last N-1 blocks; with several accelerators the moved range is cut at cumulative shares. Input tensors stay in
host memory; a tied output is a second copy of the embedding when it leaves the host.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from localspec.budget.placement import Placement
from localspec.budget.replay import HOST
from localspec.budget.shape import CURRENT, Build
from localspec.header.facts import ModelFacts

ALL = 1 << 20
"""A number of GPU layers that means all."""


def place(
    facts: ModelFacts,
    gpu_layers: int,
    *,
    n_devices: int,
    shares: Sequence[float] = (),
    n_cpu_moe: int = 0,
    op_offload: bool = True,
    build: Build = CURRENT,
) -> Placement:
    """Assign every block and the output.

    Args:
        gpu_layers: layers on accelerators, the output counted as one.
        n_devices: accelerators in use.
        shares: proportion of the layers per accelerator; empty = equal.
        n_cpu_moe: routed experts of this many first blocks stay in host memory.
        op_offload: the accelerators take large batches of host blocks (CUDA, Vulkan, Metal; not RPC).
    """
    n_blocks = len(facts.layers)
    moved = min(max(gpu_layers, 0), n_blocks + 1) if n_devices else 0
    start = n_blocks + 1 - moved
    if not build.output_counts_as_layer and moved <= n_blocks:
        start = n_blocks - moved
    total = sum(shares[:n_devices]) or float(n_devices) or 1.0
    bounds, running = [], 0.0
    for index in range(n_devices):
        running += shares[index] if len(shares) > index else (0.0 if shares else 1.0)
        bounds.append(running / total)

    def device(block: int) -> int:
        if (
            block < start
            or not moved
            or (block == n_blocks and not build.output_counts_as_layer and moved <= n_blocks)
        ):
            return HOST
        # llama.cpp compares 32-bit fractions with the cumulative shares
        return min(bisect_right(bounds, (block - start) / moved), n_devices - 1) + 1

    return Placement(
        blocks=tuple(device(block) for block in range(n_blocks)),
        output=device(n_blocks),
        n_devices=n_devices,
        host_experts=frozenset(
            n
            for n, layer in enumerate(facts.layers[: max(n_cpu_moe, 0)])
            if layer.expert_bytes and device(n) != HOST
        ),
        op_offload=op_offload,
    )


def weights(facts: ModelFacts, placement: Placement, *, with_nextn: bool) -> list[int]:
    """Weight bytes per device number, host first.

    Args:
        with_nextn: nextn blocks are loaded too (`load_mtp`).
    """
    sizes = [0] * (placement.n_devices + 1)
    sizes[HOST] += facts.embedding_bytes + facts.host_bytes
    for block, layer in enumerate(facts.layers):
        if block >= facts.n_layer and not with_nextn:
            continue
        device = placement.blocks[block]
        sizes[device] += layer.weight_bytes
        sizes[HOST if block in placement.host_experts else device] += layer.expert_bytes
    sizes[placement.output] += facts.output_bytes
    if facts.tied and placement.output != HOST:
        sizes[placement.output] += facts.embedding_bytes
    return sizes
