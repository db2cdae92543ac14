"""What one loaded model takes: weights, caches, states, compute and output buffers, per device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from localspec.budget.assistant import reserve_assistant
from localspec.budget.builder import OFFLOAD_ROWS
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
Graph = Literal["model", "mtp", "assistant", "eagle3", "dflash"]
_HEADS: dict[str, Callable[..., Reserved]] = {
    "mtp": reserve_mtp,
    "assistant": reserve_assistant,
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
    careful: bool,
) -> Reserved:
    if graph in _HEADS:
        return _HEADS[graph](facts, shape, placement, **how)
    shapes = _no_larger(shape, placement) if careful else [shape]
    tries = [reserve(facts, one, placement, **how, **taps) for one in shapes]
    peaks = tuple(max(peak) for peak in zip(*(one.peaks for one in tries), strict=True))
    return replace(tries[0], peaks=peaks)


def _no_larger(shape: ContextShape, placement: Placement) -> list[ContextShape]:
    """The shape, and smaller ones that a best-fit allocator may need more for; a budget must not shrink."""
    shapes = [shape]
    borrows = placement.op_offload and placement.n_devices > 0 and HOST in placement.blocks
    if borrows or not shape.flash:
        below = 1 << max(shape.n_ubatch - 1, 1).bit_length() - 1
        smaller = [size for size in (below, below // 2) if OFFLOAD_ROWS <= size < shape.n_ubatch]
        shapes += [replace(shape, n_ubatch=size, n_outputs=min(size, shape.n_outputs)) for size in smaller]
    if not shape.flash:
        steps = range(1, min(_STEPS, shape.n_ctx_seq // CELLS))
        shapes += [replace(s, n_ctx_seq=s.n_ctx_seq - step * CELLS) for s in tuple(shapes) for step in steps]
    return shapes


def footprint(
    facts: ModelFacts,
    shape: ContextShape,
    placement: Placement,
    *,
    alignments: tuple[int, ...],
    graph: Graph = "model",
    with_nextn: bool = False,
    taps: tuple[int, ...] = (),
    nextn: bool = False,
    hidden: bool = False,
    own_weights: bool = True,
    build: Build = CURRENT,
    careful: bool = True,
    detail: bool = False,
) -> Footprint:
    """Memory of a model's context.

    Args:
        graph: which graph the context reserves; `mtp` is a nextn context.
        with_nextn: nextn blocks are loaded with the weights.
        taps: blocks whose inputs are kept for a drafter.
        nextn: hidden states of all rows are kept for a drafter.
        hidden: hidden states of output rows are kept for a drafter.
        careful: never plan less for more (context, batch); False for a quick first search.
        detail: also tell which tensors fill the compute buffers.
        own_weights: False for a context whose weights are another's (MTP inside the target).
    """
    none = (0,) * (placement.n_devices + 1)
    how = {"alignments": alignments, "build": build, "detail": detail}
    reserved = _compute(facts, shape, placement, graph, how, {"taps": taps, "nextn": nextn}, careful)
    return Footprint(
        weights=tuple(weights(facts, placement, with_nextn=with_nextn)) if own_weights else none,
        kv=tuple(kv_bytes(facts, shape, placement, mtp=graph == "mtp", build=build)),
        state=none if graph == "mtp" else tuple(state_bytes(facts, shape, placement)),
        compute=reserved.peaks,
        output=output_bytes(facts, shape, taps=len(taps), nextn=nextn, hidden=hidden),
        reserved=reserved,
    )


def snapshots(facts: ModelFacts, k: int, n_seq: int = 1) -> int:
    """`n_rs_seq` of a recurrent target for drafts of up to `k` tokens; 0 where llama.cpp keeps none.

    Nor are any kept for several sequences: they do not survive a pass of the others.
    """
    return k if facts.architecture in SNAPSHOTS and facts.recurrent and n_seq == 1 else 0
