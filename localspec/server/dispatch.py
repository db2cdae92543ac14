"""One engine thread between many requests and one session.

The session blocks, so it runs in a thread of its own; requests wait in a fair queue and read their events
from an asyncio queue. Events cross over once per round, not once per token. A session that dies is
started again and proves itself with a short generation before it gets the next request; only the request
that was running fails. Knows nothing of HTTP or JSON.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from localspec.engine.events import Done, Event, Token
from localspec.engine.settings import Request, SamplingSettings
from localspec.errors import EngineError, LocalspecError, OutsideError
from localspec.interfaces import Reply, SessionInfo, SessionLike
from localspec.server.fairness import FairQueue
from localspec.server.metrics import Metrics
from localspec.server.settings import READY_TOKENS, Limits

log = logging.getLogger("localspec.server")

IDLE_CHECK_S = 1.0
"""How often an idle engine thread looks whether its session still lives."""
RETRY_S = (0.5, 1.0, 5.0, 15.0, 30.0)
"""Pauses between attempts to bring a failing session up."""
PATIENCE = 3
"""Failed attempts after which those who wait are told."""


class ServedSession(SessionLike, Protocol):
    """A session that can die and be started again; `WorkerSession` is one."""

    @property
    def alive(self) -> bool: ...

    def restart(self) -> None: ...


class QueueFullError(OutsideError):
    """Too many requests wait, or this one waited too long."""


class TimeLimitError(OutsideError):
    """The reply took longer than the operator allows."""


class NotReadyError(OutsideError):
    """The pair is loading, or could not be loaded."""


@dataclass(frozen=True, slots=True)
class Health:
    """State of the service; `reason` only when it is not ready."""

    status: Literal["loading", "ready", "restarting", "failed"]
    reason: str | None = None


@dataclass(eq=False, slots=True)
class Ticket:
    """One request's place: iterate it for batches of events, cancel it when the client is gone."""

    request: Request
    client: str
    queued_at: float
    _dispatcher: Dispatcher
    _loop: asyncio.AbstractEventLoop
    _inbox: asyncio.Queue[list[Event] | LocalspecError] = field(default_factory=asyncio.Queue)
    started_at: float | None = None
    reply: Reply | None = None
    cancelled: bool = False
    ended: bool = False
    """Nothing more will be delivered."""

    @property
    def conversation(self) -> str:
        return self.request.cache_key or ""

    def cancel(self) -> None:
        """Give the place up: a waiting request leaves the queue, a running one ends within a round."""
        self._dispatcher.cancel(self)

    async def batches(self) -> AsyncIterator[list[Event]]:
        """The events of the reply, round by round; the last batch ends with `Done`.

        Raises:
            LocalspecError: the request was refused, timed out, or its worker died before it answered.
        """
        while True:
            item = await self._inbox.get()
            if isinstance(item, LocalspecError):
                raise item
            yield item
            if isinstance(item[-1], Done):
                return

    def deliver(self, item: list[Event] | LocalspecError) -> None:
        """Hand a batch or a failure over to the request's event loop; later items are dropped."""
        if self.ended:
            return
        self.ended = isinstance(item, LocalspecError) or isinstance(item[-1], Done)
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, item)


