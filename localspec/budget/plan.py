"""Will a pair fit? Itemised bytes per device, a fit word, the largest context, and what would help.

Pure: facts, settings and device figures in, a plan out. The bytes follow llama.cpp's own allocation
(`graph`, `cache`, `layout`); what llama.cpp cannot know (driver, reserve) comes from the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from localspec.budget.contexts import Footprint, Graph, footprint, snapshots
from localspec.budget.device import Device
from localspec.budget.layout import ALL, place
from localspec.budget.replay import HOST
from localspec.budget.shape import ContextShape
from localspec.header.facts import ModelFacts

Fit = Literal["fits", "tight", "partial", "too big", "unknown"]
PlanDraftKind = Literal["draft", "mtp", "eagle3", "dflash", "medusa"]
SPARE = 0.10
"""Part of the usable memory that must stay free for the word `fits`."""
STEP = 256
MIN_CTX = 512


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """What a user or the engine asks for; the engine's own rules (k + 1 output rows, …) are applied here."""

    n_ctx: int = 8192
    kv: tuple[str, str] = ("f16", "f16")
    draft_kv: tuple[str, str] = ("f16", "f16")
    n_batch: int = 2048
    n_ubatch: int = 512
    k_max: int = 16
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
    head_batch: int = 128
    """Batch of EAGLE-3 and DFlash contexts, which reserve logits for every row of it."""


@dataclass(frozen=True, slots=True)
class DraftPlanInput:
    """What drafts for the target."""

    kind: PlanDraftKind
    facts: ModelFacts | None = None
    """Facts of the companion file; None when the drafter is inside the target (MTP)."""


