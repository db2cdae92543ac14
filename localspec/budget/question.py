"""One question to the budget (pair, settings, devices) and the bytes that answer it.

Applies the engine's own rules (`session.loading`, `session.companions`): k + 1 output rows on the target
whatever drafts, one on a draft model, a small batch for heads that compute logits for every row, snapshots
of recurrent states for every token that may be drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from localspec.budget.contexts import Footprint, Graph, footprint, snapshots
from localspec.budget.device import Device
from localspec.budget.layout import ALL, place
from localspec.budget.medusa import medusa_footprint
from localspec.budget.placement import Placement
from localspec.budget.shape import ContextShape, mtp_outputs
from localspec.header.architecture import ASSISTANT, LAYER_INPUTS
from localspec.header.facts import ModelFacts

PlanDraftKind = Literal["draft", "mtp", "eagle3", "dflash", "medusa"]
HOSTS = ("none", "CPU")
"""Device names that mean no accelerator."""
PIPELINE_COPIES = 4
"""`GGML_SCHED_MAX_COPIES`: what a model that is on several accelerators as a whole keeps of its inputs."""
STEP = 256
"""Contexts are whole multiples of this many cells."""


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """What a user or the engine asks for; the engine's own rules (k + 1 output rows, …) are applied here."""

    n_ctx: int = 8192
    kv: tuple[str, str] = ("f16", "f16")
    draft_kv: tuple[str, str] = ("f16", "f16")
    n_batch: int = 2048
    n_ubatch: int = 512
    k_max: int = 16
    """Longest draft; the target is sized for it with or without a drafter."""
    flash: bool = True
    gpu_layers: int | None = None
    """Target layers on accelerators, the output counted as one; None = all that fit."""
    draft_gpu_layers: int | None = None
    n_cpu_moe: int = 0
    n_seq: int = 1
    unified: bool = True
    swa_full: bool = False
    shares: tuple[float, ...] = ()
    """Proportion of the target per accelerator; empty = by free memory, as llama.cpp does."""
    device: str | None = None
    """The target's only device, `none` for the host; None = every accelerator."""
    draft_device: str | None = None
    """The same of the draft."""
    head_batch: int = 128
    """Batch of MTP, EAGLE-3 and DFlash contexts; the last two reserve logits for every row of it."""


@dataclass(frozen=True, slots=True)
class DraftPlanInput:
    """What drafts for the target."""

    kind: PlanDraftKind
    facts: ModelFacts | None = None
    """Facts of the companion file; None when the drafter is inside the target (MTP)."""

    @property
    def reads_target(self) -> bool:
        """Whether a companion uses the target's cache (Gemma's assistant) or output matrix, where that is."""
        if self.facts is None:
            return False
        borrows = self.kind in ("eagle3", "dflash") and not self.facts.own_output
        return borrows or self.facts.architecture == ASSISTANT


@dataclass(frozen=True, slots=True)
class Question:
    """The fixed part of a question."""

    target: ModelFacts
    draft: DraftPlanInput | None
    settings: BudgetSettings
    devices: tuple[Device, ...]
    """Host first, then accelerators."""

    @property
    def alignments(self) -> tuple[int, ...]:
        return tuple(device.alignment for device in self.devices)

    @property
    def gpus(self) -> tuple[Device, ...]:
        return self.devices[1:]

    @property
    def target_on_gpu(self) -> bool:
        """Whether the target may use accelerators at all."""
        return bool(self.gpus) and self.settings.device not in HOSTS


_cached = lru_cache(maxsize=4096)(footprint)


def _placed(
    pair: Question, facts: ModelFacts, layers: int, device: str | None, *, shares: tuple[float, ...] = ()
) -> Placement:
    """A model on one device by name, on the host, or by `shares` (empty: free memory) over accelerators."""
    settings = pair.settings
    if device in HOSTS:
        return place(facts, 0, n_devices=len(pair.gpus), op_offload=False)
    if device is not None:
        shares = tuple(float(gpu.name == device) for gpu in pair.gpus)
    experts_apart = facts is pair.target and settings.n_cpu_moe > 0
    pipeline = device is None and len(pair.gpus) > 1 and layers > len(facts.layers) and not experts_apart
    placed = place(
        facts,
        layers,
        n_devices=len(pair.gpus),
        shares=shares or tuple(float(gpu.free_bytes) for gpu in pair.gpus),
        n_cpu_moe=settings.n_cpu_moe if facts is pair.target else 0,
        op_offload=any(gpu.op_offload for gpu in pair.gpus),
    )
    return replace(placed, copies=PIPELINE_COPIES) if pipeline else placed


