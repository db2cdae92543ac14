"""Plans of catalogue pairs: facts, devices and settings joined into one value per pair. No request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from localspec import budget
from localspec.budget import BudgetSettings, Device, DraftPlanInput, PlanDraftKind, PlanItem
from localspec.catalog import Catalog, Drafter, Pair
from localspec.engine.settings import KvType, LoadSettings
from localspec.errors import LocalspecError
from localspec.locations import locations
from localspec.planning.facts import Known, PairFacts
from localspec.planning.machine import Machine, read_machine
from localspec.planning.result import PairPlan

DEFAULT_CTX = 8192
_PLAN_KINDS: dict[str, PlanDraftKind] = {
    "draft": "draft", "mtp": "mtp", "mtp-inside": "mtp", "eagle3": "eagle3",
    "dflash": "dflash", "dflash2": "dflash", "medusa": "medusa",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of a question, and the devices it is compared with."""

    settings: BudgetSettings
    n_ctx: int | None
    """None = what the engine would take: the trained length, at most 8192."""
    devices: tuple[Device, ...]
    reason: str | None = None
    """Why there are no devices."""

    def for_target(self, n_ctx_train: int) -> BudgetSettings:
        length = self.n_ctx or min(n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)
        return replace(self.settings, n_ctx=length)


def budget_settings(load: LoadSettings) -> BudgetSettings:
    """Load settings in the budget's words; the context is filled in per target."""
    return BudgetSettings(
        n_ctx=load.n_ctx or DEFAULT_CTX,
        kv=load.kv,
        draft_kv=load.draft_kv,
        n_batch=load.n_batch,
        n_ubatch=load.n_ubatch,
        k_max=load.k_max,
        flash=load.flash_attn != "off",
        gpu_layers=load.gpu_layers,
        draft_gpu_layers=load.draft_gpu_layers,
        n_cpu_moe=load.n_cpu_moe,
        shares=load.tensor_split,
    )


def wanted(load: LoadSettings, budget_text: str | None, machine: Machine | None) -> Wanted:
    """The question that these settings pose.

    Args:
        budget_text: a simulated card (`24GB-card`, `24GiB`); None compares with `machine`.
        machine: None reads it.

    Raises:
        UsageError: no such budget.
    """
    if budget_text is not None:
        return Wanted(budget_settings(load), load.n_ctx, (budget.parse_budget(budget_text),))
    machine = machine or read_machine(rpc=load.rpc)
    devices = machine.devices
    if load.device == "none":
        devices = tuple(device for device in devices if device.kind == "cpu")
    elif load.device is not None:
        devices = tuple(device for device in devices if device.kind == "cpu" or device.name == load.device)
    return Wanted(budget_settings(load), load.n_ctx, devices, machine.reason)


def plan_pairs(
    catalog: Catalog,
    *,
    budget: str | None = None,
    n_ctx: int | None = None,
    kv: tuple[KvType, KvType] | None = None,
    k: int | None = None,
    load: LoadSettings | None = None,
    machine: Machine | None = None,
    models_dir: Path | None = None,
) -> list[PairPlan]:
    """Plan every pair of a catalogue from what is known on this disk, in the catalogue's order.

    Args:
        budget: a simulated card (`24GB-card`, `24GiB`); None compares with this machine.
        n_ctx, kv, k: over those of `load`; k is the longest draft of a round.
        load: the other settings that change memory.
        machine: devices read earlier; None reads them (about a second) unless a budget is given.
        models_dir: where models are kept, instead of `locations().models_dir`.

    Raises:
        UsageError: no such budget.
    """
    question = wanted(with_changes(load or LoadSettings(), n_ctx, kv, k), budget, machine)
    look = PairFacts(models_dir or locations().models_dir)
    return [plan_known(pair, question, look) for pair in catalog.pairs.values()]


def with_changes(
    load: LoadSettings, n_ctx: int | None, kv: tuple[KvType, KvType] | None, k: int | None
) -> LoadSettings:
    """The settings with what was given."""
    return replace(load, n_ctx=n_ctx or load.n_ctx, kv=kv or load.kv, k_max=k or load.k_max)


