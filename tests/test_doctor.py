"""`doctor` reports what is there, what is missing with the command that fixes it, and what works."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec import cli, doctor
from localspec.errors import EngineError
from localspec.interfaces import DeviceMemory
from localspec.selftest.proof import Finding
from tests.kit.ggufs import syn

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


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_a_build_that_dies_while_decoding_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As GCC 12's AMX kernels do; this process lives to tell it."""
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dying.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dying))
    assert cli.run(["doctor"]) == 1
    said = capsys.readouterr().out
    assert (
        "llama.cpp loads but cannot decode; a process that tried it crashed (SIGSEGV)\n    fix: CMAKE" in said
    )


def test_a_model_that_cannot_be_decoded_is_told_in_its_words(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"no model")
    child = subprocess.run(
        [sys.executable, "-m", "localspec.selftest.decode", tmp_path / "x.gguf"],
        capture_output=True,
        text=True,
    )
    assert child.returncode == 1 and "x.gguf" in child.stderr and "Traceback" not in child.stderr


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


class TestPreflight:
    def test_a_pair_is_loaded_and_every_method_drafts(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        files = ("--target", str(syn("syn")), "--draft", str(syn("syn-near")))
        code = cli.run(["doctor", *files, "--ctx", "256", "--threads", "1", "--json"])
        pair = json.loads(capsys.readouterr().out)["pair"]
        assert (code, pair["error"], pair["off_reason"]) == (0, None, None)
        trials = {trial["method"]: trial for trial in pair["trials"]}
        assert set(trials) == {"draft", "ngram"}
        assert trials["draft"]["drafted"] >= trials["draft"]["tested"] > 0

    def test_a_draft_that_is_refused_is_told(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        files = ("--target", str(syn("syn")), "--draft", str(syn("syn-8")))
        cli.run(["doctor", *files, "--ctx", "256", "--threads", "1"])
        out, err = capsys.readouterr()
        assert "draft works" not in out and "differ" in out + err

    def test_a_pair_that_does_not_load_is_a_finding(self) -> None:
        class Dead:
            @property
            def info(self) -> None:
                raise EngineError("the worker ended with signal 6")

        found = doctor.preflight(Dead(), "p")  # type: ignore[arg-type]
        assert found == doctor.Preflight("p", error="the worker ended with signal 6") and not found.healthy


def test_selftest_on_this_build(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.run(["doctor", "--selftest", "--json"])
    findings = json.loads(capsys.readouterr().out)["selftest"]
    assert code == 0
    assert [(finding["check"], finding["passed"]) for finding in findings] == [
        ("self", True), ("alien", True), ("rollback", True)
    ]  # fmt: skip


def test_a_failed_check_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    fake(monkeypatch, (CPU,))
    report = replace(doctor.examine(), selftest=(Finding("self", 0, False, "token 3 differs"),))
    assert not report.healthy
    text = doctor.human_report(report)
    assert "self-test self: FAILED, token 3 differs" in text and text.endswith("but not all works")


def test_a_default_pair_that_is_not_here(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    fake(monkeypatch, (CPU,))
    report = doctor.examine(home / "models", "llama-3.1-8b-1b")
    [problem] = report.problems
    assert problem.fix == "localspec pull llama-3.1-8b-1b"
    assert report.disk_free_bytes is not None and report.disk_free_bytes > 0
