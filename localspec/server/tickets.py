"""A request's place in the server, and why it may lose it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.engine.events import Done, Event
from localspec.engine.settings import Request
from localspec.errors import LocalspecError, OutsideError
from localspec.interfaces import Reply

if TYPE_CHECKING:
    from localspec.server.dispatch import Dispatcher


class QueueFullError(OutsideError):
    """Too many requests wait, or this one waited too long."""


class TimeLimitError(OutsideError):
    """The reply took longer than the operator allows."""


class NotReadyError(OutsideError):
    """The pair is loading, or could not be loaded."""


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
