"""The arithmetic of a plan as lines of text, for `plan --explain`."""

from __future__ import annotations

from localspec.budget.plan import DeviceUse, Plan

MIB = 1 << 20


def size(n_bytes: int) -> str:
    """`23.51 GiB` or `412.0 MiB`."""
    return f"{n_bytes / (1 << 30):.2f} GiB" if abs(n_bytes) >= 1 << 30 else f"{n_bytes / MIB:.1f} MiB"


def explain(plan: Plan) -> list[str]:
    """Every item, the sums, what they are compared with, what fills compute buffers, and what would help."""
    about = "~" if plan.estimated else ""
    where = "all layers on the CPU"
    if plan.compared_with != "CPU":
        where = f"{plan.gpu_layers} of {plan.n_layers} layers on the GPU"
    lines = [f"context {plan.n_ctx} tokens, KV {plan.kv[0]}/{plan.kv[1]}, {where}"]
    if plan.missing:
        lines.append(f"unknown: {', '.join(plan.missing)} not stated, so no fit can be told")
    for device in plan.devices:
        lines += _device(plan, device, about)
    for who, device_name, tensors in plan.peaks:
        parts = " + ".join(f"{label} {size(n)}" for label, n in tensors if n >= MIB // 16)
        if parts:
            lines.append(f"{who} compute on {device_name} is fullest with {parts}")
    lines.append(f"fit: {plan.fit}" + (f", largest context {plan.largest_ctx}" if plan.largest_ctx else ""))
    lines += [f"would help: {suggestion.text}" for suggestion in plan.suggestions]
    return lines


def _device(plan: Plan, device: DeviceUse, about: str) -> list[str]:
    sim = " SIM" if device.simulated else ""
    lines = [f"{device.name}{sim}"]
    reserved = 0
    for item in plan.items:
        if item.device != device.name:
            continue
        if item.term in ("backend context", "reserve"):
            reserved += item.size_bytes
        else:
            lines.append(f"  {item.term:<16} {about}{size(item.size_bytes):>12}")
    lines.append(f"  {'needed':<16} {about}{size(device.needed_bytes):>12}")
    if device.total_bytes:
        what = "of RAM free" if device.kind == "cpu" else "free"
        lines.append(
            f"  usable {size(device.usable_bytes)} = {size(device.free_bytes)} {what}"
            f" - {size(reserved)} for driver and reserve; spare {size(device.spare_bytes)}"
        )
    return lines
