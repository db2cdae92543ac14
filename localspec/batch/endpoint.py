"""Answers items with any OpenAI-compatible server: bounded concurrency, retries, back-off.

A server that cannot be reached stops the batch (the finished part is kept, another run goes on); an answer
that refuses one request is that request's result.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2

from localspec.api.faults import Fault
from localspec.batch.lines import CHAT_URL, Item
from localspec.batch.results import Result, failed
from localspec.errors import OutsideError, UsageError

BUSY = frozenset({408, 409, 425, 429, 502, 503, 504})
"""The server says "not now": worth several attempts, and a reason to stop when they are used up."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LONGEST_WISH_S = 120.0
"""Cap on what a server may ask for in `Retry-After`."""
CONNECT_S = 10.0
SERVER_ERRORS = 2
"""Attempts at a request that the server answers with 500; it mostly fails for a reason that stays."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask, and how hard to try."""

    url: str
    """With or without the final `/v1`."""
    api_key: str | None = None
    model: str | None = None
    """For requests that name none; None = the first the server lists."""
    concurrency: int = 8
    attempts: int = 6
    read_s: float = 600.0
    """Longest silence of the server within one answer."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """Body fields for requests that do not set them."""
    system: str | None = None
    """System prompt for conversations that have none."""

    @property
    def base(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")


class _Busy(Exception):
    """Worth another attempt; carries the pause that the server wished for."""

    def __init__(self, reason: str, wish_s: float | None = None) -> None:
        super().__init__(reason)
        self.wish_s = wish_s


async def ask_all(
    endpoint: Endpoint,
    items: Iterable[Item],
    on_result: Callable[[Result], None],
    *,
    sleep: Callable[[float], Any] = asyncio.sleep,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> None:
    """Ask every item, `concurrency` at a time; `on_result` is called in the order in which they finish.

    Args:
        sleep: Waits between attempts.
        transport: Replaces the network.

    Raises:
        UsageError: the URL is none.
        OutsideError: the server cannot be reached or stays busy.
    """
    parts = urlsplit(endpoint.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"`{endpoint.url}` is no URL", hint="give the base, like http://127.0.0.1:8000/v1")
    client = httpx2.AsyncClient(
        base_url=endpoint.base,
        headers={"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {},
        timeout=httpx2.Timeout(endpoint.read_s, connect=CONNECT_S),
        limits=httpx2.Limits(max_connections=endpoint.concurrency),
        transport=transport,
    )
    async with client:
        asker = _Asker(client, endpoint, sleep)
        await asker.find_model()
        queue = iter(items)

        async def worker() -> None:
            for item in queue:  # shared: each worker takes the next one
                on_result(await asker.ask(item))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(endpoint.concurrency):
                    group.create_task(worker())
        except* OutsideError as errors:
            raise errors.exceptions[0] from None


class _Asker:
    def __init__(self, client: httpx2.AsyncClient, endpoint: Endpoint, sleep: Callable[[float], Any]) -> None:
        self._client = client
        self._endpoint = endpoint
        self._sleep = sleep
        self._model = endpoint.model

    async def find_model(self) -> None:
        """Ask the server for a model name, when none was given; a server without a list gets no name."""
        if self._model is not None:
            return
        response = await self._patiently("GET", "/v1/models", None)
        try:
            self._model = str(response.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            self._model = None

    async def ask(self, item: Item) -> Result:
        """The result of one item.

        Raises:
            OutsideError: the server cannot be reached or stays busy.
        """
        if item.fault is not None:
            return failed(item, item.fault)
        body = self._endpoint.defaults | {"model": self._model} | item.body
        # A batch reads whole answers.
        body = {k: v for k, v in body.items() if v is not None and k not in ("stream", "stream_options")}
        if self._endpoint.system is not None and item.url == CHAT_URL:
            body["messages"] = _with_system(body.get("messages"), self._endpoint.system)
        response = await self._patiently("POST", item.url, body)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            excerpt = response.text[:200]
            message = f"the server answered {response.status_code} without a JSON object: {excerpt!r}"
            return failed(
                item, Fault(502 if response.is_success else response.status_code, "server_error", message)
            )
        return Result(item, response.status_code, answer)

    async def _patiently(self, method: str, url: str, body: dict[str, Any] | None) -> httpx2.Response:
        """Send until there is an answer that counts; pauses double unless the server names one."""
        pause = FIRST_PAUSE_S
        attempt = 1
        while True:
            last = attempt >= self._endpoint.attempts
            try:
                return await self._once(method, url, body, attempt)
            except _Busy as busy:
                if last:
                    raise OutsideError(
                        f"{self._endpoint.base}{url}: {busy} in {attempt} attempts",
                        hint="run the same command again; finished results are kept",
                    ) from busy
                wish = busy.wish_s
            await self._sleep(
                min(wish, LONGEST_WISH_S) if wish is not None else pause * random.uniform(0.5, 1.0)
            )
            pause = min(2 * pause, LONGEST_PAUSE_S)
            attempt += 1

    async def _once(
        self, method: str, url: str, body: dict[str, Any] | None, attempt: int
    ) -> httpx2.Response:
        try:
            response = await self._client.request(method, url, json=body)
        except httpx2.TransportError as error:
            raise _Busy(str(error) or type(error).__name__) from error
        if response.headers.get("x-should-retry") == "false":
            return response
        again = response.status_code in BUSY or (response.status_code == 500 and attempt < SERVER_ERRORS)
        if again:
            raise _Busy(f"status {response.status_code}", _wish(response.headers.get("retry-after")))
        return response


def _with_system(messages: Any, system: str) -> Any:
    if not isinstance(messages, list):
        return messages
    if any(isinstance(m, dict) and m.get("role") in ("system", "developer") for m in messages):
        return messages
    return [{"role": "system", "content": system}, *messages]


def _wish(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header is not None else None
    except ValueError:  # a date: our own back-off does as well
        return None
