"""Batches on a foreign server: retries, back-off, bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest

from localspec.batch.endpoint import Endpoint, ask_all
from localspec.batch.lines import Item
from localspec.batch.results import Result
from localspec.batch.run import run_into_file
from localspec.batch.store import Store
from localspec.errors import OutsideError, UsageError
from tests.kit.serving import served
from tests.test_batch import items_of, line, quiet, read

Handler = Callable[[httpx2.Request], httpx2.Response]
ANSWER = {"object": "chat.completion", "choices": []}


class Fake:
    """A server without sockets; `script` maps a prompt to the statuses it gets before the answer."""

    def __init__(self, **script: list[Any]) -> None:
        self.script = script
        self.bodies: list[dict[str, Any]] = []
        self.requests: list[httpx2.Request] = []
        self.pauses: list[float] = []
        self.running = self.most = 0

    async def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json={"data": [{"id": "listed"}]})
        body = json.loads(request.content)
        self.bodies.append(body)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        prompt = body["messages"][-1]["content"]
        planned = self.script.get(prompt, [])
        step = planned.pop(0) if planned else 200
        if isinstance(step, Exception):
            raise step
        status, headers = step if isinstance(step, tuple) else (step, {})
        reply = ANSWER | {"echo": prompt} if status == 200 else {"error": {"message": "no", "code": None}}
        return httpx2.Response(status, json=reply, headers=headers)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def ask(self, items: list[Item], **options: Any) -> list[Result]:
        results: list[Result] = []
        endpoint = Endpoint("http://localhost:1/v1", **options)
        transport = httpx2.MockTransport(self.handle)
        await ask_all(endpoint, items, results.append, sleep=self.sleep, transport=transport)
        return results


def prompts(*names: str) -> list[Item]:
    return items_of(*(line(name, name) for name in names))


async def test_items_are_asked_with_a_model_a_key_and_defaults() -> None:
    fake = Fake()
    items = items_of(line("a", "x", stream=True, temperature=0.5), line("b", "y", model="own"))
    results = await fake.ask(items, api_key="secret", defaults={"temperature": 0.0, "seed": 4})
    assert [r.body["echo"] for r in results] == ["x", "y"]
    assert [b["model"] for b in fake.bodies] == ["listed", "own"]
    assert [b["temperature"] for b in fake.bodies] == [0.5, 0.0]
    assert [b["seed"] for b in fake.bodies] == [4, 4]
    assert not any("stream" in b for b in fake.bodies)
    assert {r.headers["authorization"] for r in fake.requests} == {"Bearer secret"}
    assert {str(r.url) for r in fake.requests[1:]} == {"http://localhost:1/v1/chat/completions"}


async def test_a_system_prompt_goes_where_there_is_none() -> None:
    fake = Fake()
    own = [{"role": "system", "content": "own"}, {"role": "user", "content": "y"}]
    await fake.ask(items_of(line("a", "x"), line("b", "y", messages=own)), system="be brief", concurrency=1)
    assert [[m["content"] for m in b["messages"]] for b in fake.bodies] == [["be brief", "x"], ["own", "y"]]


async def test_what_passes_by_itself_is_tried_again_with_growing_pauses() -> None:
    broken = httpx2.ConnectError("connection refused")
    fake = Fake(a=[503, broken, 429, 502])
    (result,) = await fake.ask(prompts("a"))
    assert result.ok and len(fake.bodies) == 5
    assert len(fake.pauses) == 4
    for n, pause in enumerate(fake.pauses):
        assert 0.25 * 2**n <= pause <= 0.5 * 2**n


async def test_the_server_may_name_the_pause_up_to_a_limit() -> None:
    fake = Fake(
        a=[(429, {"retry-after": "7"}), (503, {"retry-after": "9999"}), (503, {"retry-after": "soon"})]
    )
    await fake.ask(prompts("a"))
    assert fake.pauses[:2] == [7.0, 120.0]
    assert fake.pauses[2] <= 2.0


async def test_a_refusal_is_the_result_of_its_line_and_is_not_repeated() -> None:
    fake = Fake(a=[400], b=[500, 500, 500], c=[500, 200])
    results = {r.item.custom_id: r.status for r in await fake.ask(prompts("a", "b", "c"))}
    assert results == {"a": 400, "b": 500, "c": 200}
    asked = [b["messages"][0]["content"] for b in fake.bodies]
    assert (asked.count("a"), asked.count("b"), asked.count("c")) == (1, 2, 2)


async def test_a_server_that_says_so_is_not_asked_again() -> None:
    fake = Fake(a=[(504, {"x-should-retry": "false"})])
    (result,) = await fake.ask(prompts("a"))
    assert (result.status, len(fake.bodies)) == (504, 1)


async def test_a_server_that_stays_busy_stops_the_run_with_what_is_done_kept() -> None:
    fake = Fake(b=[503] * 50)
    results: list[Result] = []
    with pytest.raises(OutsideError, match="status 503 in 3 attempts") as caught:
        await ask_all(
            Endpoint("http://localhost:1", concurrency=1, attempts=3),
            prompts("a", "b", "c"),
            results.append,
            sleep=fake.sleep,
            transport=httpx2.MockTransport(fake.handle),
        )
    assert caught.value.exit_code == 3
    assert [r.item.custom_id for r in results] == ["a"]


async def test_never_more_at_once_than_asked_for() -> None:
    fake = Fake()
    results = await fake.ask(prompts(*(f"p{i}" for i in range(40))), concurrency=5)
    assert len(results) == 40
    assert fake.most == 5


async def test_an_answer_that_is_no_json_is_a_failed_line() -> None:
    async def html(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, text="<html>login</html>")

    results: list[Result] = []
    endpoint = Endpoint("http://localhost:1", model="m")
    await ask_all(endpoint, prompts("a"), results.append, transport=httpx2.MockTransport(html))
    assert results[0].status == 502
    assert "login" in results[0].body["error"]["message"]


async def test_a_url_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="`nowhere` is no URL"):
        await ask_all(Endpoint("nowhere"), prompts("a"), lambda _: None)


def test_a_real_server_answers_a_batch(tmp_path: Path) -> None:
    items = items_of(
        *(line(f"id-{i}", f"prompt {i}", max_tokens=3) for i in range(20)), line("bad", "!refuse")
    )
    with served() as server:

        def answer(items: list[Item], take: Callable[[Result], None]) -> None:
            asyncio.run(ask_all(Endpoint(server.url, concurrency=4), items, take))

        store = Store(tmp_path / "out", items, {"endpoint": server.url}, ordered=True)
        tally = run_into_file(items, store, lambda: nullcontext(answer), quiet, resume=True)
    results = read(tmp_path / "out")
    assert [r["custom_id"] for r in results] == [i.custom_id for i in items]
    assert (tally.answered, tally.failed, tally.completion_tokens) == (20, 1, 60)
    assert results[-1]["response"]["body"]["error"]["message"].startswith("the grammar does not parse")


def test_a_server_that_is_not_there_is_an_outside_cause() -> None:
    async def no_wait(_: float) -> None:
        pass

    with pytest.raises(OutsideError, match=r"http://127\.0\.0\.1:9/v1/chat/completions"):
        asyncio.run(
            ask_all(
                Endpoint("http://127.0.0.1:9/v1", model="m", attempts=2),
                prompts("a"),
                lambda _: None,
                sleep=no_wait,
            )
        )