def _target_placement(pair: Question, gpu_layers: int) -> Placement:
    settings = pair.settings
    return _placed(pair, pair.target, gpu_layers, settings.device, shares=settings.shares)


def target_footprint(
    pair: Question, gpu_layers: int, *, careful: bool = True, detail: bool = False
) -> Footprint:
    """The target with its context."""
    settings, facts = pair.settings, pair.target
    kind = pair.draft.kind if pair.draft else None
    k = settings.k_max
    rs = snapshots(facts, k, settings.n_seq)
    shape = ContextShape.of(
        settings.n_ctx,
        n_batch=max(settings.n_batch, k + 2),
        n_ubatch=max(settings.n_ubatch, k + 2),
        n_outputs_max=max(k + 1, settings.n_seq),
        n_seq=settings.n_seq,
        unified=settings.unified,
        n_rs_seq=rs,
        flash=settings.flash,
        kv=settings.kv,
        swa_full=settings.swa_full,
    )
    placement = _target_placement(pair, gpu_layers)
    head = pair.draft.facts if pair.draft else None
    read = set(head.target_layers) if head and kind in ("eagle3", "dflash") else set()
    exposed = facts.architecture in LAYER_INPUTS
    inside = kind == "mtp" and head is None
    return _cached(
        facts,
        shape,
        placement,
        alignments=pair.alignments,
        with_nextn=inside,
        detail=detail,
        taps=tuple(sorted(n for n in read if n < facts.n_layer)) if exposed else (),
        nextn=kind == "mtp" or (exposed and facts.n_layer in read),
        hidden=kind == "medusa",
    )


def _draft_placement(pair: Question, draft: DraftPlanInput, gpu_layers: int) -> Placement:
    """MTP layers inside the target are where it has them; a borrowed matrix is used where it is."""
    settings, facts = pair.settings, draft.facts
    target = _target_placement(pair, gpu_layers)
    if facts is None:
        return target
    layers = ALL if settings.draft_gpu_layers is None else settings.draft_gpu_layers
    own = _placed(pair, facts, layers, settings.draft_device)
    if facts.architecture == ASSISTANT:
        windowed, everything = target.blocks[pair.target.n_layer - 2 :][:2]
        return replace(own, caches=tuple(windowed if la.windowed else everything for la in facts.layers))
    return replace(own, borrowed=target.output) if draft.reads_target else own


def draft_footprint(pair: Question, gpu_layers: int, *, detail: bool = False) -> Footprint | None:
    """The drafter's own context.

    Args:
        gpu_layers: the target's, whose cache and matrices a head may use.
    """
    settings, draft = pair.settings, pair.draft
    if draft is None:
        return None
    facts = draft.facts or pair.target
    if draft.kind == "medusa":
        layers = ALL if settings.draft_gpu_layers is None else settings.draft_gpu_layers
        return medusa_footprint(
            facts,
            pair.target,
            lambda matrix: _placed(pair, matrix, layers, settings.draft_device),
            alignments=pair.alignments,
            detail=detail,
        )
    least = settings.k_max + 2
    assistant = facts.architecture == ASSISTANT
    head = draft.kind in ("mtp", "eagle3", "dflash")
    batch = max(settings.n_batch, least)
    outputs = settings.n_seq
    if draft.kind == "mtp":
        outputs = mtp_outputs(settings.k_max, facts.n_nextn, assistant=assistant)
        batch = max(min(batch, settings.head_batch), outputs)
    elif head:
        batch = outputs = settings.head_batch
    n_seq = 1 if head else settings.n_seq  # a head follows one conversation at a time
    shape = ContextShape.of(
        settings.n_ctx // settings.n_seq * n_seq,
        n_batch=batch,
        n_ubatch=max(settings.n_ubatch, least),
        n_outputs_max=outputs,
        n_seq=n_seq,
        unified=settings.unified,
        flash=settings.flash,
        kv=settings.kv if assistant else settings.draft_kv,
        swa_full=settings.swa_full,
        read_ubatch=max(settings.n_ubatch, least) if assistant else 0,
    )
    placement = _draft_placement(pair, draft, gpu_layers)
    graphs: dict[str, Graph] = {"mtp": "mtp", "eagle3": "eagle3", "dflash": "dflash"}
    graph = graphs.get(draft.kind, "model")
    if assistant:
        graph = "assistant"
    elif graph == "mtp" and facts.n_nextn == 0:
        graph = "model"
    return _cached(
        facts,
        shape,
        placement,
        alignments=pair.alignments,
        graph=graph,
        with_nextn=True,
        own_weights=draft.facts is not None,
        nextn=head,
        detail=detail,
    )


