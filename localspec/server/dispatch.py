"""Engine threads, one per slot, between many requests and one session.

The session blocks, so each reply is read in a thread; requests wait in a fair queue and read their events
from an asyncio queue. Events cross over once per round, not once per token. A session that dies is
started again and proves itself with a short generation before it gets the next request; only the requests
that were running fail. Knows nothing of HTTP or JSON.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from localspec.engine.events import Done, Event, Round, Token
from localspec.engine.settings import Request, SamplingSettings
from localspec.errors import EngineError, LocalspecError
from localspec.interfaces import SessionInfo, SessionLike
from localspec.server.fairness import FairQueue
from localspec.server.metrics import Metrics
from localspec.server.settings import READY_TOKENS, Limits
from localspec.server.tickets import NotReadyError, QueueFullError, Ticket, TimeLimitError

log = logging.getLogger("localspec.server")

IDLE_CHECK_S = 1.0
"""How often an idle engine thread looks whether its session still lives."""
RETRY_S = (0.5, 1.0, 5.0, 15.0, 30.0)
"""Pauses between attempts to bring a failing session up."""
LAST_EVENTS_S = 5.0
"""How long a restart waits for replies of the dead session to be told; they are told at once."""
PATIENCE = 3
"""Failed attempts after which those who wait are told."""


class ServedSession(SessionLike, Protocol):
    """A session that can die and be started again; `WorkerSession` is one."""

    @property
    def alive(self) -> bool: ...

    def restart(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Health:
    """State of the service; `reason` only when it is not ready."""

    status: Literal["loading", "ready", "restarting", "failed"]
    reason: str | None = None


class Dispatcher:
    """Owns the session and the engine threads."""

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
        self._running: list[Ticket] = []
        self._raising = threading.Lock()
        """Held by whoever starts a dead session again."""
        self._closed = False
        self._health = Health("loading")
        self._info: SessionInfo | None = None
        self._failures = 0
        self._retry_at = 0.0
        self._first_failure: LocalspecError | None = None
        self._settled = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin loading; returns at once."""
        self._grow(1)

    def _grow(self, slots: int) -> None:
        """Run as many engine threads as the session answers requests at once."""
        with self._lock:
            while len(self._threads) < slots and not self._closed:
                name = f"engine-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()

    def close(self) -> None:
        """Fail what waits or runs, end the session and the threads. Idempotent; may take a second or two."""
        with self._lock:
            self._closed = True
            open_tickets = [*self._queue.items(), *self._running]
            self._queue = FairQueue()
            self._lock.notify_all()
        for ticket in open_tickets:
            ticket.deliver(NotReadyError("the server is stopping"))
        self._session.close()
        for thread in self._threads:
            thread.join()

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
        return bool(self._running)

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
            running = list(self._running)
            preparing = [ticket for ticket in running if ticket.reply is None and not ticket.ended]
        for ticket in late:
            ticket.deliver(
                QueueFullError(f"the request waited {self._limits.queue_s:g} s and was not reached")
            )
            ticket.cancel()
        for ticket in running:
            assert ticket.started_at is not None
            ran = now - ticket.started_at
            if ticket in preparing and ran > self._limits.start_s:
                self._give_up(ticket, running)
                return
            if ran > self._limits.reply_s and not ticket.cancelled:
                ticket.deliver(TimeLimitError(f"the reply took longer than {self._limits.reply_s:g} s"))
                ticket.cancel()

    def _give_up(self, ticket: Ticket, running: list[Ticket]) -> None:
        """A request cannot be prepared: only the end of its worker ends the attempt, whoever else runs."""
        message = f"the request could not be prepared within {self._limits.start_s:g} s"
        ticket.deliver(TimeLimitError(message))
        for other in running:
            other.deliver(
                EngineError(f"the model process was restarted, because of another request: {message}")
            )
        log.warning("%s; the worker is restarted", message)
        self._health = Health("restarting", message)
        self._metrics.restarted()
        with self._raising:  # the engine threads notice the end and must not start another worker beside it
            if ticket in self._running:
                self._session.restart()

    # --- the engine threads ---

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
            if ticket is not None:
                self._release(ticket)

    def _release(self, ticket: Ticket) -> None:
        with self._lock:
            ticket.reply = None  # a late cancel has nothing left to reach
            self._running.remove(ticket)
            self._metrics.running(len(self._running))
            self._lock.notify_all()

    def _fail(self, ticket: Ticket | None, error: LocalspecError) -> None:
        if ticket is not None:
            self._metrics.failed()
            ticket.deliver(error)

    @property
    def _up(self) -> bool:
        return self._health.status == "ready" and self._session.alive

    def _bring_up(self) -> None:
        """Make sure that the session lives and has proved itself; waits out the pause after a failure."""
        if not self._up:
            with self._raising:
                if not self._up:  # no other engine thread has done it meanwhile
                    self._raise_up()

    def _raise_up(self) -> None:
        if self._info is not None and self._health.status == "ready":
            self._health = Health("restarting", "the model process ended and is being restarted")
            self._metrics.restarted()
        with self._lock:
            if self._lock.wait_for(lambda: self._closed, timeout=max(0.0, self._retry_at - self._clock())):
                return
            # Replies of the dead session must hear of its death before it counts as restarted.
            self._lock.wait_for(lambda: not self._running, timeout=LAST_EVENTS_S)
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
            self._grow(self._info.effective.slots)
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
            if not self._up:  # it died in another thread's reply
                return None
            ticket = self._next()
            if ticket is not None:
                ticket.started_at = self._clock()
                self._running.append(ticket)
                self._metrics.running(len(self._running))
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
            if isinstance(event, Round):
                self._metrics.round(event)
            elif isinstance(event, Done):
                self._metrics.finished(event)
            ticket.deliver(batch)
            batch = []
