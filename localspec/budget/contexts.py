"""What one loaded model takes: weights, caches, states, compute and output buffers, per device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from localspec.budget.cache import kv_bytes, output_bytes, state_bytes
from localspec.budget.graph import reserve
from localspec.budget.heads import reserve_dflash, reserve_eagle3, reserve_mtp
from localspec.budget.layout import weights
from localspec.budget.placement import Placement
from localspec.budget.replay import HOST, Reserved
from localspec.budget.shape import CURRENT, Build, ContextShape
from localspec.header.architecture import SNAPSHOTS
from localspec.header.facts import ModelFacts

CELLS = 256
_STEPS = 4
Graph = Literal["model", "mtp", "eagle3", "dflash"]
_HEADS: dict[str, Callable[..., Reserved]] = {
    "mtp": reserve_mtp,
    "eagle3": reserve_eagle3,
    "dflash": reserve_dflash,
}


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes per device number (host first) of one model and its context."""

    weights: tuple[int, ...]
    kv: tuple[int, ...]
    state: tuple[int, ...]
    compute: tuple[int, ...]
    output: int
    """Host only."""
    reserved: Reserved

    @property
    def totals(self) -> tuple[int, ...]:
        """Everything, per device."""
        parts = zip(self.weights, self.kv, self.state, self.compute, strict=True)
        sums = [sum(part) for part in parts]
        sums[HOST] += self.output
        return tuple(sums)


def _compute(
    facts: ModelFacts,
    shape: ContextShape,
    placement: Placement,
    graph: Graph,
    how: dict[str, Any],
    taps: dict[str, Any],
) -> Reserved:
    if graph in _HEADS:
        return _HEADS[graph](facts, shape, placement, **how)
    if shape.flash or shape.n_ctx_seq <= _STEPS * CELLS:
        return reserve(facts, shape, placement, **how, **taps)
    # The best-fit allocator can need less for a longer context; a budget must not.
    shorter = [replace(shape, n_ctx_seq=shape.n_ctx_seq - step * CELLS) for step in range(_STEPS)]
    tries = [reserve(facts, one, placement, **how, **taps) for one in shorter]
    peaks = tuple(max(peak) for peak in zip(*(one.peaks for one in tries), strict=True))
    return replace(tries[0], peaks=peaks)


def footprint(
    facts: ModelFacts,
    shape: ContextShape,
    placement: Placement,
    *,
    alignments: tuple[int, ...],
    graph: Graph = "model",
    with_nextn: bool = False,
    taps: int = 0,
    nextn: bool = False,
    own_weights: bool = True,
    build: Build = CURRENT,
    detail: bool = False,
) -> Footprint:
    """Memory of a model's context.

    Args:
        graph: which graph the context reserves: `mtp` is a nextn context.
        with_nextn: nextn blocks are loaded with the weights.
        taps: block inputs kept for a drafter.
        nextn: hidden states of all rows are kept for a drafter.
        detail: also tell which tensors fill the compute buffers.
        own_weights: False for a context whose weights are another's (MTP inside the target).
    """
    none = (0,) * (placement.n_devices + 1)
    how = {"alignments": alignments, "build": build, "detail": detail}
    reserved = _compute(facts, shape, placement, graph, how, {"taps": taps, "nextn": nextn})
    return Footprint(
        weights=tuple(weights(facts, placement, with_nextn=with_nextn)) if own_weights else none,
        kv=tuple(kv_bytes(facts, shape, placement, mtp=graph == "mtp", build=build)),
        state=none if graph == "mtp" else tuple(state_bytes(facts, shape, placement)),
        compute=reserved.peaks,
        output=output_bytes(facts, shape, taps=taps, nextn=nextn),
        reserved=reserved,
    )


def snapshots(facts: ModelFacts, k: int) -> int:
    """`n_rs_seq` of a recurrent target for drafts of up to `k` tokens; 0 where llama.cpp keeps none."""
    return k if facts.architecture in SNAPSHOTS and facts.recurrent else 0
