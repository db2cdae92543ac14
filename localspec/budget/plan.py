"""Will a pair fit? Itemised bytes per device, a fit word, the largest context, and what would help.

Pure: facts, settings and device figures in, a plan out. The bytes follow llama.cpp's own allocation
(`graph`, `cache`, `layout`); what llama.cpp cannot know (driver, reserve) comes from the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from localspec.budget.contexts import Footprint, snapshots
from localspec.budget.device import Device
from localspec.budget.layout import ALL
from localspec.budget.question import (
    BudgetSettings,
    DraftPlanInput,
    Question,
    changed,
    draft_footprint,
    largest_context,
    largest_holding,
    most_layers,
    room,
    target_footprint,
    totals,
)
from localspec.budget.replay import HOST
from localspec.budget.shape import ContextShape
from localspec.header.bound import head_facts
from localspec.header.facts import ModelFacts

Fit = Literal["fits", "tight", "partial", "too big", "unknown"]
SPARE = 0.10
"""Part of the usable memory that must stay free for the word `fits`."""
MIN_CTX = 512


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
    """Of one sequence, as llama.cpp will allocate it (padded)."""
    kv: tuple[str, str]
    gpu_layers: int
    n_layers: int
    """Layers that could go to an accelerator, the output included."""
    largest_ctx: int
    """Longest context per sequence that loads with all on the accelerators (on a CPU: in RAM); 0 = none."""
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


def _word(spare: float) -> Fit:
    return "fits" if spare >= SPARE else "tight" if spare >= 0 else "too big"


def _suggestions(pair: Question, gpu_layers: int, largest: int, partial: int) -> list[Suggestion]:
    """What would make the pair fit as a whole, the mildest change first."""
    found: list[Suggestion] = []
    settings = pair.settings

    def spare(**changes: object) -> float:
        return room(changed(pair, **changes), ALL)

    n_layers = len(pair.target.layers) + 1
    if pair.target_on_gpu and gpu_layers < n_layers and spare() >= 0:
        return [Suggestion("gpu_layers", n_layers, f"all {n_layers} layers fit on the GPU")]
    n_ctx = settings.n_ctx // settings.n_seq
    if MIN_CTX <= largest < n_ctx:
        found.append(Suggestion("ctx", largest, f"a context of {largest} tokens fits"))
    if settings.flash:
        for kv in (("q8_0", "q8_0"), ("q4_0", "q4_0")):
            if settings.kv == ("f16", "f16") and spare(kv=kv) >= 0:
                found.append(Suggestion("kv", kv[0], f"a {kv[0]} KV cache fits at {n_ctx} tokens"))
                break
    if snapshots(pair.target, settings.k_max, settings.n_seq):
        k = largest_holding(1, settings.k_max, lambda n: spare(k_max=n))
        if 1 <= k < settings.k_max:
            found.append(
                Suggestion("k", k, f"drafts of at most {k} tokens fit: each one keeps a recurrent state")
            )
    if pair.target_on_gpu and pair.target.n_expert:
        blocks = len(pair.target.layers)
        kept = blocks - largest_holding(0, blocks, lambda n: spare(n_cpu_moe=blocks - n))
        if 0 < kept <= blocks:
            found.append(
                Suggestion("n_cpu_moe", kept, f"with the experts of {kept} blocks in RAM the rest fits")
            )
    if pair.draft and room(replace(pair, draft=None), ALL) >= 0:
        found.append(Suggestion("draft", "off", "the target alone fits"))
    if pair.target_on_gpu and 0 < partial <= len(pair.target.layers):
        found.append(
            Suggestion(
                "gpu_layers", partial, f"{partial} of {len(pair.target.layers) + 1} layers fit on the GPU"
            )
        )
    size = _file_that_fits(pair)
    if size:
        found.append(Suggestion("quant", size, f"a target file of at most {size / (1 << 30):.1f} GiB fits"))
    return found


def _file_that_fits(pair: Question) -> int:
    """Largest target file whose weights would leave room for the rest, 0 when not even half would do."""
    over = 0
    for device, needed in zip(
        pair.devices[1:] or pair.devices, totals(pair, ALL)[1:] or totals(pair, 0), strict=True
    ):
        over += max(needed - device.usable_bytes, 0)
    size = pair.target.size_bytes - over
    return size if 2 * size > pair.target.size_bytes and over else 0


def _missing(target: ModelFacts, draft: DraftPlanInput | None) -> tuple[str, ...]:
    """Facts without which no plan is honest; a file in a role it cannot have lacks what that needs."""
    missing = target.unknown + (() if target.layers else ("n_layer",))
    if draft is None or (draft.facts is None and draft.kind != "medusa"):
        return missing
    if draft.facts is None:
        return (*missing, "n_layer")
    needed = draft.facts.head_matrices if draft.kind == "medusa" else draft.facts.layers
    return missing + draft.facts.unknown + (() if needed else ("n_layer",))


def _unknown(pair: Question, missing: tuple[str, ...]) -> Plan:
    """No word without the facts; file sizes are all that is known."""
    where = pair.devices[1] if pair.gpus else pair.devices[0]
    items = [PlanItem("target weights", where.name, pair.target.size_bytes)]
    if pair.draft and pair.draft.facts:
        items.append(PlanItem("draft weights", where.name, pair.draft.facts.size_bytes))
    needed = sum(item.size_bytes for item in items)
    return Plan(
        fit="unknown", items=tuple(items),
        devices=_uses(pair, [needed if d is where else 0 for d in pair.devices]),
        n_ctx=pair.settings.n_ctx // pair.settings.n_seq, kv=pair.settings.kv,
        gpu_layers=0, n_layers=len(pair.target.layers) + 1,
        largest_ctx=0, suggestions=(), compared_with=_compared(pair), estimated=True, missing=missing,
    )  # fmt: skip


def _compared(pair: Question) -> str:
    if not pair.gpus:
        return "CPU"
    return "SIM" if any(gpu.simulated for gpu in pair.gpus) else "GPU"


def _uses(pair: Question, needed: Sequence[int]) -> tuple[DeviceUse, ...]:
    return tuple(
        DeviceUse(d.name, d.kind, n, d.usable_bytes, d.free_bytes, d.total_bytes, d.simulated)
        for d, n in zip(pair.devices, needed, strict=True)
        if d.total_bytes or n
    )


def _items(pair: Question, target: Footprint, draft: Footprint | None) -> tuple[PlanItem, ...]:
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
    detail: bool = True,
) -> Plan:
    """Plan a pair.

    Args:
        devices: accelerators and, when known, the host (`kind="cpu"`). Without an accelerator the pair is
            compared with the host's RAM.
        detail: also work out what fills the compute buffers and what would help when the pair does not fit.
    """
    gpus = tuple(device for device in devices if device.kind != "cpu")
    host = next(
        (device for device in devices if device.kind == "cpu"), Device("CPU", "cpu", 0, 0, 0, 0, 32, False)
    )
    if settings.n_ctx < 1:
        settings = replace(settings, n_ctx=target.n_ctx_train or 8192)
    if draft and draft.facts and draft.kind != "draft":
        draft = DraftPlanInput(draft.kind, head_facts(draft.facts, target, draft.kind))
    missing = _missing(target, draft)
    pair = Question(target, draft, settings, (host, *gpus))
    if missing:
        return _unknown(pair, missing)
    n_layers = len(target.layers) + 1
    on_gpu = pair.target_on_gpu
    everything = ALL if on_gpu else 0
    wanted = everything if settings.gpu_layers is None or not on_gpu else settings.gpu_layers
    spare, partial = room(pair, wanted), 0
    fit, layers = _word(spare), min(wanted, n_layers)
    if on_gpu and settings.gpu_layers is None and spare < 0:
        partial = most_layers(pair)
        layers = partial or layers
        fit = "partial" if partial else "too big"
    elif on_gpu and layers < n_layers and spare >= 0:
        fit = "partial"
    largest = largest_context(pair, everything)
    chosen = target_footprint(pair, layers, detail=detail)
    companion = draft_footprint(pair, layers, detail=detail)
    shape = ContextShape.of(settings.n_ctx, n_seq=settings.n_seq, unified=settings.unified)
    helpful = detail and fit in ("tight", "partial", "too big")
    return Plan(
        fit=fit,
        items=_items(pair, chosen, companion),
        devices=_uses(pair, totals(pair, layers)),
        n_ctx=shape.n_ctx // settings.n_seq,
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
    pair: Question, target: Footprint, draft: Footprint | None
) -> tuple[tuple[str, str, tuple[tuple[str, int], ...]], ...]:
    return tuple(
        (who, device.name, largest)
        for who, model in (("target", target), ("draft", draft))
        if model is not None
        for device, largest in zip(pair.devices, model.reserved.largest, strict=True)
        if largest
    )