def totals(pair: Question, gpu_layers: int, *, careful: bool = True) -> list[int]:
    """Bytes the pair takes per device."""
    totals = list(target_footprint(pair, gpu_layers, careful=careful).totals)
    draft = draft_footprint(pair, gpu_layers)
    return [a + b for a, b in zip(totals, draft.totals, strict=True)] if draft else totals


def room(pair: Question, gpu_layers: int, *, accelerators_only: bool = False, careful: bool = True) -> float:
    """Smallest spare part over the devices: ≥ SPARE fits, ≥ 0 loads, below 0 does not."""
    worst = 1.0
    for device, needed in zip(pair.devices, totals(pair, gpu_layers, careful=careful), strict=True):
        if not device.total_bytes or (accelerators_only and device.kind == "cpu"):  # RAM nobody asked about
            continue
        usable = device.usable_bytes
        spare = (usable - needed) / usable if usable else (-1.0 if needed else 1.0)
        worst = min(worst, spare)
    return worst


def largest_holding(low: int, high: int, spare: Callable[[int], float]) -> int:
    """Largest number in low…high with `spare(number) ≥ 0`, for a spare that falls; low - 1 if none.

    Memory is nearly linear in contexts and layers, so the next try is where a line through the bracket
    crosses zero.
    """
    at_low = spare(low)
    if at_low < 0:
        return low - 1
    at_high = spare(high)
    if at_high >= 0:
        return high
    while high - low > 1:
        guess = low + int((high - low) * at_low / (at_low - at_high))
        guess = min(max(guess, low + 1), high - 1)
        value = spare(guess)
        if value >= 0:
            low, at_low = guess, value
            beyond = spare(guess + 1) if guess + 1 < high else at_high
            if beyond < 0:
                return guess
            low, at_low = guess + 1, beyond
        else:
            high, at_high = guess, value
            middle = spare((low + high) // 2) if high - low > 16 else -1.0
            if middle >= 0:
                low, at_low = (low + high) // 2, middle
    return low


def changed(pair: Question, **changes: object) -> Question:
    """The same question with other settings."""
    return replace(pair, settings=replace(pair.settings, **changes))  # type: ignore[arg-type]


def largest_context(pair: Question, gpu_layers: int) -> int:
    """Longest context per sequence, a multiple of 256 up to the trained length, that loads; 0 = none does."""
    most = (pair.target.n_ctx_train or 131_072) // STEP
    if most < 1:
        return 0
    step = STEP * pair.settings.n_seq
    steps = largest_holding(1, most, lambda n: room(changed(pair, n_ctx=n * step), gpu_layers))
    return max(steps, 0) * STEP


def most_layers(pair: Question) -> int:
    """Most layers on accelerators that leave everything room; 0 when not even one does.

    Accelerators want few layers, RAM wants many: the most that fit the accelerators are the best for RAM.
    """
    n_layers = len(pair.target.layers)
    layers = largest_holding(1, n_layers, lambda n: room(pair, n, accelerators_only=True, careful=False))
    while layers > 0 and room(pair, layers, accelerators_only=True) < 0:
        layers -= 1
    return layers if layers > 0 and room(pair, layers) >= 0 else 0