@dataclass(frozen=True, slots=True)
class PlanItem:
    """Bytes for one purpose on one device."""

    term: str
    device: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device and what the plan takes of it."""

    name: str
    kind: str
    needed_bytes: int
    usable_bytes: int
    free_bytes: int
    total_bytes: int
    simulated: bool

    @property
    def spare_bytes(self) -> int:
        return self.usable_bytes - self.needed_bytes


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change that would make the pair fit."""

    setting: Literal["ctx", "kv", "gpu_layers", "n_cpu_moe", "k", "quant", "draft"]
    value: int | str
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer for one pair, settings and set of devices."""

    fit: Fit
    items: tuple[PlanItem, ...]
    devices: tuple[DeviceUse, ...]
    n_ctx: int
    """As llama.cpp will allocate it (padded)."""
    kv: tuple[str, str]
    gpu_layers: int
    n_layers: int
    """Layers that could go to an accelerator, the output included."""
    largest_ctx: int
    """Longest context that still loads with everything on the accelerators (on a CPU: in RAM); 0 = none."""
    suggestions: tuple[Suggestion, ...]
    compared_with: str
    """`GPU`, `CPU` (available RAM) or `SIM`."""
    estimated: bool
    """True when bytes per block were derived from the catalogue, not read from a header."""
    missing: tuple[str, ...]
    """Facts without which the word is `unknown`."""
    peaks: tuple[tuple[str, str, tuple[tuple[str, int], ...]], ...] = ()
    """(model, device, largest tensors) of each compute buffer, for `explain`."""

    @property
    def total_bytes(self) -> int:
        """Everything the pair allocates, on all devices, without driver and reserve."""
        return sum(item.size_bytes for item in self.items if item.term not in ("backend context", "reserve"))

    def on(self, device: str, term: str) -> int:
        """Bytes of one term on one device."""
        return sum(item.size_bytes for item in self.items if item.device == device and item.term == term)


@dataclass(frozen=True, slots=True)
class _Pair:
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


_cached = lru_cache(maxsize=4096)(footprint)


def _target(pair: _Pair, gpu_layers: int) -> Footprint:
    settings, facts = pair.settings, pair.target
    kind = pair.draft.kind if pair.draft else None
    k = settings.k_max if pair.draft else 0
    rs = snapshots(facts, k)
    shape = ContextShape.of(
        settings.n_ctx,
        n_batch=max(settings.n_batch, k + 1),
        n_ubatch=max(settings.n_ubatch, k + 2 if rs else k + 1),
        n_outputs_max=max(k + 1, settings.n_seq),
        n_seq=settings.n_seq,
        unified=settings.unified,
        n_rs_seq=rs,
        flash=settings.flash,
        kv=settings.kv,
        swa_full=settings.swa_full,
    )
    shares = settings.shares or tuple(float(gpu.free_bytes) for gpu in pair.gpus)
    placement = place(
        facts,
        gpu_layers,
        n_devices=len(pair.gpus),
        shares=shares,
        n_cpu_moe=settings.n_cpu_moe,
        op_offload=any(gpu.op_offload for gpu in pair.gpus),
    )
    head = pair.draft.facts if pair.draft else None
    taps = len(head.target_layers) if head and kind in ("eagle3", "dflash") else 0
    inside = kind == "mtp" and head is None
    return _cached(
        facts, shape, placement, alignments=pair.alignments, with_nextn=inside, taps=taps, nextn=kind == "mtp"
    )


def _draft(pair: _Pair) -> Footprint | None:
    """The drafter's own context; heads and small models go to the first accelerator as a whole."""
    settings, draft = pair.settings, pair.draft
    if draft is None or (draft.kind == "medusa" and draft.facts is None):
        return None
    facts = draft.facts or pair.target
    block = draft.kind in ("eagle3", "dflash")
    batch = settings.head_batch if block else settings.n_ubatch
    shape = ContextShape.of(
        STEP if draft.kind == "medusa" else settings.n_ctx,
        n_batch=batch if block else settings.n_batch,
        n_ubatch=batch,
        n_outputs_max=0 if block else settings.k_max if draft.kind == "medusa" else settings.n_seq,
        n_seq=settings.n_seq,
        unified=settings.unified,
        flash=settings.flash,
        kv=settings.draft_kv,
        swa_full=settings.swa_full,
    )
    layers = ALL if settings.draft_gpu_layers is None else settings.draft_gpu_layers
    shares = (1.0,) + (0.0,) * (len(pair.gpus) - 1) if pair.gpus else ()
    placement = place(facts, layers, n_devices=len(pair.gpus), shares=shares)
    graphs: dict[str, Graph] = {"mtp": "mtp", "eagle3": "eagle3", "dflash": "dflash"}
    graph = graphs.get(draft.kind, "model")
    if graph == "mtp" and facts.n_nextn == 0:
        graph = "model"
    return _cached(
        facts,
        shape,
        placement,
        alignments=pair.alignments,
        graph=graph,
        with_nextn=True,
        own_weights=draft.facts is not None,
    )


def _totals(pair: _Pair, gpu_layers: int) -> list[int]:
    totals = list(_target(pair, gpu_layers).totals)
    draft = _draft(pair)
    return [a + b for a, b in zip(totals, draft.totals, strict=True)] if draft else totals


def _room(pair: _Pair, gpu_layers: int) -> float:
    """Smallest spare part over all devices: ≥ SPARE fits, ≥ 0 loads, below 0 does not."""
    worst = 1.0
    for device, needed in zip(pair.devices, _totals(pair, gpu_layers), strict=True):
        if not device.total_bytes:  # RAM nobody asked about
            continue
        usable = device.usable_bytes
        spare = (usable - needed) / usable if usable else (-1.0 if needed else 1.0)
        worst = min(worst, spare)
    return worst


