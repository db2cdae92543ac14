"""The rules every test runs under hold: no foreign network, no unlisted skip in CI."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tests.conftest as rules


def test_another_machine_is_refused() -> None:
    with socket.socket() as plug, pytest.raises(RuntimeError, match="tests stay on this machine"):
        plug.connect(("192.168.0.1", 443))


@pytest.mark.parametrize("host", ["8.8.8.8", "huggingface.co", "::ffff:1.1.1.1"])
def test_another_machine_is_not_even_looked_up(host: str) -> None:
    with pytest.raises(RuntimeError, match="tests stay on this machine"):
        socket.getaddrinfo(host, 443)


def test_loopback_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client, (other, _) = socket.create_connection(server.getsockname()), server.accept()
    with client, other:
        client.sendall(b"x")
        assert other.recv(1) == b"x"


def test_home_is_a_fresh_directory(home: Path) -> None:
    assert os.environ["LOCALSPEC_HOME"] == str(home)
    assert list(home.iterdir()) == []
    assert Path.home() != home and "localspec-test-home" in str(Path.home())


def test_soak_picks_the_count(soak: Callable[[int, int], int], request: pytest.FixtureRequest) -> None:
    assert soak(3, 20) == (20 if request.config.getoption("--soak") else 3)


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_an_unlisted_skip_fails_only_in_ci(tmp_path: Path, ci: str, code: int) -> None:
    (tmp_path / "conftest.py").write_text(Path(rules.__file__).read_text())
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "def test_listed(): pytest.skip('POSIX only')\n"
        "def test_unlisted(): pytest.skip('felt like it')\n"
        "@pytest.mark.xfail\n"
        "def test_expected(): assert False\n"
    )
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)],
        env=os.environ | {"CI": ci}, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == code, run.stdout
    assert ("does not list: felt like it" in run.stdout) == bool(code)
    assert "1 xfailed" in run.stdout
