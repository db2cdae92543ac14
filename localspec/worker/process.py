"""One child process as the parent sees it: start, talk, notice its end, end it.

Knows the protocol and the operating system, not what replies are made of: what arrives goes to a callback.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, BinaryIO

from localspec.errors import EngineError
from localspec.worker import protocol
from localspec.worker.obituary import describe_exit, obituary

LOG_MAX_BYTES = 5 << 20
FINISH_S = 0.5
"""How long an idle child may take to close its session by itself."""
TERMINATE_S = 1.0


class WorkerProcess:
    """A child and the three threads around it: one starts it and reads, one writes, the caller's.

    The reading thread starts the child because the kernel's parent-death signal follows the *thread* that
    started it, and this one lives exactly as long as the child.
    """

    def __init__(
        self,
        boot: protocol.Boot,
        log: Path,
        *,
        on_message: Callable[[protocol.ToParent], None],
        on_end: Callable[[EngineError], None],
    ) -> None:
        """Start at once, without waiting for it.

        Args:
            boot: The first message.
            log: File that takes the child's stdout and stderr.
            on_message: Called from the reading thread for everything the child says.
            on_end: Called once from the reading thread, with the reason, when the child is gone.
        """
        self._outbox: queue.SimpleQueue[protocol.ToChild | None] = queue.SimpleQueue()
        self._on_message = on_message
        self._on_end = on_end
        self._log = log
        self._started = threading.Event()
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._verdict: str | None = None
        self._outbox.put(boot)
        threading.Thread(target=self._run, name="worker-reader", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """Process id, or None when it could not be started."""
        self._started.wait()
        return self._process.pid if self._process else None

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def send(self, message: protocol.ToChild) -> None:
        """Queue a message; never blocks, and does nothing when the child is gone."""
        self._outbox.put(message)

    def end(self, *, why: str, finish: bool) -> None:
        """End the child within two seconds, whatever it is doing. Idempotent, callable from any thread.

        Args:
            why: How the obituary describes this end.
            finish: The child is idle: let it close its session first.
        """
        self._started.wait()
        process = self._process
        if process is None or self._ended.is_set():
            return
        self._verdict = self._verdict or why
        if finish:
            self.send(protocol.Finish())
            if self._ended.wait(FINISH_S):
                return
        process.terminate()
        if not self._ended.wait(TERMINATE_S):
            process.kill()
            self._ended.wait(TERMINATE_S)

    def _run(self) -> None:
        log, stream, offset = _open_log(self._log)
        try:
            process = subprocess.Popen(
                # -P: a file in the user's folder must not shadow a module.
                [sys.executable, "-P", "-m", "localspec.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=_environment(),
                start_new_session=os.name == "posix",  # keeps the terminal's signals away from it
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        except OSError as error:
            self._started.set()
            self._on_end(obituary(f"could not be started: {error.strerror}", log, offset))
            self._ended.set()
            return
        finally:
            stream.close()
        self._process = process
        self._started.set()
        assert process.stdin is not None and process.stdout is not None
        writer = threading.Thread(
            target=self._write, args=(process.stdin,), name="worker-writer", daemon=True
        )
        writer.start()
        with process.stdout:
            while (message := protocol.receive(process.stdout)) is not None:
                self._on_message(message)
        code = self._reap(process)
        self._outbox.put(None)
        self._on_end(obituary(self._verdict or describe_exit(code), log, offset))
        self._ended.set()

    def _reap(self, process: subprocess.Popen[bytes]) -> int:
        """The exit code; a child that closed its pipe but stays is killed."""
        try:
            return process.wait(TERMINATE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _write(self, stream: IO[bytes]) -> None:
        # Closing flushes what a dead child never read, and fails: there is nobody left to tell.
        with contextlib.suppress(OSError), stream:
            while (message := self._outbox.get()) is not None:
                protocol.send(stream, message)


def _environment() -> dict[str, str]:
    """Ours, with our module path."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)}


def _open_log(path: Path) -> tuple[Path | None, BinaryIO, int]:
    """The log opened for appending, with its size now; the null device when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_MAX_BYTES:
            path.replace(path.with_suffix(path.suffix + ".1"))
        stream = path.open("ab")
    except OSError:
        return None, Path(os.devnull).open("ab"), 0
    return path, stream, stream.tell()
