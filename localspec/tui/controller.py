"""Drives a session from threads of its own and tells the screen; it has no widgets.

Events go through an inbox, not one message each: the screen is told that something is there, and takes
all of it when it draws next. Stop, close and quit never wait for a native call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from textual.message import Message

from localspec.engine.events import Done, Event, Loading, Notice
from localspec.engine.settings import LoadSettings, Request
from localspec.errors import EngineError, LocalspecError
from localspec.interfaces import Reply, SessionInfo, SessionLike
from localspec.tui.messages import (
    EventsArrived,
    Loaded,
    LoadFailed,
    LoadNotice,
    LoadProgress,
    ReplyRefused,
)

State = Literal["empty", "loading", "ready", "replying", "stopping", "failed"]


@dataclass(frozen=True, slots=True)
class Wish:
    """Which model the user wants loaded, and how."""

    pair: str | None = None
    """Name of the pair; None = the one the command was started with."""
    load: LoadSettings | None = None
    """None = as configured."""
    force: bool = False
    """Load even though the plan says that it does not fit."""


class MakeSession(Protocol):
    """Opens what a wish asks for. Called in a thread; may return before the load has ended."""

    def __call__(self, wish: Wish, notify: Callable[[Loading | Notice], None]) -> SessionLike: ...


class Controller:
    """One session at a time, one reply at a time.

    `post` must be callable from any thread.
    """

    def __init__(self, make_session: MakeSession, post: Callable[[Message], object]) -> None:
        self.state: State = "empty"
        self.info: SessionInfo | None = None
        self.wish = Wish()
        self.inbox: deque[Event] = deque()
        self._make_session = make_session
        self._post = post
        self._lock = threading.Lock()
        self._session: SessionLike | None = None
        self._reply: Reply | None = None
        self._load_number = 0
        self._told = False

    @property
    def busy(self) -> bool:
        """Whether there is something to stop."""
        return self.state in ("loading", "replying", "stopping")

    def load(self, wish: Wish) -> None:
        """Load what is wished, ending what is there; the outcome is posted."""
        with self._lock:
            self._load_number += 1
            number = self._load_number
            old, self._session = self._session, None
            self.wish = wish
            self.info = None
            self.state = "loading"
        self._in_thread(self._load, number, wish, old)

    def ask(self, request: Request) -> None:
        """Start a reply; its events go to the inbox, or `ReplyRefused` is posted."""
        with self._lock:
            session = self._session
            self.state = "replying"
        self.inbox.clear()
        self._in_thread(self._run, session, request)

    def stop(self) -> bool:
        """Stop the reply or the load, at once; returns whether there was one."""
        with self._lock:
            state, reply, session = self.state, self._reply, self._session
            if state == "replying":
                self.state = "stopping"
            elif state == "loading":
                self._load_number += 1
                self._session = None
                self.state = "failed"
        if state == "replying" and reply is not None:
            reply.cancel()
        elif state == "loading":
            if session is not None:
                self._in_thread(session.close)
            self._post(LoadFailed(EngineError("the load was stopped"), stopped=True))
        return state in ("loading", "replying", "stopping")

    def death(self) -> LocalspecError | None:
        """Why the model that waited for the next request is gone; told once, then there is no model."""
        with self._lock:
            session = self._session if self.state == "ready" else None
        error = self._end_of(session) if session is not None else None
        if error is None:
            return None
        with self._lock:
            if self._session is not session or self.state != "ready":
                return None  # the user was faster
            self.state = "failed"
        return error

    def close(self) -> None:
        """End the session; returns within two seconds."""
        with self._lock:
            self._load_number += 1
            session, self._session = self._session, None
            self.state = "empty"
        if session is not None:
            session.close()

    def take(self, limit: int) -> list[Event]:
        """At most `limit` of the events that arrived since the last call, in order."""
        self._told = False
        events: list[Event] = []
        while self.inbox and len(events) < limit:
            events.append(self.inbox.popleft())
        return events

    def _in_thread(self, work: Callable[..., object], *values: object) -> None:
        # Daemons: leaving the program must not wait for a native call.
        threading.Thread(target=work, args=values, name="controller", daemon=True).start()

    def _load(self, number: int, wish: Wish, old: SessionLike | None) -> None:
        def notify(event: Loading | Notice) -> None:
            if number == self._load_number:
                self._post(LoadProgress(event) if isinstance(event, Loading) else LoadNotice(event))

        session: SessionLike | None = None
        try:
            if old is not None:
                old.close()  # first: two models rarely fit at once
            session = self._make_session(wish, notify)
            with self._lock:
                current = number == self._load_number
                if current:
                    self._session = session
            if not current:  # stopped meanwhile: not even its load is awaited
                session.close()
                return
            info = session.info
        except LocalspecError as error:
            self._load_ended(number, session, error)
        else:
            self._load_ended(number, session, info)

    def _load_ended(
        self, number: int, session: SessionLike | None, outcome: SessionInfo | LocalspecError
    ) -> None:
        with self._lock:
            current = number == self._load_number
            failed = isinstance(outcome, LocalspecError)
            if current:
                self._session = None if failed else session
                self.info = None if isinstance(outcome, LocalspecError) else outcome
                self.state = "failed" if failed else "ready"
        if session is not None and (failed or not current):
            session.close()
        if not current:
            return
        self._post(
            LoadFailed(outcome, stopped=False) if isinstance(outcome, LocalspecError) else Loaded(outcome)
        )

    def _run(self, session: SessionLike | None, request: Request) -> None:
        try:
            if session is None:
                raise EngineError("no model is loaded")
            reply = session.reply(request)
        except LocalspecError as error:
            self._settle(self._after(session))
            self._post(ReplyRefused(error))
            return
        with self._lock:
            self._reply = reply
            stopping = self.state != "replying"
        if stopping:
            reply.cancel()
        for event in reply:
            if isinstance(event, Done):
                self._settle(self._after(session))
            self.inbox.append(event)
            if not self._told:
                self._told = True
                self._post(EventsArrived())

    def _after(self, session: SessionLike | None) -> State:
        """The state once a request is over, refused or answered."""
        return "failed" if session is None or self._end_of(session) else "ready"

    def _end_of(self, session: SessionLike) -> LocalspecError | None:
        """Why the session can take no further request; None while it can."""
        try:
            session.info  # noqa: B018
        except LocalspecError as error:
            return error
        return None

    def _settle(self, state: State) -> None:
        with self._lock:
            self._reply = None
            if self.state in ("replying", "stopping"):
                self.state = state
