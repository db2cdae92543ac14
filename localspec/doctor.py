"""What this machine and this build of llama.cpp can do, what is missing, and the command that fixes it.

Needs no model. It reads the devices in this process; a library that does not load is a finding, not an error.
A pair that is to be tried comes as a session, wherever that runs.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec import __version__
from localspec.engine.settings import Method, Request, SamplingSettings, SpeculationSettings
from localspec.errors import LocalspecError
from localspec.interfaces import DeviceMemory, SessionLike
from localspec.measuring import run
from localspec.output import amount, table
from localspec.selftest.proof import Finding
from localspec.worker.obituary import describe_exit

GPU_TOOLS = {"nvidia-smi": "cuda", "rocminfo": "rocm"}
"""A driver's own program → the backend that uses its GPU."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is missing, and the command that fixes it."""

    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class Trial:
    """One method of a pair, tried on a few tokens."""

    method: Method
    drafted: int
    tested: int
    accepted: int
    tps: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Preflight:
    """A pair that was loaded and made to draft."""

    name: str
    trials: tuple[Trial, ...] = ()
    off_reason: str | None = None
    """Why it cannot speculate at all."""
    error: str | None = None
    """Why it did not load."""

    @property
    def healthy(self) -> bool:
        return self.error is None and self.off_reason is None and not any(t.error for t in self.trials)


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
    models_dir: Path | None = None
    disk_free_bytes: int | None = None
    """Free where models are kept."""
    pair: Preflight | None = None
    selftest: tuple[Finding, ...] = ()

    @property
    def healthy(self) -> bool:
        """Nothing is missing, and what was tried works."""
        tried = self.pair is None or self.pair.healthy
        return not self.problems and tried and all(finding.passed for finding in self.selftest)


def examine(models_dir: Path | None = None, default_pair: str | None = None) -> Report:
    """Look at everything; never raises for what is missing.

    Args:
        models_dir: where models are kept.
        default_pair: the pair of commands without one.
    """
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
    demo = _demo_pair(problems)
    if build is not None and demo is not None:
        problems += _decodes(demo)
    return Report(
        localspec=__version__,
        python=f"{platform.python_version()} ({sys.executable})",
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        build=build, features=features, rpc=rpc, devices=devices, demo_pair=demo,
        problems=(*problems, *_default_pair(default_pair, models_dir)),
        models_dir=models_dir, disk_free_bytes=_disk_free(models_dir),
    )  # fmt: skip


def _default_pair(name: str | None, models_dir: Path | None) -> Iterator[Problem]:
    """The default pair that is not here, or no pair at all."""
    from localspec.pairs import resolve

    if name is None:
        return
    try:
        resolve(name, models_dir=models_dir)
    except LocalspecError as error:
        hint = (error.hint or "").removeprefix("run ").strip("`")
        yield Problem(f"the default pair: {error.message}", hint or "localspec models ls")


def _disk_free(folder: Path | None) -> int | None:
    """Free bytes on the disk of a folder that may not exist yet."""
    while folder is not None and not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free if folder is not None else None


PREFLIGHT_TOKENS = 16
PREFLIGHT_K = 4
PROMPT = "Count: one two three four one two three four one two three four"


def preflight(session: SessionLike, name: str) -> Preflight:
    """Let every method of a pair draft for 16 greedy tokens; never raises for what fails."""
    try:
        info = session.info
    except LocalspecError as error:
        return Preflight(name, error=error.message)
    methods = [method for method in info.methods if method not in ("auto", "off")]
    return Preflight(name, tuple(_trial(session, method) for method in methods), info.off_reason)


def _trial(session: SessionLike, method: Method) -> Trial:
    request = Request(
        prompt=PROMPT,
        sampling=SamplingSettings(temperature=0.0),
        speculation=SpeculationSettings(method=method, k=PREFLIGHT_K),
        max_tokens=PREFLIGHT_TOKENS,
        ignore_eog=True,
    )
    try:
        reply = run(session, request)
    except LocalspecError as error:
        return Trial(method, 0, 0, 0, 0.0, error.message)
    counts = reply.counts
    none = None if counts.drafted or method == "ngram" else "nothing was drafted"
    return Trial(method, counts.drafted, counts.tested, counts.accepted, reply.tps(), none)


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


def _decodes(model: Path) -> Iterator[Problem]:
    """A kernel that was built wrong shows when it runs, and ends the process that runs it: not this one."""
    child = subprocess.run(
        [sys.executable, "-m", "localspec.selftest.decode", str(model)],
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if child.returncode:
        said = child.stderr.strip().splitlines()[-1:] if child.returncode > 0 else []
        why = ": ".join([f"a process that tried it {describe_exit(child.returncode)}", *said])
        yield Problem(
            f"llama.cpp loads but cannot decode; {why}",
            "CMAKE_ARGS=-DGGML_NATIVE=OFF scripts/setup --rebuild",
        )


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
    if report.models_dir is not None and report.disk_free_bytes is not None:
        facts.append(("models", f"{report.models_dir}, {amount(report.disk_free_bytes, 'bytes')} free"))
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
            *_tried(report),
            *(
                problems
                or ["nothing is missing" if report.healthy else "nothing is missing, but not all works"]
            ),
        ]
    )


def _tried(report: Report) -> list[str]:
    """What was tried, a line each, and an empty line."""
    lines = [
        f"self-test {finding.check}: {'passed' if finding.passed else 'FAILED'}, {finding.detail}"
        for finding in report.selftest
    ]
    if report.pair is not None:
        pair = report.pair
        lines += [f"{pair.name}: {told}" for told in (pair.error, pair.off_reason) if told]
        lines += [f"{pair.name}: {_trial_line(trial)}" for trial in pair.trials]
    return [*lines, ""] if lines else []


def _trial_line(trial: Trial) -> str:
    if trial.error:
        return f"{trial.method} FAILED, {trial.error}"
    return (
        f"{trial.method} works, {trial.drafted} tokens drafted, {trial.accepted} of {trial.tested} judged "
        f"accepted, {trial.tps:.1f} tok/s"
    )