def plan_known(pair: Pair, question: Wanted, look: PairFacts, *, detail: bool = False) -> PairPlan:
    """Plan one pair from what is known without a request."""
    target = look.known(pair.target)
    inputs = [(drafter, draft_input(drafter, look)) for drafter in pair.drafters]
    return join(pair, target, inputs, question, look, detail=detail)


def draft_input(drafter: Drafter, look: PairFacts) -> Known | None:
    """Facts of a companion, None when it has no file."""
    return look.known(drafter.model) if drafter.model else None


def join(
    pair: Pair,
    target: Known,
    drafters: Sequence[tuple[Drafter, Known | None]],
    question: Wanted,
    look: PairFacts,
    *,
    detail: bool = False,
) -> PairPlan:
    """Ask the budget and put its answer beside what the catalogue and the disk say."""
    settings = question.for_target(target.facts.n_ctx_train)
    inputs = [_input(drafter, known) for drafter, known in drafters]
    companions = [one for one in inputs if one]
    first = companions[0] if companions else None
    devices, reason = question.devices, question.reason
    extra: list[PlanItem] = []
    try:
        devices, extra = _without(companions[1:], target, settings, devices)
        plan = budget.plan(target.facts, first, settings, devices, detail=detail)
    except LocalspecError as error:
        reason = error.message
        plan = budget.plan(replace(target.facts, unknown=("n_layer",)), first, settings, devices)
    sources = [target, *(known for _, known in drafters if known)]
    compared = plan.compared_with if devices else ""
    fit = plan.fit if compared else "unknown"
    if fit == "unknown" and reason is None:
        reason = _missing(plan) if compared else "there is nothing to compare with"
    items = (*plan.items, *extra)
    sizes = [model.size_bytes for model in pair.files]
    return PairPlan(
        name=pair.name,
        target=pair.target.name,
        draft=pair.draft.name if pair.draft else None,
        method=pair.method,
        fit=fit,
        bytes=items,
        total_bytes=plan.total_bytes + sum(item.size_bytes for item in extra),
        n_ctx=plan.n_ctx,
        kv=plan.kv,
        largest_ctx=plan.largest_ctx if compared else 0,
        gpu_layers=plan.gpu_layers,
        n_layers=plan.n_layers,
        license=pair.target.license,
        gated=any(model.gated for model in pair.files),
        state=look.state(pair),
        evidence=pair.evidence,
        source="header" if all(known.source == "header" for known in sources) else "catalogue",
        estimated=plan.estimated,
        simulated=compared == "SIM",
        compared_with=compared,
        devices=plan.devices,
        download_bytes=sum(size or 0 for size in sizes) if all(sizes) else None,
        reason=reason if fit == "unknown" else None,
        suggestions=plan.suggestions,
        explain=tuple(budget.explain(plan)) if detail else (),
    )


def _input(drafter: Drafter, known: Known | None) -> DraftPlanInput | None:
    kind = _PLAN_KINDS.get(drafter.kind)
    return DraftPlanInput(kind, known.facts if known else None) if kind else None


def _without(
    others: Sequence[DraftPlanInput],
    target: Known,
    settings: BudgetSettings,
    devices: tuple[Device, ...],
) -> tuple[tuple[Device, ...], list[PlanItem]]:
    """Devices less what further companions take: they are loaded too, whichever one drafts."""
    extra: list[PlanItem] = []
    for other in others:
        alone = budget.plan(target.facts, other, settings, devices, detail=False)
        items = [item for item in alone.items if item.term.startswith("draft ")]
        extra += items
        devices = tuple(
            replace(device, free_bytes=device.free_bytes - _taken(items, device.name)) for device in devices
        )
    return devices, extra


def _taken(items: Sequence[PlanItem], device: str) -> int:
    return sum(item.size_bytes for item in items if item.device == device)


def _missing(plan: budget.Plan) -> str:
    names = {"size": "the file's size", "n_layer": "the number of layers"}
    missing = ", ".join(names.get(fact, f"`{fact}`") for fact in dict.fromkeys(plan.missing))
    return f"not known before the header is read: {missing}"
