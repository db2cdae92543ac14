"""Gathers what the status line says from controller and numbers. No widgets."""

from __future__ import annotations

from localspec.interfaces import SessionInfo
from localspec.tui.controller import Controller
from localspec.tui.live import Live
from localspec.tui.memory import device_uses
from localspec.tui.status import SpecState, Status


def status_of(controller: Controller, live: Live, spec: SpecState, *, loading: str) -> Status:
    """The status now; `loading` is how far a load is, in words."""
    info = controller.info
    if info is None:
        return Status(spec, loading if controller.state == "loading" else "no model")
    return Status(
        spec=spec,
        activity=_activity(controller, live),
        target=info.target,
        draft=info.drafts[0] if info.drafts else "",
        context=(live.n_past, info.n_ctx),
        tps=live.tps,
        speedup=live.speedup(),
        acceptance=live.acceptance,
        memory=_memory(info),
    )


def _activity(controller: Controller, live: Live) -> str:
    if controller.state == "stopping":
        return "stopping…"
    if controller.state == "failed":
        return "model ended"
    if controller.state != "replying" or live.tokens:
        return ""
    prefill = live.prefill
    return f"reading {prefill.done}/{prefill.total}" if prefill else "waiting"


def _memory(info: SessionInfo) -> tuple[str, int, int] | None:
    uses = device_uses(info)
    return (uses[0].label, uses[0].used, uses[0].total) if uses else None
