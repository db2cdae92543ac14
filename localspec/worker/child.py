"""The child's side: load a session, run replies, as many at once as it has slots, stream their events.

Three threads, and one per slot if there are several. The main one runs the session (with one slot native
calls happen here, with several in the session's own native thread). The listener reads the parent's
messages, passes cancels on at once, and ends the process the moment the pipe closes, also while the main
thread is inside a load or decode, because native calls release the interpreter lock. The sender writes
events: at once when idle, in batches when they come faster than the pipe takes them.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import logging
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, NoReturn

from localspec.engine.events import Event, Loading, Notice
from localspec.errors import EngineError, LocalspecError
from localspec.interfaces import Reply, SessionLike
from localspec.log import LOGGER
from localspec.worker import protocol
from localspec.worker.obituary import LOG_FORMAT

BATCH_MAX = 512
PR_SET_PDEATHSIG = 1


def main() -> NoReturn:
    """Serve the parent until it is gone or says `Finish`; never returns."""
    incoming, outgoing = take_over_pipes()
    boot = protocol.receive(incoming)
    if not isinstance(boot, protocol.Boot):
        os._exit(0)
    die_with_parent(boot.parent_pid)
    faulthandler.enable()
    start_logging()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C belongs to the parent's screen
    sender = Sender(outgoing)
    runner = Runner(sender)
    threading.Thread(target=listen, args=(incoming, runner), name="listener", daemon=True).start()
    runner.run(boot)
    sender.drain()
    sys.stdout.flush()
    # Not sys.exit: the listener may hold the pipe's buffer lock, which interpreter shutdown would wait for.
    os._exit(0)


def take_over_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep stdin and stdout for the protocol and send everything else that prints to the log (stderr)."""
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return os.fdopen(incoming, "rb"), os.fdopen(outgoing, "wb")


def die_with_parent(parent_pid: int) -> None:
    """On Linux ask the kernel for SIGKILL when the parent ends; it works even if Python cannot run."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before the call above
        os._exit(0)


def start_logging() -> None:
    """Write what our loggers say, llama.cpp's lines among it, to stderr, which is the log file."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    logger = logging.getLogger(LOGGER)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


def listen(incoming: BinaryIO, runner: Runner) -> None:
    """Pass the parent's messages on; end the process when the parent is gone."""
    while True:
        message = protocol.receive(incoming)
        if message is None:
            os._exit(0)
        elif isinstance(message, protocol.Cancel):
            runner.cancel(message.number)
        else:
            runner.todo.put(message)


class Sender:
    """Writes messages from its own thread, so that the decode never waits for the pipe."""

    def __init__(self, outgoing: BinaryIO) -> None:
        self._outgoing = outgoing
        self._queue: queue.SimpleQueue[protocol.ToParent | tuple[int, Event] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def put(self, message: protocol.ToParent | tuple[int, Event]) -> None:
        """Queue a message, or an event of a reply as `(number, event)`."""
        self._queue.put(message)

    def drain(self) -> None:
        """Wait until all that was queued is written."""
        self._queue.put(None)
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        try:
            while self._write_some():
                pass
        except OSError:  # the parent is gone; the listener ends the process
            return

    def _write_some(self) -> bool:
        """Write the next message; events that queued up behind one another share a frame."""
        item = self._queue.get()
        number: int | None = None
        events: list[Event] = []
        while isinstance(item, tuple):
            if number not in (None, item[0]) or len(events) == BATCH_MAX:
                self._flush(number, events)
            number = item[0]
            events.append(item[1])
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                self._flush(number, events)
                return True
        self._flush(number, events)
        if item is None:
            return False
        protocol.send(self._outgoing, item)
        return True

    def _flush(self, number: int | None, events: list[Event]) -> None:
        if number is not None and events:
            protocol.send(self._outgoing, protocol.Batch(number, tuple(events)))
            events.clear()


class Runner:
    """The main thread's loop: one session, which answers as many requests at once as it has slots."""

    def __init__(self, sender: Sender) -> None:
        self.todo: queue.SimpleQueue[protocol.Start | protocol.Finish] = queue.SimpleQueue()
        self._sender = sender
        self._lock = threading.Lock()
        self._replies: dict[int, Reply] = {}
        self._cancelled: set[int] = set()

    def cancel(self, number: int) -> None:
        """Cancel a reply that runs, or one that is still to come."""
        with self._lock:
            self._cancelled.add(number)
            reply = self._replies.get(number)
        if reply is not None:
            reply.cancel()

    def run(self, boot: protocol.Boot) -> None:
        """Load, then answer until `Finish`.

        Every failure is told to the parent: this is the boundary of the process, and an exception that
        ended it here would reach nobody.
        """
        try:
            session = open_session(boot, lambda event: self._sender.put(protocol.Progress(event)))
        except Exception as error:  # noqa: BLE001
            self._sender.put(protocol.LoadFailed(as_localspec_error(error, "loading")))
            return
        self._sender.put(protocol.Ready(session.info))
        slots = session.info.effective.slots
        if slots == 1:
            self._serve(lambda start: self._answer(session, start))
        else:
            with ThreadPoolExecutor(slots, "reply") as pool:
                self._serve(lambda start: pool.submit(self._answer, session, start))
        session.close()

    def _serve(self, answer: Callable[[protocol.Start], object]) -> None:
        while isinstance(message := self.todo.get(), protocol.Start):
            answer(message)

    def _answer(self, session: SessionLike, start: protocol.Start) -> None:
        number = start.number
        try:
            reply = session.reply(start.request)
        except Exception as error:  # noqa: BLE001 (see `run`)
            self._sender.put(protocol.Refused(number, as_localspec_error(error, "starting the reply")))
            return
        with self._lock:
            self._replies[number] = reply
            late = number in self._cancelled
        if late:
            reply.cancel()
        self._sender.put(protocol.Accepted(number))
        try:
            for event in reply:
                self._sender.put((number, event))
        except Exception as error:  # noqa: BLE001 (see `run`)
            self._sender.put(protocol.Failed(number, as_localspec_error(error, "the reply")))
        finally:
            with self._lock:
                self._replies.pop(number, None)
                self._cancelled.discard(number)


def open_session(boot: protocol.Boot, notify: Callable[[Loading | Notice], None]) -> SessionLike:
    """Import the factory by its dotted path and call it."""
    module, _, function = boot.factory.partition(":")
    factory = getattr(importlib.import_module(module), function)
    session: SessionLike = factory(boot.files, boot.load, notify)
    return session


def as_localspec_error(error: Exception, during: str) -> LocalspecError:
    """Our own errors as they are; any other as an `EngineError`, its traceback kept in the log."""
    if isinstance(error, LocalspecError):
        return error
    traceback.print_exception(error)
    sys.stderr.flush()
    return EngineError(f"{during} failed with {type(error).__name__}: {error}")
