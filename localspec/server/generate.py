"""Answers one HTTP call from its replies, whole or as a stream; a client that leaves frees its places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from localspec.api.assemble import Choice
from localspec.api.faults import Fault, fault_of
from localspec.errors import LocalspecError
from localspec.server.streams import Dialect
from localspec.server.tickets import QueueFullError, Ticket, TimeLimitError
from localspec.server.wire import EVENT_STREAM, STREAM_HEADERS, fault_response, json_response

CLIENT_GONE = 499
"""Nobody reads this status; the number is nginx's."""
RETRY_AFTER_S = "2"

T = TypeVar("T")


@dataclass(slots=True)
class Call:
    """One HTTP call being answered: its choices, the places of their replies, the shape of the answer."""

    choices: list[Choice]
    tickets: list[Ticket]
    dialect: Dialect
    headers: dict[str, str]

    def cancel(self) -> None:
        for ticket in self.tickets:
            ticket.cancel()


async def answer(http: HttpRequest, call: Call) -> Response:
    """The whole reply, once every choice is done."""
    try:
        await while_connected(http, _read_all(call))
        return json_response(call.dialect.whole(call.choices), headers=call.headers)
    except LocalspecError as error:
        return refusal(error)
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    finally:
        call.cancel()


async def stream(http: HttpRequest, call: Call) -> Response:
    """Server-sent events from the first batch on; a failure before that still gets its proper status."""
    parts = _parts(call)
    try:
        first = await while_connected(http, anext(parts))
    except LocalspecError as error:
        call.cancel()
        return refusal(error)
    except ClientDisconnect:
        call.cancel()
        return Response(status_code=CLIENT_GONE)
    return EventStream(call, _after(call, first, parts))


class EventStream(StreamingResponse):
    """A streamed reply whose places are given up whatever ends it: the end, an error, the client leaving."""

    def __init__(self, call: Call, body: AsyncIterator[bytes]) -> None:
        super().__init__(body, media_type=EVENT_STREAM, headers=STREAM_HEADERS | call.headers)
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._call.cancel()


def refusal(error: LocalspecError) -> Response:
    """The reply to a call that failed as a whole."""
    fault = fault_of(error)
    headers: dict[str, str] = {}
    if isinstance(error, TimeLimitError):
        # It would take as long again: OpenAI's clients obey this header.
        fault, headers = Fault(504, fault.kind, fault.message, code="time_limit"), {"X-Should-Retry": "false"}
    elif fault.status == 503:
        code = "queue_full" if isinstance(error, QueueFullError) else "not_ready"
        fault, headers = Fault(503, fault.kind, fault.message, code=code), {"Retry-After": RETRY_AFTER_S}
    return fault_response(fault, headers)


async def while_connected(http: HttpRequest, work: Awaitable[T]) -> T:
    """The result of `work`, which is given up when the client hangs up.

    Raises:
        ClientDisconnect: it did.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(http: HttpRequest) -> None:
    """Return when the client has hung up; its body was read before."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def _read_all(call: Call) -> None:
    for choice, ticket in zip(call.choices, call.tickets, strict=True):
        async for events in ticket.batches():
            choice.absorb(events)


async def _parts(call: Call) -> AsyncIterator[bytes]:
    """The stream piece by piece, choice by choice; the first one decides the status of the whole."""
    for index, (choice, ticket) in enumerate(zip(call.choices, call.tickets, strict=True)):
        opened = False
        async for events in ticket.batches():
            delta = choice.absorb(events)
            part = b"" if opened else call.dialect.opening(index)
            opened = True
            if delta:
                part += call.dialect.delta(index, delta)
            if choice.done:
                part += call.dialect.closing(index, choice)
            yield part
    yield call.dialect.end(call.choices)


async def _after(call: Call, first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for part in rest:
            if part:
                yield part
    except LocalspecError as error:
        yield call.dialect.failed(fault_of(error))
