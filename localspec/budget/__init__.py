"""The memory budget: pure arithmetic from model facts to an itemised plan that says whether a pair fits."""

from localspec.budget.device import (
    DRIVER_BYTES,
    PRESETS,
    RESERVE_BYTES,
    Device,
    host_device,
    parse_budget,
    parse_size,
    simulated_card,
)
from localspec.budget.explain import explain
from localspec.budget.plan import DeviceUse, Fit, Plan, PlanItem, Suggestion, plan
from localspec.budget.question import BudgetSettings, DraftPlanInput, PlanDraftKind

__all__ = [
    "DRIVER_BYTES",
    "PRESETS",
    "RESERVE_BYTES",
    "BudgetSettings",
    "Device",
    "DeviceUse",
    "DraftPlanInput",
    "Fit",
    "Plan",
    "PlanDraftKind",
    "PlanItem",
    "Suggestion",
    "explain",
    "host_device",
    "parse_budget",
    "parse_size",
    "plan",
    "simulated_card",
]
