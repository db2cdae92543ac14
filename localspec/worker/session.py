"""The parent's side: a `SessionLike` whose session lives in a child process.

The child's death never raises out of a running reply: the stream ends with `Done(error)`, whose sentence
says what happened. Knows nothing of models: the child imports them through the factory's dotted path.
"""

from __future__ import annotations

import copy
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from localspec.engine.events import Done, Event, Loading, Notice, Prefill, Round, Token
from localspec.engine.settings import LoadSettings, Request
from localspec.engine.stats import Stats, Summary
from localspec.errors import EngineError, LocalspecError
from localspec.interfaces import PairFiles, SessionInfo
from localspec.locations import locations
from localspec.worker import protocol
from localspec.worker.process import WorkerProcess

OPEN_SESSION = "localspec.session:open_session"
STOP_GRACE_S = 10.0
"""A reply that has not ended this long after a cancel is taken for hung: one prefill chunk is shorter."""
SILENCE_S = 600.0
"""A reply without any event for this long is taken for hung."""


class WorkerSession:
    """A loaded pair in a child process.

    The constructor returns at once; `info` and `reply` wait for the load. `close` may be called from any
    thread, also during a load or a reply, and never waits for a native call.
    """

    def __init__(
        self,
        files: PairFiles,
        load: LoadSettings,
        *,
        factory: str = OPEN_SESSION,
        on_event: Callable[[Loading | Notice], None] | None = None,
        log: Path | None = None,
        stop_grace_s: float = STOP_GRACE_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        """Start loading in a child.

        Args:
            files: The pair.
            load: How to put it into memory.
            factory: `module:function` of an `open_session(files, load, notify) -> SessionLike`.
            on_event: Called from another thread with what the load says: its progress, and what was changed.
            log: File for everything llama.cpp prints; the program's log by default.
            stop_grace_s: Seconds a cancelled reply may take to end before the child is ended.
            silence_s: Seconds without an event after which a reply counts as hung.
        """
        self.files = files
        self.load = load
        self.log = log or locations().log_file
        self._factory = factory
        self._on_event = on_event
        self._stop_grace_s = stop_grace_s
        self._silence_s = silence_s
        self._life = self._begin()
        self._closed = False

    def _begin(self) -> _Life:
        boot = protocol.Boot(self._factory, self.files, self.load, os.getpid())
        return _Life(boot, self.log, self._on_event)

    @property
    def info(self) -> SessionInfo:
        """Facts of the loaded pair; waits for the load.

        Raises:
            LocalspecError: the load failed, with the error the session raised, or the child died.
        """
        return self._life.wait_loaded()

    @property
    def alive(self) -> bool:
        """Whether the child runs (loading counts)."""
        return not self._life.over

    @property
    def pid(self) -> int | None:
        """Process id of the child, or None when it could not be started."""
        return self._life.process.pid

    def reply(self, request: Request) -> WorkerReply:
        """Start a reply; with more than the session has slots, it waits until one has ended.

        Raises:
            UsageError: the request is wrong.
            EngineError: the session is closed, or the child died or hangs.
        """
        life = self._life
        life.wait_loaded()
        reply = WorkerReply(life, life.register(), self._stop_grace_s, self._silence_s)
        life.process.send(protocol.Start(reply.number, request))
        reply.wait_accepted()
        return reply

    def restart(self, load: LoadSettings | None = None) -> None:
        """End the child, if it still runs, and load again in a fresh one, with other settings if given.

        Raises:
            EngineError: the session was closed.
        """
        if self._closed:
            raise EngineError("the session is closed")
        self._life.end("was restarted")
        self.load = load or self.load
        self._life = self._begin()

    def close(self) -> None:
        """End the child, at once when it is busy; idempotent."""
        self._closed = True
        self._life.end("was closed")

    def __enter__(self) -> WorkerSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class WorkerReply:
    """Events of one reply as they come through the pipe. Iterate it from one thread."""

    def __init__(self, life: _Life, number: int, stop_grace_s: float, silence_s: float) -> None:
        self.number = number
        self._life = life
        self._inbox = life.inboxes[number]
        self._stop_grace_s = stop_grace_s
        self._silence_s = silence_s
        self._ready: list[Event] = []
        self._stats = Stats()
        self._tokens = 0
        self._cancelled_at: float | None = None
        self._ended = False

    def wait_accepted(self) -> None:
        """Return once the child has started the reply; raise what it raised."""
        message = self._next_message()
        if isinstance(message, LocalspecError):
            self._finish()
            raise message

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._ended:
            raise StopIteration
        while not self._ready:
            message = self._next_message()
            if isinstance(message, protocol.Batch):
                self._ready = list(reversed(message.events))
            elif isinstance(message, LocalspecError):
                return self._broken(message)
        event = self._ready.pop()
        self._observe(event)
        return event

    def cancel(self) -> None:
        """Ask for the end from any thread; events that are under way still arrive.

        Nothing happens after the last event: the child would note for ever that this number is cancelled.
        """
        if self._cancelled_at is None and not self._ended:
            self._cancelled_at = time.monotonic()
            self._life.process.send(protocol.Cancel(self.number))
            self._inbox.put(None)  # wakes the consumer, so that it watches the grace period

    def close(self) -> None:
        """Drop the reply: the child is told to stop and what it still says is ignored."""
        if not self._ended:
            self.cancel()
            self._finish()

    def _finish(self) -> None:
        self._ended = True
        self._life.inboxes.pop(self.number, None)

    def _broken(self, error: LocalspecError) -> Done:
        """The last event when the child cannot give one."""
        self._finish()
        if self._life.closed:
            return Done("cancelled", self._summary())
        sentence = f"{error.message} ({error.hint})" if error.hint else error.message
        return Done("error", self._summary(), error=sentence)

    def _observe(self, event: Event) -> None:
        """Count along, for the summary of a reply whose worker dies before it can give one."""
        match event:
            case Prefill():
                self._stats.prompt_tokens, self._stats.reused_tokens = event.total, event.reused
            case Token():
                self._tokens += 1
            case Round():
                self._stats.observe(event)
            case Done():
                self._finish()

    def _summary(self) -> Summary:
        self._stats.completion_tokens = self._tokens  # tokens of the round that broke off were shown, too
        return self._stats.summary()

    def _next_message(self) -> protocol.Accepted | protocol.Batch | LocalspecError:
        """The next message for this reply; a child that hangs is ended."""
        silent_at = time.monotonic() + self._silence_s
        while True:
            if self._cancelled_at is None:
                deadline, why = silent_at, f"said nothing for {self._silence_s:g} s and was ended"
            else:
                deadline = self._cancelled_at + self._stop_grace_s
                why = f"did not stop within {self._stop_grace_s:g} s and was ended"
            try:
                message = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return self._life.end_hung(why)
            if message is not None:
                return message


Inbox = queue.SimpleQueue["protocol.Accepted | protocol.Batch | LocalspecError | None"]


class _Life:
    """One child from start to end: its load, and where the messages of each reply go."""

    def __init__(
        self, boot: protocol.Boot, log: Path, on_event: Callable[[Loading | Notice], None] | None
    ) -> None:
        self.inboxes: dict[int, Inbox] = {}
        self.closed = False
        self._on_event = on_event
        self._lock = threading.Lock()
        self._count = 0
        self._info: SessionInfo | None = None
        self._error: LocalspecError | None = None
        self._settled = threading.Event()
        self.process = WorkerProcess(boot, log, on_message=self._receive, on_end=self._bury)

    @property
    def over(self) -> bool:
        """Whether the child has ended; known before any reply hears of it."""
        return self.process.ended or self._error is not None

    def wait_loaded(self) -> SessionInfo:
        self._settled.wait()
        if self.closed:
            raise EngineError("the session is closed")
        if self._error is not None:
            raise copy.copy(self._error)  # raised as it is, it would gather one traceback per call
        assert self._info is not None
        return self._info

    def register(self) -> int:
        """A number and an inbox for a new reply."""
        with self._lock:
            self._count += 1
            self.inboxes[self._count] = queue.SimpleQueue()
            if self._error is not None:  # it died since `wait_loaded`
                self.inboxes[self._count].put(self._error)
            return self._count

    def end(self, why: str) -> None:
        """End the child at the user's wish: running replies count as cancelled."""
        self.closed = True
        idle = self._settled.is_set() and not self.inboxes
        self.process.end(why=why, finish=idle)
        self._settled.set()

    def end_hung(self, why: str) -> LocalspecError:
        """End the child because it hangs; returns the error to show."""
        self.process.end(why=why, finish=False)
        return self._error or EngineError(f"the model process {why}, but the system could not end it yet")

    def _receive(self, message: protocol.ToParent) -> None:
        match message:
            case protocol.Progress(event):
                if self._on_event is not None:
                    self._on_event(event)
            case protocol.Ready(info):
                self._info = info
                self._settled.set()
            case protocol.LoadFailed(error):
                self._error = error
                self._settled.set()
            case protocol.Refused(number, error) | protocol.Failed(number, error):
                self._put(number, error)
            case protocol.Accepted(number) | protocol.Batch(number):
                self._put(number, message)

    def _put(self, number: int, message: protocol.Accepted | protocol.Batch | LocalspecError) -> None:
        inbox = self.inboxes.get(number)
        if inbox is not None:  # None: the consumer closed it
            inbox.put(message)

    def _bury(self, error: EngineError) -> None:
        with self._lock:
            self._error = self._error or error
            inboxes = list(self.inboxes.values())
        for inbox in inboxes:
            inbox.put(error)
        self._settled.set()