class Dispatcher:
    """Owns the session and the engine thread."""

    def __init__(
        self,
        session: ServedSession,
        limits: Limits,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Condition()
        self._queue: FairQueue[Ticket] = FairQueue()
        self._current: Ticket | None = None
        self._closed = False
        self._health = Health("loading")
        self._info: SessionInfo | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._first_failure: LocalspecError | None = None
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begin loading; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """Fail what waits, end the session and the thread. Idempotent; may take a second or two."""
        with self._lock:
            self._closed = True
            waiting = self._queue.items()
            self._queue = FairQueue()
            self._lock.notify_all()
        for ticket in waiting:
            ticket.deliver(NotReadyError("the server is stopping"))
        self._session.close()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def health(self) -> Health:
        return self._health

    @property
    def info(self) -> SessionInfo:
        """Facts of the loaded pair, also while its worker restarts.

        Raises:
            NotReadyError: it was never loaded.
        """
        if self._info is None:
            raise NotReadyError(self._health.reason or "the model is still loading")
        return self._info

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def busy(self) -> bool:
        return self._current is not None

    def wait_settled(self) -> LocalspecError | None:
        """Block until the first load ended; its error when it failed."""
        self._settled.wait()
        return self._first_failure

    def submit(self, request: Request, client: str) -> Ticket:
        """Queue a request; call it from the event loop that will read the ticket.

        Raises:
            QueueFullError: too many wait already.
            NotReadyError: the server is stopping.
        """
        ticket = Ticket(request, client, self._clock(), self, asyncio.get_running_loop())
        with self._lock:
            if self._closed:
                raise NotReadyError("the server is stopping")
            if len(self._queue) >= self._limits.queued:
                raise QueueFullError(
                    f"{len(self._queue)} requests wait already, which is this server's limit"
                )
            self._queue.push(client, ticket.conversation, ticket)
            self._metrics.queued(len(self._queue))
            self._lock.notify_all()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """See `Ticket.cancel`."""
        with self._lock:
            ticket.cancelled = True
            self._queue.remove(ticket.client, ticket.conversation, ticket)
            self._metrics.queued(len(self._queue))
            reply = ticket.reply
        if reply is not None:
            reply.cancel()

    def sweep(self) -> None:
        """Enforce the time limits; called every fraction of a second, not from the engine thread."""
        now = self._clock()
        with self._lock:
            late = [t for t in self._queue.items() if now - t.queued_at > self._limits.queue_s]
            current = self._current
            preparing = current is not None and current.reply is None
        for ticket in late:
            ticket.deliver(
                QueueFullError(f"the request waited {self._limits.queue_s:g} s and was not reached")
            )
            ticket.cancel()
        if current is None or current.started_at is None:
            return
        ran = now - current.started_at
        if preparing and ran > self._limits.start_s:
            message = f"the request could not be prepared within {self._limits.start_s:g} s"
            current.deliver(TimeLimitError(message))
            log.warning("%s; the worker is restarted", message)
            self._health = Health("restarting", message)
            self._metrics.restarted()
            self._session.restart()
        elif ran > self._limits.reply_s and not current.cancelled:
            current.deliver(TimeLimitError(f"the reply took longer than {self._limits.reply_s:g} s"))
            current.cancel()

    # --- the engine thread ---

    def _run(self) -> None:
        """Bring the session up, answer, repeat.

        Exceptions that are no `LocalspecError` end here: one would otherwise stop the thread, and every
        later request would wait for ever.
        """
        while not self._closed:
            ticket: Ticket | None = None
            try:
                self._bring_up()
                ticket = self._take()
                if ticket is not None:
                    self._answer(ticket)
            except LocalspecError as error:
                self._fail(ticket, error)
            except Exception as error:
                log.exception("the engine thread met an unexpected error")
                self._fail(ticket, EngineError(f"{type(error).__name__}: {error}"))
            with self._lock:
                if self._current is not None:
                    self._current.reply = None  # a late cancel has nothing left to reach
                self._current = None

    def _fail(self, ticket: Ticket | None, error: LocalspecError) -> None:
        if ticket is not None:
            self._metrics.failed()
            ticket.deliver(error)

    def _bring_up(self) -> None:
        """Make sure that the session lives and has proved itself; waits out the pause after a failure."""
        if self._health.status == "ready" and self._session.alive:
            return
        if self._info is not None and self._health.status == "ready":
            self._health = Health("restarting", "the model process ended and is being restarted")
            self._metrics.restarted()
        with self._lock:
            if self._lock.wait_for(lambda: self._closed, timeout=max(0.0, self._retry_at - self._clock())):
                return
        try:
            if not self._session.alive:
                self._session.restart()
            self._info = self._session.info
            self._prove()
        except LocalspecError as error:
            self._not_up(error)
        else:
            self._failures = 0
            self._health = Health("ready")
        self._settled.set()

    def _not_up(self, error: LocalspecError) -> None:
        """Note a failed start; after a few, tell those who wait, because the next attempt is far off."""
        if self._closed:
            return
        if not self._settled.is_set():
            self._first_failure = error
        self._health = Health("failed", error.message)
        self._retry_at = self._clock() + RETRY_S[min(self._failures, len(RETRY_S) - 1)]
        self._failures += 1
        log.error("the pair could not be brought up: %s", error.message)
        while self._failures >= PATIENCE and (ticket := self._next()) is not None:
            self._fail(
                ticket, EngineError(f"the model could not be started: {error.message}", hint=error.hint)
            )

    def _prove(self) -> None:
        """Generate a few tokens for real.

        Raises:
            EngineError: nothing came out.
        """
        request = Request(
            prompt="Hello",
            max_tokens=READY_TOKENS,
            ignore_eog=True,
            sampling=SamplingSettings(temperature=0.0),
        )
        tokens = 0
        for event in self._session.reply(request):
            tokens += isinstance(event, Token)
            if isinstance(event, Done) and (event.reason in ("error", "cancelled") or not tokens):
                raise EngineError(event.error or "the trial generation gave no token")

    def _next(self) -> Ticket | None:
        with self._lock:
            ticket = self._queue.pop()
            self._metrics.queued(len(self._queue))
            return ticket

    def _take(self) -> Ticket | None:
        """The next request in turn, marked as running; None after a while without one."""
        with self._lock:
            if self._health.status != "ready":
                return None
            self._lock.wait_for(lambda: self._closed or len(self._queue) > 0, timeout=IDLE_CHECK_S)
            ticket = self._next()
            if ticket is not None:
                ticket.started_at = self._clock()
                self._current = ticket
            return ticket

    def _answer(self, ticket: Ticket) -> None:
        assert ticket.started_at is not None
        self._metrics.started(ticket.started_at - ticket.queued_at)
        reply = self._session.reply(ticket.request)
        with self._lock:
            ticket.reply = reply
            late = ticket.cancelled or ticket.ended
        if late:
            reply.cancel()
        batch: list[Event] = []
        first = True
        for event in reply:
            batch.append(event)
            if isinstance(event, Token):
                if first:
                    self._metrics.first_token(self._clock() - ticket.queued_at)
                first = False
                continue
            if isinstance(event, Done):
                self._metrics.finished(event)
            ticket.deliver(batch)
            batch = []
