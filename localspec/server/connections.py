"""Connections that cost little: time limits on heads, bodies and readers, and a cap on open sockets.

uvicorn closes idle keep-alive connections but waits for ever for a head or a body that does not come, and
accepts until the process has no file descriptors left. `guarded_protocol` makes a protocol class that
does neither. When the cap is reached the longest idle connection makes room for the new one, so that a
crowd of silent clients cannot keep others out.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.server.settings import Limits

RESERVED_FDS = 64
"""Descriptors kept for the worker's pipes, logs, the event loop and model files."""
ACCEPTED_AT_ONCE = 16
"""Connections the event loop accepts in one go."""
UNDER_WAY = 6 * ACCEPTED_AT_ONCE
"""Connections above the cap while a crowd arrives: from accept to the close of the one that makes room the
event loop turns four times, and accepts in each turn."""
FD_LIMIT_MAX = 65_536
"""No need for more, and some systems report a limit that they then refuse."""


class IdleRing:
    """The open connections and, longest idle first, those without a request in progress."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._open: set[GuardedProtocol] = set()
        self._idle: OrderedDict[GuardedProtocol, None] = OrderedDict()

    def enter(self, connection: GuardedProtocol) -> None:
        """Take a new connection in and close the longest idle ones above the cap, never an active one."""
        self._open.add(connection)
        while len(self._open) > self._cap and self._idle:
            oldest = next(iter(self._idle))
            self.leave(oldest)
            oldest.transport.abort()

    def leave(self, connection: GuardedProtocol) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)

    def idle(self, connection: GuardedProtocol) -> None:
        self._idle[connection] = None
        self._idle.move_to_end(connection)

    def active(self, connection: GuardedProtocol) -> None:
        self._idle.pop(connection, None)


class GuardedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with a deadline in every state that waits for the client."""

    ring: IdleRing
    limits: Limits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._phase = ""
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.ring.enter(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ring.leave(self)
        self._enter("closed", None)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self.limits.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _watch(self) -> None:
        """Enter the state the HTTP parser is in; a state that is entered again keeps its deadline."""
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE:
            # Between requests uvicorn's own keep-alive timer runs until the first byte arrives.
            waiting = self.cycle is not None and self.timeout_keep_alive_task is not None
            self._enter("kept alive" if waiting else "head", None if waiting else self.limits.head_s)
            self.ring.idle(self)
        elif self.conn.their_state is h11.SEND_BODY:
            self._enter("body", self.limits.request_s)
            self.ring.active(self)
        else:
            self._enter("reply", None)
            self.ring.active(self)

    def _enter(self, phase: str, limit_s: float | None) -> None:
        if phase == self._phase:
            return
        self._phase = phase
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if limit_s is None else self.loop.call_later(limit_s, self.transport.abort)


def guarded_protocol(limits: Limits, cap: int) -> type[GuardedProtocol]:
    """A protocol class for one server: uvicorn creates the instances itself and takes only a class."""
    return type("ServerProtocol", (GuardedProtocol,), {"ring": IdleRing(cap), "limits": limits})


def raise_fd_limit() -> int:
    """Raise the soft limit of open files to the hard one; the number of descriptors now allowed."""
    try:
        import resource
    except ImportError:  # Windows counts handles differently and has plenty
        return FD_LIMIT_MAX
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FD_LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, FD_LIMIT_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return FD_LIMIT_MAX if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def connection_cap(fd_limit: int) -> int:
    """How many connections fit beside everything else that needs a descriptor."""
    return max(16, fd_limit - RESERVED_FDS - UNDER_WAY)
