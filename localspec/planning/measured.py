"""What llama.cpp really allocated for a pair, kept after each load and shown instead of the next estimate.

A row holds for the same files, device, build, threads, KV types and sizes only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from localspec.budget import DeviceUse, Fit, PlanItem
from localspec.engine.settings import LoadSettings
from localspec.header.source import shard_paths
from localspec.interfaces import PairFiles, SessionInfo
from localspec.planning.result import PairPlan, Source
from localspec.store.measurements import MeasurementKey, Measurements

KIND = "memory"
MAX_ROWS = 16
"""Settings remembered per pair."""
SPARE = 0.10
_KEPT = ("output buffer", "backend context", "reserve")
"""Terms that llama.cpp's own list leaves out."""


def remember_load(files: PairFiles, info: SessionInfo, measurements: Measurements) -> None:
    """Keep the memory of a loaded pair; does nothing where llama.cpp's figures cannot be read.

    Raises:
        LocalspecError: the database cannot be written.
    """
    if not info.memory:
        return
    settings = info.effective
    key = MeasurementKey(
        target=identity(files.target),
        draft=_drafts(files),
        device=_device(item.device for item in info.memory),
        build=info.build,
        threads=settings.threads or 0,
        kv=settings.kv,
        draft_kv=settings.draft_kv,
    )
    row = {**sizes(settings, info.n_ctx), "items": [[i.term, i.device, i.size_bytes] for i in info.memory]}
    older = [kept for kept in measurements.get(key, KIND) or [] if _sizes_of(kept) != _sizes_of(row)]
    measurements.put(key, KIND, [row, *older][:MAX_ROWS])


def own_memory(info: SessionInfo) -> dict[str, int]:
    """Bytes per device that a loaded session holds: available to the pair that would replace it."""
    held: dict[str, int] = {}
    for item in info.memory:
        held[item.device] = held.get(item.device, 0) + item.size_bytes
    return held


def sizes(settings: LoadSettings, n_ctx: int) -> dict[str, Any]:
    """Settings that change memory, beside those in the key."""
    return {
        "n_ctx": n_ctx,
        "gpu_layers": settings.gpu_layers,
        "draft_gpu_layers": settings.draft_gpu_layers,
        "k_max": settings.k_max,
        "slots": settings.slots,
        "n_batch": settings.n_batch,
        "n_ubatch": settings.n_ubatch,
        "n_cpu_moe": settings.n_cpu_moe,
        "flash_attn": settings.flash_attn,
        "device": settings.device,
        "draft_device": settings.draft_device,
    }


def _sizes_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "items"}


def identity(path: Path) -> str:
    """Name and size of a file, all parts of a split one together."""
    return f"{path.name} {sum(part.stat().st_size for part in shard_paths(path) if part.is_file())}"


def _drafts(files: PairFiles) -> str:
    """Companions in order, those inside the target by their kind."""
    return ", ".join(
        c.kind if c.path == files.target else f"{c.kind} {identity(c.path)}" for c in files.companions
    )


def _device(names: Any) -> str:
    return "+".join(sorted({name for name in names if name != "CPU"})) or "CPU"


def with_measured(
    plan: PairPlan, files: PairFiles, load: LoadSettings, build: str, measurements: Measurements
) -> PairPlan:
    """The plan with what an earlier load of the same pair and settings really took, when there was one."""
    layers = plan.gpu_layers if plan.fit == "partial" and load.gpu_layers is None else load.gpu_layers
    wanted = sizes(replace(load, gpu_layers=layers), load.n_ctx or plan.n_ctx // load.slots)
    device = _device(device.name for device in plan.devices)
    for key, rows, _ in measurements.items(KIND):
        same = (key.target, key.draft, key.device) == (identity(files.target), _drafts(files), device)
        if same and key.build.startswith(build) and (key.kv, key.draft_kv) == (load.kv, load.draft_kv):
            for row in rows:
                if _sizes_of(row) == wanted:
                    return with_items(plan, row["items"], "measured")
    return plan


def with_items(plan: PairPlan, rows: Sequence[Sequence[Any]], source: Source) -> PairPlan:
    """The plan with llama.cpp's own figures in place of the formula's, and the fit word that follows.

    Args:
        rows: (term, device, bytes) as `session.memory` lists them.
    """
    items = [PlanItem(str(term), str(device), int(size)) for term, device, size in rows]
    items += [item for item in plan.bytes if item.term in _KEPT]
    counted = [item for item in items if item.term not in _KEPT[1:]]
    devices = tuple(_use(device, counted) for device in plan.devices)
    return replace(
        plan,
        fit=plan.fit if plan.fit == "partial" else _word(devices),
        bytes=tuple(items),
        total_bytes=sum(item.size_bytes for item in counted),
        devices=devices,
        source=source,
        estimated=False,
    )


def _use(device: DeviceUse, items: Sequence[PlanItem]) -> DeviceUse:
    needed = sum(item.size_bytes for item in items if item.device == device.name)
    return replace(device, needed_bytes=needed)


def _word(devices: Sequence[DeviceUse]) -> Fit:
    spare = min((d.spare_bytes / d.usable_bytes if d.usable_bytes else -1.0 for d in devices), default=-1.0)
    return "fits" if spare >= SPARE else "tight" if spare >= 0 else "too big"
