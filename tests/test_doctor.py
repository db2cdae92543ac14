"""`doctor` reports what is there, and what is missing with the command that fixes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec import cli, doctor
from localspec.errors import EngineError
from localspec.interfaces import DeviceMemory

CPU = DeviceMemory("CPU", "a CPU", "cpu", 2**33, 2**34)
GPU = DeviceMemory("CUDA0", "a GPU", "gpu", 20 * 2**30, 24 * 2**30)


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert code == (1 if report["problems"] else 0)
    assert report["rpc"] is True and report["build"].startswith("llama-cpp-python 0.3.")
    assert any(device["kind"] == "cpu" and device["free_bytes"] > 0 for device in report["devices"])
    assert Path(report["demo_pair"]).suffix == ".gguf"


def fake(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[DeviceMemory, ...], tools: tuple[str, ...] = ()
) -> None:
    monkeypatch.setattr("localspec.engine.backend.devices.devices", lambda: devices)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name in tools else None)


@pytest.mark.parametrize(
    ("devices", "tools", "fix"),
    [
        ((CPU,), (), None),
        ((CPU, GPU), ("nvidia-smi",), None),
        ((CPU,), ("nvidia-smi",), "scripts/setup --backend cuda"),
        ((CPU,), ("rocminfo",), "scripts/setup --backend rocm"),
    ],
)
def test_a_driver_that_the_build_cannot_use(
    monkeypatch: pytest.MonkeyPatch,
    devices: tuple[DeviceMemory, ...],
    tools: tuple[str, ...],
    fix: str | None,
) -> None:
    fake(monkeypatch, devices, tools)
    report = doctor.examine()
    assert [problem.fix for problem in report.problems] == ([fix] if fix else [])
    text = doctor.human_report(report)
    assert (f"    fix: {fix}" in text) if fix else text.endswith("nothing is missing")
    assert all(device.name in text for device in devices)


def raising() -> Callable[[], str]:
    def call() -> str:
        raise EngineError("llama-cpp-python cannot be loaded: libgomp.so.1", hint="reinstall it")

    return call


def test_a_library_that_does_not_load_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("localspec.engine.backend.library.build_description", raising())
    assert cli.run(["doctor"]) == 1
    out, err = capsys.readouterr()
    assert "missing: llama-cpp-python cannot be loaded: libgomp.so.1\n    fix: reinstall it" in out
    assert err == ""


def test_missing_demo_weights_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    report = doctor.examine()
    assert report.demo_pair is None
    assert any("scripts/setup" in problem.fix for problem in report.problems)


def test_memory_is_in_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, (GPU,))
    row = next(
        line for line in doctor.human_report(doctor.examine()).splitlines() if line.startswith("CUDA0")
    )
    assert row.split() == ["CUDA0", "gpu", "20.0", "GiB", "24.0", "GiB", "a", "GPU"]