def _largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Largest number in low…high that holds, for a predicate that fails from some number on; low - 1 if none."""
    if not holds(low):
        return low - 1
    if holds(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _with(pair: _Pair, **changes: object) -> _Pair:
    return replace(pair, settings=replace(pair.settings, **changes))  # type: ignore[arg-type]


def largest_context(pair: _Pair, gpu_layers: int) -> int:
    """Longest context, a multiple of 256 up to the trained length, that loads."""
    most = (pair.target.n_ctx_train or 131_072) // STEP
    if most < 1:
        return 0
    steps = _largest(1, most, lambda n: _room(_with(pair, n_ctx=n * STEP), gpu_layers) >= 0)
    return max(steps, 0) * STEP


def _word(room: float) -> Fit:
    return "fits" if room >= SPARE else "tight" if room >= 0 else "too big"


def _suggestions(pair: _Pair, gpu_layers: int, largest: int, partial: int) -> list[Suggestion]:
    """What would make the pair fit as a whole, the mildest change first."""
    found: list[Suggestion] = []
    settings = pair.settings

    def holds(**changes: object) -> bool:
        return _room(_with(pair, **changes), ALL) >= 0

    if MIN_CTX <= largest < settings.n_ctx:
        found.append(Suggestion("ctx", largest, f"a context of {largest} tokens fits"))
    if settings.flash:
        for kv in (("q8_0", "q8_0"), ("q4_0", "q4_0")):
            if settings.kv == ("f16", "f16") and holds(kv=kv):
                found.append(Suggestion("kv", kv[0], f"a {kv[0]} KV cache fits at {settings.n_ctx} tokens"))
                break
    if pair.draft and snapshots(pair.target, settings.k_max):
        k = _largest(1, settings.k_max, lambda n: holds(k_max=n))
        if 1 <= k < settings.k_max:
            found.append(
                Suggestion("k", k, f"drafts of at most {k} tokens fit: each one keeps a recurrent state")
            )
    if pair.gpus and pair.target.n_expert:
        blocks = len(pair.target.layers)
        kept = blocks - _largest(0, blocks, lambda n: holds(n_cpu_moe=blocks - n))
        if 0 < kept <= blocks and holds(n_cpu_moe=kept):
            found.append(
                Suggestion("n_cpu_moe", kept, f"with the experts of {kept} blocks in RAM the rest fits")
            )
    if pair.draft and _room(replace(pair, draft=None), ALL) >= 0:
        found.append(Suggestion("draft", "off", "the target alone fits"))
    if pair.gpus and 0 < partial <= len(pair.target.layers):
        found.append(
            Suggestion(
                "gpu_layers", partial, f"{partial} of {len(pair.target.layers) + 1} layers fit on the GPU"
            )
        )
    size = _file_that_fits(pair)
    if size:
        found.append(Suggestion("quant", size, f"a target file of at most {size / (1 << 30):.1f} GiB fits"))
    return found


def _file_that_fits(pair: _Pair) -> int:
    """Largest target file whose weights would leave room for the rest, 0 when not even half would do."""
    over = 0
    for device, needed in zip(
        pair.devices[1:] or pair.devices, _totals(pair, ALL)[1:] or _totals(pair, 0), strict=True
    ):
        over += max(needed - device.usable_bytes, 0)
    size = pair.target.size_bytes - over
    return size if 2 * size > pair.target.size_bytes and over else 0


def _unknown(pair: _Pair, missing: tuple[str, ...]) -> Plan:
    """No word without the facts; file sizes are all that is known."""
    where = pair.devices[1] if pair.gpus else pair.devices[0]
    items = [PlanItem("target weights", where.name, pair.target.size_bytes)]
    if pair.draft and pair.draft.facts:
        items.append(PlanItem("draft weights", where.name, pair.draft.facts.size_bytes))
    needed = sum(item.size_bytes for item in items)
    return Plan(
        fit="unknown", items=tuple(items), devices=_uses(pair, [needed if d is where else 0 for d in pair.devices]),
        n_ctx=pair.settings.n_ctx, kv=pair.settings.kv, gpu_layers=0, n_layers=len(pair.target.layers) + 1,
        largest_ctx=0, suggestions=(), compared_with=_compared(pair), estimated=True, missing=missing,
    )  # fmt: skip


def _compared(pair: _Pair) -> str:
    if not pair.gpus:
        return "CPU"
    return "SIM" if any(gpu.simulated for gpu in pair.gpus) else "GPU"


def _uses(pair: _Pair, needed: Sequence[int]) -> tuple[DeviceUse, ...]:
    return tuple(
        DeviceUse(d.name, d.kind, n, d.usable_bytes, d.free_bytes, d.total_bytes, d.simulated)
        for d, n in zip(pair.devices, needed, strict=True)
        if d.total_bytes or n
    )


def _items(pair: _Pair, target: Footprint, draft: Footprint | None) -> tuple[PlanItem, ...]:
    rows: list[PlanItem] = []
    for number, device in enumerate(pair.devices):
        for who, model in (("target", target), ("draft", draft)):
            if model is None:
                continue
            terms = (
                ("weights", model.weights),
                ("KV", model.kv),
                ("state", model.state),
                ("compute", model.compute),
            )
            rows += [
                PlanItem(f"{who} {term}", device.name, sizes[number])
                for term, sizes in terms
                if sizes[number]
            ]
        if number == HOST:
            output = target.output + (draft.output if draft else 0)
            rows.append(PlanItem("output buffer", device.name, output))
        used = number != HOST or not pair.gpus
        if used and device.overhead_bytes:
            rows.append(PlanItem("backend context", device.name, device.overhead_bytes))
        if used and device.reserve_bytes:
            rows.append(PlanItem("reserve", device.name, device.reserve_bytes))
    return tuple(rows)


def plan(
    target: ModelFacts,
    draft: DraftPlanInput | None,
    settings: BudgetSettings,
    devices: Sequence[Device],
    *,
    suggest: bool = True,
) -> Plan:
    """Plan a pair.

    Args:
        devices: accelerators and, when known, the host (`kind="cpu"`). Without an accelerator the pair is
            compared with the host's RAM.
        suggest: work out what would help when the pair does not fit.
    """
    gpus = tuple(device for device in devices if device.kind != "cpu")
    host = next(
        (device for device in devices if device.kind == "cpu"), Device("CPU", "cpu", 0, 0, 0, 0, 32, False)
    )
    if settings.n_ctx < 1:
        settings = replace(settings, n_ctx=target.n_ctx_train or 8192)
    pair = _Pair(target, draft, settings, (host, *gpus))
    missing = target.unknown + (draft.facts.unknown if draft and draft.facts else ())
    if missing:
        return _unknown(pair, missing)
    n_layers = len(target.layers) + 1
    everything = ALL if gpus else 0
    wanted = everything if settings.gpu_layers is None or not gpus else settings.gpu_layers
    room, partial = _room(pair, wanted), 0
    fit, layers = _word(room), min(wanted, n_layers)
    if gpus and settings.gpu_layers is None and room < 0:
        partial = max(_largest(1, n_layers - 1, lambda n: _room(pair, n) >= 0), 0)
        layers = partial or layers
        fit = "partial" if partial else "too big"
    elif gpus and layers < n_layers and room >= 0:
        fit = "partial"
    largest = largest_context(pair, everything)
    chosen, companion = _target(pair, layers), _draft(pair)
    helpful = suggest and fit in ("tight", "partial", "too big")
    return Plan(
        fit=fit,
        items=_items(pair, chosen, companion),
        devices=_uses(pair, _totals(pair, layers)),
        n_ctx=ContextShape.of(settings.n_ctx, n_seq=settings.n_seq, unified=settings.unified).n_ctx,
        kv=settings.kv,
        gpu_layers=layers,
        n_layers=n_layers,
        largest_ctx=largest,
        suggestions=tuple(_suggestions(pair, layers, largest, partial)) if helpful else (),
        compared_with=_compared(pair),
        estimated=target.estimated or bool(draft and draft.facts and draft.facts.estimated),
        missing=(),
        peaks=_peaks(pair, chosen, companion),
    )


def _peaks(
    pair: _Pair, target: Footprint, draft: Footprint | None
) -> tuple[tuple[str, str, tuple[tuple[str, int], ...]], ...]:
    return tuple(
        (who, device.name, largest)
        for who, model in (("target", target), ("draft", draft))
        if model is not None
        for device, largest in zip(pair.devices, model.reserved.largest, strict=True)
        if largest
    )
