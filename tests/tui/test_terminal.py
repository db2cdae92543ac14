"""The chat in a real terminal, with its model in a real child process: what no simulated screen shows."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localspec.store import ChatStore

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.tty,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="POSIX only, with /proc"),
]


class Terminal:
    """A tmux session of its own server."""

    def __init__(self, folder: Path, size: tuple[int, int]) -> None:
        self.folder = folder
        self._sockets = Path(tempfile.mkdtemp(prefix="localspec-"))  # a socket's path must be short
        self._size = size

    def tmux(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._sockets / "tmux"), "-f", os.devnull, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout

    def start(self, *options: str, **environment: str) -> None:
        """Run the demo app; its exit code is printed when it ends."""
        (self.folder / "config.toml").touch()
        values = {
            "DEMO_FOLDER": str(self.folder), "LOCALSPEC_HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(sys.path), **environment,
        }  # fmt: skip
        words = " ".join(f"{key}={shlex.quote(value)}" for key, value in values.items())
        app = shlex.join([sys.executable, "-m", "tests.tui.demo_app", *options])
        width, height = map(str, self._size)
        self.tmux(
            "new-session", "-d", "-x", width, "-y", height, "-c", str(ROOT),
            f"echo shell before; env {words} {app}; echo EXIT=$?; stty -a; exec sleep 600",
        )  # fmt: skip

    def close(self) -> None:
        self.tmux("kill-server")
        shutil.rmtree(self._sockets)

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    @property
    def text(self) -> str:
        return self.tmux("capture-pane", "-p")

    def wait(self, condition: Callable[[], object], what: str, within_s: float = 20.0) -> float:
        """Seconds until something is true."""
        start = time.monotonic()
        while not condition():
            assert time.monotonic() - start < within_s, f"never happened: {what}\n{self.text}"
            time.sleep(0.03)
        return time.monotonic() - start

    def see(self, text: str, within_s: float = 20.0) -> float:
        return self.wait(lambda: text in self.text, f"`{text}` on the screen", within_s)

    @property
    def worker(self) -> int:
        self.wait((self.folder / "worker.pid").exists, "a worker")
        return int((self.folder / "worker.pid").read_text())

    @property
    def app(self) -> int:
        """Process id of the app: the parent of the worker."""
        return int(Path(f"/proc/{self.worker}/stat").read_text().rpartition(")")[2].split()[1])


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    assert shutil.which("tmux"), "these tests need tmux"
    made = Terminal(tmp_path, getattr(request, "param", (80, 24)))
    yield made
    made.close()


def test_a_whole_visit(terminal: Terminal) -> None:
    terminal.start()
    terminal.see("spec on")
    # In one burst: a key of the screen, a text, Enter, and the next text. Nothing may be lost or mixed.
    terminal.tmux("send-keys", "F8", ";", "send-keys", "-l", "sort [a] list", ";", "send-keys", "Enter", ";",
                  "send-keys", "-l", "type ahead")  # fmt: skip
    terminal.see("last minute")
    terminal.keys("F8")
    terminal.see("becomes unlikely.")
    terminal.see("172 tokens")
    assert "type ahead" in terminal.text and "sort [a] list" in terminal.text
    terminal.keys("C-c")
    terminal.see("press Ctrl+C again to quit")
    quit_s = time.monotonic()
    terminal.keys("C-c")
    terminal.see("EXIT=0")
    assert time.monotonic() - quit_s < 3.0
    text = terminal.text
    assert "shell before" in text and "resume this chat: localspec chat --resume 1" in text
    assert " icanon" in text and " echo " in text  # the terminal is as it was
    assert not runs(terminal.worker)
    store = ChatStore(terminal.folder / "chats.db")
    assert store.load(1).turns[0].content == "sort [a] list"
    store.close()


def test_a_worker_killed_in_a_reply_is_explained_and_replaced(terminal: Terminal) -> None:
    terminal.start(DEMO_DELAY="0.03")
    terminal.see("spec on")
    terminal.type("go")
    terminal.keys("Enter")
    terminal.see("Sorting a list")
    first = terminal.worker
    os.kill(first, signal.SIGKILL)
    assert terminal.see("was killed (SIGKILL)") < 1.5
    for part in ("Sorting a list", "localspec.log", "/reload", "spec –"):
        terminal.see(part)
    terminal.type("/reload")
    terminal.keys("Enter")
    terminal.wait(lambda: terminal.worker != first and "spec on" in terminal.text, "another worker")
    terminal.type("again")
    terminal.keys("Enter")
    terminal.wait(lambda: terminal.text.count("again") > 0 and "tok/s" in terminal.text, "a second reply")
    terminal.see("def quicksort")
    terminal.keys("Escape")
    terminal.see("stopped")


def test_a_worker_that_dies_while_nothing_is_asked_is_told_at_once(terminal: Terminal) -> None:
    terminal.start()
    terminal.see("spec on")
    first = terminal.worker
    os.kill(first, signal.SIGKILL)
    assert terminal.see("was killed (SIGKILL)") < 1.5
    for part in ("localspec.log", "/reload", "model ended", "spec –"):
        terminal.see(part)
    terminal.type("is anyone there")
    terminal.keys("Enter")
    terminal.see("no model is loaded")
    assert "is anyone there" in terminal.text
    terminal.keys("C-u")
    terminal.type("/reload")
    terminal.keys("Enter")
    terminal.wait(lambda: terminal.worker != first and "spec on" in terminal.text, "another worker")


@pytest.mark.parametrize("moment", ["load", "reply"])
def test_no_worker_is_left_when_the_app_is_killed(terminal: Terminal, moment: str) -> None:
    terminal.start(DEMO_LOAD="5" if moment == "load" else "0", DEMO_DELAY="0.05", DEMO_PROMPT="go")
    terminal.see("loading" if moment == "load" else "Sorting")
    worker = terminal.worker
    os.kill(terminal.app, signal.SIGKILL)
    terminal.wait(lambda: not runs(worker), "the end of the worker", within_s=2.0)


def test_closing_the_terminal_ends_the_app_its_worker_and_keeps_the_reply(terminal: Terminal) -> None:
    """A lost terminal blocks the thread that draws: the process must end all the same."""
    terminal.start(DEMO_DELAY="0.02", DEMO_PROMPT="go")
    terminal.see("Sorting a list")
    app, worker = terminal.app, terminal.worker
    terminal.keys("F8")
    terminal.tmux("kill-server")
    terminal.wait(lambda: not runs(app) and not runs(worker), "the end of both", within_s=6.0)
    store = ChatStore(terminal.folder / "chats.db")
    assert store.load(1).turns[1].content.startswith("Sorting a list")
    store.close()


def test_quitting_during_a_load_does_not_wait_for_it(terminal: Terminal) -> None:
    terminal.start(DEMO_FACTORY="tests.kit.worker_factories:hold_lock_in_load", NO_COLOR="1")
    terminal.see("loading target scripted")
    worker = terminal.worker
    terminal.keys("C-q")
    assert terminal.see("EXIT=0") < 3.0
    assert not runs(worker)


def test_inline_mode_leaves_the_shell_in_sight(terminal: Terminal) -> None:
    terminal.start("--inline")
    terminal.see("spec on")
    assert "shell before" in terminal.text
    terminal.type("hi")
    terminal.keys("Enter")
    terminal.see("172 tokens")
    terminal.keys("C-q")
    terminal.see("EXIT=0")
    assert "shell before" in terminal.text


def test_a_dumb_terminal_gets_a_sentence_and_no_escapes(terminal: Terminal) -> None:
    terminal.start(TERM="dumb")
    terminal.see("EXIT=2")
    assert "error: the terminal (TERM=dumb) cannot place the cursor" in terminal.text
