"""ASGI layers in front of the routes: who may ask, from where, and how much.

Pure ASGI, because they also see requests that no route matches and must not touch streamed replies.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Iterable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.api.faults import Fault
from localspec.server.wire import fault_response

DRAINED_BYTES = 64 << 20
"""How much of a body above the limit is read before the refusal is sent."""
OPERATIONS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/health", "/metrics"}
)
"""Paths counted by name; clients choose the rest."""
OPEN_PATHS = frozenset({"/health"})
"""Answered without a key: liveness probes carry none."""


class HostGuard:
    """Refuses `Host` headers that are neither loopback, nor the address the client connected to, nor allowed.

    A web page can point its own domain name at 127.0.0.1 (DNS rebinding) and would then be on the same
    origin as this server; its requests are told apart by the name they carry.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        self._app = app
        self._allowed = {name.lower() for name in allowed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = host_name(_header(scope, b"host"))
            reached = scope["server"][0] if scope.get("server") else ""
            if not (is_loopback(host) or host == reached or host in self._allowed):
                message = f"the host name `{host[:100]}` is not served here; allow it with --allow-host"
                await fault_response(Fault(403, "invalid_request_error", message, code="host_refused"))(
                    scope, receive, send
                )
                return
        await self._app(scope, receive, send)


class KeyGuard:
    """Asks for `Authorization: Bearer KEY` on every path but `/health`."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            scheme, _, given = _header(scope, b"authorization").partition(" ")
            right = hmac.compare_digest(given.strip().encode("latin-1"), self._key)
            if scheme.lower() != "bearer" or not right:
                fault = Fault(
                    401, "invalid_request_error", "missing or wrong API key", code="invalid_api_key"
                )
                await fault_response(fault, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyGuard:
    """Reads the whole body before the application sees the request, up to a limit of bytes."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(_header(scope, b"content-length"), receive)
        except _TooLarge:
            message = f"the body is larger than {self._limit} bytes"
            fault = Fault(413, "invalid_request_error", message, code="body_too_large")
            # What was not read is still under way, so the connection cannot carry another request.
            await fault_response(fault, {"Connection": "close"})(scope, receive, send)
            return
        except ClientDisconnect:
            return
        replayed = False

        async def replay() -> Message:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    async def _read(self, announced: str, receive: Receive) -> bytes:
        """The body; a moderate excess is read and dropped, or the client would never see the answer."""
        if announced.isdigit() and int(announced) > self._limit + DRAINED_BYTES:
            raise _TooLarge
        body = bytearray()
        size = 0
        more = True
        while more and size <= self._limit + DRAINED_BYTES:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part = message.get("body", b"")
            size += len(part)
            if size <= self._limit:
                body += part
            more = message.get("more_body", False)
        if size > self._limit:
            raise _TooLarge
        return bytes(body)


class _TooLarge(Exception):
    """The body is over the limit."""


class StatusCounter:
    """Counts replies by operation and status."""

    def __init__(self, app: ASGIApp, count: Callable[[str, int], None]) -> None:
        self._app = app
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        operation = scope["path"] if scope["path"] in OPERATIONS else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(operation, message["status"])
            await send(message)

        await self._app(scope, receive, counted)


def host_name(header: str) -> str:
    """The name in a `Host` header: without port and brackets, lower case, without a final dot."""
    name = header.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _header(scope: Scope, name: bytes) -> str:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return ""
