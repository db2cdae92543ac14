"""The application in this process, and what its tests ask it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from localspec.engine.events import Prefill, Token
from localspec.engine.settings import Request
from localspec.server.app import create_app
from localspec.server.dispatch import Dispatcher
from localspec.server.metrics import Metrics
from localspec.server.settings import READY_TOKENS, ServerSettings
from tests.kit.scripted import ScriptedReply
from tests.kit.toy import ToySession

CHAT, RAW = "/v1/chat/completions", "/v1/completions"


@contextlib.asynccontextmanager
async def api(session: Any = None, **options: Any) -> AsyncIterator[tuple[httpx2.AsyncClient, ToySession]]:
    session = session or ToySession()
    settings = ServerSettings(**options)
    metrics = Metrics()
    dispatcher = Dispatcher(session, settings.limits, metrics)
    dispatcher.start()
    try:
        await asyncio.to_thread(dispatcher.wait_settled)
        transport = httpx2.ASGITransport(create_app(dispatcher, settings, metrics))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client, session
    finally:
        await asyncio.to_thread(dispatcher.close)


def says(text: str, **body: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]} | body


def asked(session: ToySession) -> list[Request]:
    """The requests that reached the engine, without its own trial."""
    return [r for r in session.requests if r.max_tokens != READY_TOKENS]


def events_of(response: httpx2.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


class Scripted(ToySession):
    """Answers every request with the same events."""

    def __init__(self, *events: Any) -> None:
        super().__init__()
        self.events = events

    def reply(self, request: Request) -> Any:
        self.requests.append(request)
        return ScriptedReply([Prefill(3, 5, 2), *self.events])


def token(n: int, text: str, channel: Any = "content", **rest: Any) -> Token:
    return Token(n, text, channel, False, "draft", 0, **rest)
