"""The program in a real terminal: it takes the screen, and gives it back however it ends."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("POSIX only", allow_module_level=True)

import pty

pytestmark = pytest.mark.tty
TAKES_SCREEN, GIVES_BACK = b"\x1b[?1049h", b"\x1b[?1049l"
PATIENCE_S = 60.0
"""The machine of a test run may be busy; nothing here waits that long otherwise."""


class Program:
    """`localspec ARGV` on a pseudo-terminal of its own."""

    def __init__(self, argv: list[str], term: str = "xterm-256color") -> None:
        self._screen, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "localspec", *argv],
            stdin=terminal, stdout=terminal, stderr=terminal,
            env=os.environ | {"TERM": term}, start_new_session=True,
        )  # fmt: skip
        os.close(terminal)
        self.shown = b""

    def read_until(self, wanted: bytes) -> bool:
        """Read what it shows until `wanted` is there, or it ends."""
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in self.shown and time.monotonic() < deadline:
            if select.select([self._screen], [], [], 0.2)[0]:
                try:
                    piece = os.read(self._screen, 65536)
                except OSError:  # Linux says EIO when the other side has gone
                    piece = b""
                if not piece:
                    break
                self.shown += piece
        return wanted in self.shown

    def wait(self) -> int:
        """Its exit code, after reading all it shows."""
        self.read_until(b"no such text")
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Generator[Program, None, None]:
    running = Program(getattr(request, "param", ["chat"]))
    yield running
    running.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_chat_screen_and_gives_the_terminal_back(program: Program, number: int) -> None:
    assert program.read_until(TAKES_SCREEN)
    assert program.read_until(b"\x1b[?25l")
    time.sleep(1.0)  # let it settle: a signal before the first paint is another case
    program.process.send_signal(number)
    assert program.wait() == 128 + number
    assert program.shown.rfind(GIVES_BACK) > program.shown.rfind(TAKES_SCREEN)


@pytest.mark.parametrize("program", [["chat", "no-such-pair"]], indirect=True)
def test_an_error_is_said_before_the_screen_is_taken(program: Program) -> None:
    assert program.wait() == 2
    assert b"error: unknown pair `no-such-pair`" in program.shown
    assert TAKES_SCREEN not in program.shown


def test_a_dumb_terminal_gets_no_screen(home: Path) -> None:
    running = Program(["chat"], term="dumb")
    try:
        assert running.wait() == 2
        assert b"error: no pair was given" in running.shown and b"\x1b" not in running.shown
    finally:
        running.close()
