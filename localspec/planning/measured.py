"""What llama.cpp really allocated for a pair, kept after each load and shown instead of the next estimate.

A row holds for the same files, device, build, threads, KV types and sizes only. Files are known by their
contents, so that a renamed one keeps its measurements and another one under the same name does not get them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from localspec.budget import DeviceUse, Fit, PlanItem
from localspec.engine.settings import LoadSettings
from localspec.header import fingerprint
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
    key = configuration(files, info)
    row = {
        **sizes(info.effective, info.n_ctx),
        "items": [[i.term, i.device, i.size_bytes] for i in info.memory],
    }
    older = [kept for kept in measurements.get(key, KIND) or [] if _sizes_of(kept) != _sizes_of(row)]
    measurements.put(key, KIND, [row, *older][:MAX_ROWS])


def configuration(files: PairFiles, info: SessionInfo) -> MeasurementKey:
    """What a measurement of a loaded pair holds for.

    Raises:
        ModelFileError: a file has gone meanwhile.
    """
    settings = info.effective
    return MeasurementKey(
        target=fingerprint(files.target),
        draft=_drafts(files),
        device=_device([item.device for item in info.memory] or _accelerators(info)),
        build=info.build,
        threads=settings.threads or 0,
        kv=settings.kv,
        draft_kv=settings.draft_kv,
    )


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
        "tensor_split": list(settings.tensor_split),
    }


def _sizes_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "items"}


def same_files(files: PairFiles) -> tuple[str, str]:
    """The part of a configuration that is the pair.

    Raises:
        ModelFileError: a file has gone meanwhile.
    """
    return fingerprint(files.target), _drafts(files)


def _drafts(files: PairFiles) -> str:
    """Companions in order, those inside the target by their kind."""
    return ", ".join(
        c.kind if c.path == files.target else f"{c.kind} {fingerprint(c.path)}" for c in files.companions
    )


def _accelerators(info: SessionInfo) -> list[str]:
    """Where llama.cpp does not say what it allocated, it is taken to use what there is."""
    return [device.name for device in info.devices if device.kind in ("gpu", "igpu")]


def _device(names: Iterable[str]) -> str:
    return "+".join(sorted({name for name in names if name != "CPU"})) or "CPU"


def with_measured(
    plan: PairPlan, files: PairFiles, load: LoadSettings, build: str, measurements: Measurements
) -> PairPlan:
    """The plan with what an earlier load of the same pair and settings really took, when there was one."""
    wanted = sizes(placed(plan, load), load.n_ctx or plan.n_ctx)
    for rows, _ in of_pair(KIND, plan, files, load, build, measurements):
        for row in rows:
            if _sizes_of(row) == wanted:
                return with_items(plan, row["items"], "measured")
    return plan


def placed(plan: PairPlan, load: LoadSettings) -> LoadSettings:
    """The settings with the layers that would go to the GPU where not all of them fit."""
    partial = plan.fit == "partial" and load.gpu_layers is None
    return replace(load, gpu_layers=plan.gpu_layers) if partial else load


def of_pair(
    kind: str, plan: PairPlan, files: PairFiles, load: LoadSettings, build: str, measurements: Measurements
) -> list[tuple[Any, float]]:
    """(value, time) of what was measured of these files on the plan's devices, newest first.

    Raises:
        ModelFileError: a file has gone meanwhile.
    """
    found = measurements.items(kind)
    if not found:
        return []
    mine = (
        fingerprint(files.target), _drafts(files), _device(device.name for device in plan.devices),
        load.kv, load.draft_kv,
    )  # fmt: skip
    return [
        (value, at)
        for key, value, at in found
        if (key.target, key.draft, key.device, key.kv, key.draft_kv) == mine
        and key.build.startswith(build)
        and (load.threads is None or key.threads == load.threads)
    ]


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
