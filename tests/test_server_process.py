"""The server as a real process: OpenAI's client, load, deaths, rude clients. The engine is a toy."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import openai
import pytest

from localspec.engine.settings import LoadSettings
from localspec.interfaces import PairFiles
from localspec.worker import WorkerSession
from tests.kit import latency
from tests.kit.serving import CHAT, Served, metric, served, settles, solo, user

resource = pytest.importorskip("resource", reason="POSIX only")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with server.openai() as made:
        yield made


class TestOpenAI:
    def test_whole_and_streamed_replies(self, client: openai.OpenAI) -> None:
        whole = client.chat.completions.create(model="toy", messages=user("hi"))
        assert whole.choices[0].message.content == solo("hi")
        assert whole.usage is not None and whole.usage.completion_tokens == 24
        stream = client.chat.completions.create(
            model="toy", messages=user("hi"), stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == solo("hi")
        assert chunks[-1].usage == whole.usage

    def test_seed_stop_limit_and_choices(self, client: openai.OpenAI) -> None:
        create = client.chat.completions.create
        texts = {create(model="toy", messages=user("x"), seed=3).choices[0].message.content for _ in range(3)}
        assert texts == {solo("x", 3)}
        stopped = create(model="toy", messages=user("!say a b c d"), stop=["c"]).choices[0]
        assert (stopped.message.content, stopped.finish_reason) == ("a b", "stop")
        assert (
            create(model="toy", messages=user("x"), max_completion_tokens=1).choices[0].finish_reason
            == "length"
        )
        assert len(create(model="toy", messages=user("x"), n=3).choices) == 3

    def test_logprobs(self, client: openai.OpenAI) -> None:
        choice = client.chat.completions.create(
            model="toy", messages=user("x"), logprobs=True, top_logprobs=2, max_tokens=3
        ).choices[0]
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
        assert [len(entry.top_logprobs) for entry in choice.logprobs.content] == [2, 2, 2]

    def test_prediction(self, client: openai.OpenAI) -> None:
        reply = client.chat.completions.create(
            model="toy", messages=user("x"), prediction={"type": "content", "content": "one two three"}
        )
        assert reply.usage is not None and reply.usage.completion_tokens_details is not None
        assert reply.usage.completion_tokens_details.accepted_prediction_tokens == 2

    def test_raw_completions_and_models(self, client: openai.OpenAI) -> None:
        reply = client.completions.create(model="toy", prompt="hi", max_tokens=2, logprobs=1)
        assert reply.choices[0].logprobs is not None and reply.choices[0].finish_reason == "length"
        streamed = client.completions.create(model="toy", prompt="hi", max_tokens=2, stream=True)
        assert "".join(chunk.choices[0].text for chunk in streamed) == reply.choices[0].text
        assert [model.id for model in client.models.list()] == ["scripted"]
        assert client.models.retrieve("scripted").owned_by == "localspec"

    def test_errors_are_typed(self, client: openai.OpenAI) -> None:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as long:
            create(model="toy", messages=user("!long"))
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as wrong:
            create(model="toy", messages=user("x"), temperature=-1)
        assert wrong.value.param == "temperature"
        with pytest.raises(openai.InternalServerError):
            create(model="toy", messages=user("!error"))
        with pytest.raises(openai.APIError, match="a row was not finite"):
            list(create(model="toy", messages=user("!error"), stream=True))
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("none")


class TestLoad:
    async def test_every_reply_of_many_clients_equals_its_solo_run(
        self, server: Served, soak: Callable[[int, int], int]
    ) -> None:
        """Known fault 107: parallel requests are never mixed up."""
        rounds = soak(4, 20)

        async def one(number: int) -> list[float]:
            waits: list[float] = []
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", timeout=60) as client:
                for turn in range(rounds):
                    text, seed = f"client {number} turn {turn}", number * 100 + turn
                    began = time.monotonic()
                    if turn % 2:
                        stream = await client.chat.completions.create(
                            model="toy", messages=user(text), seed=seed, stream=True
                        )
                        got = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
                    else:
                        reply = await client.chat.completions.create(
                            model="toy", messages=user(text), seed=seed
                        )
                        got = reply.choices[0].message.content or ""
                    waits.append(time.monotonic() - began)
                    assert got == solo(text, seed)
            return waits

        began = time.monotonic()
        waits = await asyncio.gather(*(one(n) for n in range(16)))
        fair_share = 16 * (time.monotonic() - began) / (16 * rounds)
        assert max(max(w) for w in waits) <= 4 * fair_share, "somebody was starved"
        assert metric(server, "localspec_queue_length") == 0

    async def test_a_flood_does_not_hold_up_another_client(self, server: Served) -> None:
        finished: list[str] = []

        async def ask(client: httpx2.AsyncClient, name: str) -> None:
            body = {
                "messages": user(f"!slow {len(finished)} {name} {random.random()}"),
                "user": name,
                "max_tokens": 6,
            }
            reply = await client.post(CHAT, json=body)
            assert reply.status_code == 200
            finished.append(name)

        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
            flood = [asyncio.create_task(ask(client, "flood")) for _ in range(20)]
            await asyncio.sleep(0.05)
            await ask(client, "other")
            assert finished.count("flood") <= 4
            for task in flood:
                task.cancel()
        assert settles(lambda: metric(server, "localspec_replies_running") == 0)

    def test_memory_stays_flat(self, server: Served, soak: Callable[[int, int], int]) -> None:
        def ask(count: int) -> float:
            with httpx2.Client(base_url=server.url) as client:
                for n in range(count):
                    client.post(CHAT, json={"messages": user(f"m {n}"), "logprobs": True, "max_tokens": 8})
            return metric(server, "process_resident_memory_bytes")

        warm = ask(100)
        assert ask(soak(200, 2000)) - warm < 8e6

    def test_abrupt_disconnects_leave_nothing_busy(
        self, server: Served, soak: Callable[[int, int], int]
    ) -> None:
        rng = random.Random(5)
        for n in range(soak(60, 500)):
            body = json.dumps({"messages": user(f"!slow {n}"), "stream": n % 3 > 0}).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            request = head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                sent = request[: rng.choice([7, len(request) - 5, len(request)])]
                connection.sendall(sent)
                if sent == request and n % 4:
                    connection.recv(64)  # the status line of a stream, or of a whole reply
                if n % 2:  # a reset instead of an orderly end
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        assert settles(lambda: metric(server, "localspec_replies_running") == 0)
        assert metric(server, "localspec_queue_length") == 0
        assert httpx2.post(server.url + CHAT, json={"messages": user("hi")}).status_code == 200


def test_a_token_reaches_the_client_when_its_round_is_over() -> None:
    """Paced as a model does it: what the server adds is below 1 ms, for the first token as for every other.

    Other programs on this machine can only add, so the best of a few interleaved pairs counts.
    """
    files = PairFiles("stamped", Path(os.devnull))
    with (
        served(latency.STAMPED) as server,
        WorkerSession(files, LoadSettings(), factory=latency.STAMPED) as session,
    ):
        latency.streamed(server)  # the first request of a process imports
        pairs = [(latency.direct(session), latency.streamed(server)) for _ in range(8)]
    assert all(len(far) == len(near) == 30 for near, far in pairs)
    later = min(statistics.median(far) - statistics.median(near) for near, far in pairs)
    first = min(far[0] - near[0] for near, far in pairs)
    assert later < 1e-3 and first < 1e-3
    assert min(max(far) for _, far in pairs) < 2 * 0.02, "no token waits for another round's"


class TestDeath:
    def test_kill_9_of_the_worker_fails_only_the_running_request(self) -> None:
        with served() as server:
            statuses: list[int] = []
            lock = threading.Lock()

            def ask(n: int) -> None:
                reply = httpx2.post(server.url + CHAT, json={"messages": user(f"!slow {n}")}, timeout=60)
                with lock:
                    statuses.append(reply.status_code)
                    if reply.status_code != 200:
                        assert "SIGKILL" in reply.json()["error"]["message"]

            threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
            for thread in threads:
                thread.start()
            assert settles(lambda: metric(server, "localspec_replies_running") == 1)
            (worker,) = server.children()
            os.kill(worker, signal.SIGKILL)
            for thread in threads:
                thread.join()
            assert sorted(statuses) == [200] * 5 + [500]
            assert metric(server, "localspec_worker_restarts_total") == 1
            assert httpx2.get(f"{server.url}/health").status_code == 200

    def test_an_abort_in_the_engine_is_a_500_with_its_reason(self) -> None:
        with served() as server:
            reply = httpx2.post(server.url + CHAT, json={"messages": user("!abort")}, timeout=60)
            assert reply.status_code == 500 and "SIGABRT" in reply.json()["error"]["message"]
            assert (
                httpx2.post(server.url + CHAT, json={"messages": user("hi")}, timeout=60).status_code == 200
            )

    def test_kill_9_of_the_server_leaves_no_worker(self) -> None:
        with served() as server:
            (worker,) = server.children()

            def ask() -> None:
                with pytest.raises(httpx2.TransportError):
                    httpx2.post(server.url + CHAT, json={"messages": user("!slow")})

            asking = threading.Thread(target=ask)
            asking.start()
            time.sleep(0.1)
            server.process.kill()
            server.process.wait()
            assert settles(lambda: not _lives(worker), within_s=2.0)
            asking.join()

    def test_a_failed_load_ends_the_server_with_the_error_of_the_load(self) -> None:
        with (
            pytest.raises(AssertionError, match="the pair needs 30"),
            served("tests.kit.worker_factories:does_not_fit"),
        ):
            pass

    def test_sigterm_ends_a_busy_server_in_time(self) -> None:
        with served() as server:
            body = {"messages": user("!slow"), "stream": True}
            with httpx2.stream("POST", server.url + CHAT, json=body) as reply:
                lines = reply.iter_lines()
                next(lines)
                began = time.monotonic()
                server.process.send_signal(signal.SIGTERM)
                assert "data: [DONE]" in list(lines), "a running reply may finish"
            server.process.wait(10)
            assert time.monotonic() - began < 6

    @pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
    def test_replies_that_are_too_long_for_the_end_are_told_of_it(
        self, signals: list[signal.Signals]
    ) -> None:
        """After the time that running replies have, or at once when Ctrl+C is pressed again."""
        long = {"messages": user("!slow !say" + 6000 * " word")}
        with served() as server:
            url, timeout = server.url + CHAT, httpx2.Timeout(30)
            with ThreadPoolExecutor() as pool:
                whole = [pool.submit(httpx2.post, url, json=long, timeout=timeout) for _ in range(2)]
                assert settles(lambda: metric(server, "localspec_queue_length") == 1)
                began = time.monotonic()
                for each in signals:
                    server.process.send_signal(each)
                    time.sleep(0.3)
                for reply in whole:
                    assert reply.result().status_code == 503
                    assert reply.result().json()["error"]["message"] == "the server is stopping"
            server.process.wait(10)
            assert time.monotonic() - began < (9 if signals == [signal.SIGTERM] else 5)
            assert server.process.stdout is not None
            assert "ASGI" not in server.process.stdout.read()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
