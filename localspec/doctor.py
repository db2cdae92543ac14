"""What this machine and this build of llama.cpp can do, what is missing, and the command that fixes it.

Needs no model. It reads the devices in this process; a library that does not load is a finding, not an error.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from localspec import __version__
from localspec.errors import LocalspecError
from localspec.interfaces import DeviceMemory
from localspec.output import amount, table

GPU_TOOLS = {"nvidia-smi": "cuda", "rocminfo": "rocm"}
"""A driver's own program → the backend that uses its GPU."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is missing, and the command that fixes it."""

    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything `doctor` found."""

    localspec: str
    python: str
    system: str
    cores: int
    build: str | None
    """llama-cpp-python and llama.cpp versions; None when the library does not load."""
    features: str | None
    """llama.cpp's own list of compiled-in features."""
    rpc: bool
    devices: tuple[DeviceMemory, ...]
    demo_pair: Path | None
    problems: tuple[Problem, ...]


def examine() -> Report:
    """Look at everything; never raises for what is missing."""
    problems: list[Problem] = []
    build, features, rpc, devices = _library(problems)
    if devices and not any(device.kind in ("gpu", "igpu") for device in devices):
        problems += [
            Problem(
                f"`{tool}` is here, but this llama.cpp has no device for it",
                f"scripts/setup --backend {backend}",
            )
            for tool, backend in GPU_TOOLS.items()
            if shutil.which(tool)
        ]
    return Report(
        localspec=__version__,
        python=f"{platform.python_version()} ({sys.executable})",
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        build=build, features=features, rpc=rpc, devices=devices, demo_pair=_demo_pair(problems),
        problems=tuple(problems),
    )  # fmt: skip


def _library(problems: list[Problem]) -> tuple[str | None, str | None, bool, tuple[DeviceMemory, ...]]:
    from localspec.engine.backend import devices, library

    try:
        return (
            library.build_description(), library.system_info(), devices.supports_rpc(), devices.devices(),
        )  # fmt: skip
    except LocalspecError as error:
        problems.append(Problem(error.message, error.hint or "scripts/setup --rebuild"))
        return None, None, False, ()


def _demo_pair(problems: list[Problem]) -> Path | None:
    from localspec.pairs import DEMO, resolve

    try:
        return resolve(DEMO).target
    except LocalspecError as error:
        problems.append(Problem(error.message, error.hint or "scripts/setup"))
        return None


def human_report(report: Report) -> str:
    """The report for people."""
    facts = [
        ("localspec", report.localspec),
        ("Python", report.python),
        ("system", f"{report.system}, {report.cores} cores"),
        ("build", report.build or "llama.cpp does not load"),
        ("features", (report.features or "–").strip(" |")),
        ("RPC", "yes" if report.rpc else "no"),
        ("demo pair", str(report.demo_pair) if report.demo_pair else "not found"),
    ]
    rows = [
        (d.name, d.kind, amount(d.free_bytes, "memory"), amount(d.total_bytes, "memory"), d.description)
        for d in report.devices
    ]
    devices = table(["device", "kind", "free", "total", "what"], rows, right=[2, 3])
    problems = [f"missing: {problem.what}\n    fix: {problem.fix}" for problem in report.problems]
    return "\n".join(
        [
            *(f"{name:<10} {value}" for name, value in facts),
            "",
            devices,
            "",
            *(problems or ["nothing is missing"]),
        ]
    )
