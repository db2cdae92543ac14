"""What every test gets: directories of its own, no network, one thread, and skips that must be justified.

`--soak` runs the full counts of the long tests; without it they run small ones.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

ALLOWED_SKIPS = (
    "no GPU on this machine",
    "POSIX only",
    "Windows only",
    "macOS only",
    "import-linter is not installed",  # scripts/check runs the contracts in every CI run
)
"""Reasons, by their beginning, for which a test may be skipped when CI=true. Any other skip is a failure."""

FOREIGN = ("LOCALSPEC_", "HF_", "HUGGING_FACE_", "XDG_", "TEXTUAL")
"""Variables of the user that would change what is tested."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class NetworkRefused(RuntimeError):
    """A test reached for another machine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the long tests with their full counts")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Started in the background by a script: without this every child would ignore Ctrl+C, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Libraries read these at import, so a fixture would come too late.
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name.lower() in PROXIES or name in ("NO_COLOR", "FORCE_COLOR"):
            del os.environ[name]
    home = tempfile.mkdtemp(prefix="localspec-test-home-")
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    os.environ |= {
        "HOME": home,
        "USERPROFILE": home,
        "HF_HOME": f"{home}/huggingface",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "LOCALSPEC_HOME": f"{home}/localspec",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "GGML_NO_BACKTRACE": "1",
    }
    sys.addaudithook(_refuse_network)
    counts = 1000 if config.getoption("--soak") else 60
    hypothesis.settings.register_profile(
        "localspec", max_examples=counts, deadline=None, derandomize=True, database=None
    )
    hypothesis.settings.load_profile("localspec")


def _refuse_network(event: str, args: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto"):
        address = args[1]
        host = address[0] if isinstance(address, tuple) else None
    elif event == "socket.getaddrinfo":
        host = args[0]
    else:
        return
    if host is not None and not _is_loopback(host):
        raise NetworkRefused(f"tests stay on this machine, but one asked for `{host}`")


def _is_loopback(host: str | bytes) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if name in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`LOCALSPEC_HOME` of this test: everything localspec writes goes below it."""
    root = tmp_path_factory.mktemp("localspec-home")
    monkeypatch.setenv("LOCALSPEC_HOME", str(root))
    return root


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """`soak(3, 20)` is 3, or 20 under `--soak`."""
    full = bool(request.config.getoption("--soak"))
    return lambda small, large: large if full else small


def _unjustified(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """The reason of a skip that CI does not accept, None when it is fine."""
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return None
    where = report.longrepr
    reason = where[2] if isinstance(where, tuple) else str(where)
    reason = reason.removeprefix("Skipped: ")
    return None if reason.startswith(ALLOWED_SKIPS) else reason


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _judged(report: Report) -> Report:
    reason = _unjustified(report)
    if reason is not None:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI for a reason that conftest.py does not list: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _judged((yield))
