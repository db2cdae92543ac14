"""Settings and devices of one question to the budget, and the budget's answer for all companions together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from localspec.budget import (
    BudgetSettings,
    Device,
    DeviceUse,
    DraftPlanInput,
    Plan,
    PlanDraftKind,
    PlanItem,
    parse_budget,
    plan,
)
from localspec.budget.question import HOSTS
from localspec.engine.settings import LoadSettings
from localspec.errors import unknown
from localspec.header import ModelFacts
from localspec.planning.machine import Machine, read_machine

DEFAULT_CTX = 8192
_PLAN_KINDS: dict[str, PlanDraftKind] = {
    "draft": "draft", "mtp": "mtp", "mtp-inside": "mtp", "eagle3": "eagle3",
    "dflash": "dflash", "dflash2": "dflash", "medusa": "medusa",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of a question, and the devices it is compared with."""

    load: LoadSettings
    devices: tuple[Device, ...]
    build: str = ""
    """llama.cpp's version; empty when it was not asked, or for a simulated card."""
    reason: str | None = None
    """Why there are no devices."""

    def settings(self, n_ctx_train: int) -> BudgetSettings:
        """Load settings in the budget's words; without a context the one the engine would take."""
        load, simulated = self.load, any(device.simulated for device in self.devices)
        return BudgetSettings(
            n_ctx=load.slots * (load.n_ctx or min(n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)),
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
            device=None if simulated else load.device,
            draft_device=None if simulated else load.draft_device or load.device,
            n_seq=load.slots,
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """The budget's answer."""

    plan: Plan
    extra: tuple[PlanItem, ...] = ()
    """What companions beside the first take: they are loaded too, whichever one drafts."""


def wanted(load: LoadSettings, budget: str | None, machine: Machine | None) -> Wanted:
    """The question that these settings pose.

    Args:
        budget: a simulated card (`24GB-card`, `24GiB`); None compares with `machine`.
        machine: None reads it, in about a second.

    Raises:
        UsageError: no such budget, or no such device.
    """
    if budget is not None:
        return Wanted(load, (parse_budget(budget),))
    machine = machine or read_machine(rpc=load.rpc)
    return Wanted(load, _chosen(machine.devices, load), machine.build, machine.reason)


def _chosen(devices: tuple[Device, ...], load: LoadSettings) -> tuple[Device, ...]:
    """The host and the accelerators that target and draft may use; a draft goes where its target does."""
    names = {load.device, load.draft_device or load.device} - {*HOSTS}
    if not devices:
        return devices
    for name in names - {None, *(device.name for device in devices)}:
        raise unknown("device", str(name), [device.name for device in devices])
    return tuple(device for device in devices if device.kind == "cpu" or names & {None, device.name})


def input_of(kind: str, facts: ModelFacts | None) -> DraftPlanInput | None:
    """What drafts, in the budget's words; None for kinds that load nothing."""
    plan_kind = _PLAN_KINDS.get(kind)
    return DraftPlanInput(plan_kind, facts) if plan_kind else None


def compare(
    target: ModelFacts, inputs: Sequence[DraftPlanInput | None], question: Wanted, *, detail: bool
) -> Comparison:
    """Ask the budget about a target and all that drafts for it."""
    companions = [one for one in inputs if one]
    settings, devices = question.settings(target.n_ctx_train), question.devices
    extra: list[PlanItem] = []
    for other in companions[1:]:
        alone = plan(target, other, settings, devices, detail=False)
        items = [item for item in alone.items if item.term.startswith("draft ")]
        devices = tuple(_less(device, items) for device in devices)
        extra += items
    first = companions[0] if companions else None
    answer = plan(target, first, settings, devices, detail=detail)
    whole = {device.name: device for device in question.devices}
    uses = tuple(_whole(use, whole.get(use.name), extra) for use in answer.devices)
    return Comparison(replace(answer, devices=uses), tuple(extra))


def _taken(device: str, items: Sequence[PlanItem]) -> int:
    return sum(item.size_bytes for item in items if item.device == device)


def _less(device: Device, items: Sequence[PlanItem]) -> Device:
    return replace(device, free_bytes=max(device.free_bytes - _taken(device.name, items), 0))


def _whole(use: DeviceUse, device: Device | None, extra: Sequence[PlanItem]) -> DeviceUse:
    """What all companions need of the device as it is."""
    needed = use.needed_bytes + _taken(use.name, extra)
    if device is None:
        return replace(use, needed_bytes=needed)
    return replace(use, needed_bytes=needed, free_bytes=device.free_bytes, usable_bytes=device.usable_bytes)
