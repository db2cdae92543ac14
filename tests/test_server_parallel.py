"""A server with several slots as a real process: replies share passes, and are those of a server with one."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from localspec.interfaces import Companion
from tests.kit.ggufs import syn
from tests.kit.serving import CHAT, Served, metric, served, served_model, settles, user

pytest.importorskip("resource", reason="POSIX only")

SLOTS = 4
CLIENTS = 16
PAIR = (syn("syn"), Companion("draft", syn("syn-near")))
METHODS: tuple[dict[str, Any], ...] = (
    {},
    {"method": "off"},
    {"method": "ngram", "k": 4},
    {"method": "draft", "k": 3},
    {"method": "draft"},
)


@pytest.fixture(scope="module")
def wide() -> Iterator[Served]:
    with served_model(*PAIR, n_ctx=512, slots=SLOTS) as running:
        yield running


@pytest.fixture(scope="module")
def narrow() -> Iterator[Served]:
    with served_model(*PAIR, n_ctx=512) as running:
        yield running


def body_of(number: int, *, tokens: int = 24) -> dict[str, Any]:
    """One of the requests: methods, greedy and seeded ones, long and short prompts take turns."""
    body: dict[str, Any] = {
        "messages": user(f"Say something of {number}. " * (1 + number % 5)),
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0 if number % 3 else 1.0,
        "seed": number,
        "speculation": METHODS[number % len(METHODS)],
    }
    return body


def said(reply: dict[str, Any]) -> tuple[str, str, int]:
    (choice,) = reply["choices"]
    return choice["message"]["content"], choice["finish_reason"], reply["usage"]["completion_tokens"]


def ask(server: Served, body: dict[str, Any]) -> tuple[str, str, int]:
    reply = httpx2.post(server.url + CHAT, json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return said(reply.json())


async def streamed(client: httpx2.AsyncClient, body: dict[str, Any]) -> tuple[str, str, int]:
    text, reason, tokens = "", "", 0
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", CHAT, json=body | options) as reply:
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    return text, reason, tokens


def company(server: Served) -> tuple[float, float]:
    """(rounds, mean requests that shared the pass of one)."""
    count = metric(server, "localspec_round_sequences_count")
    return count, metric(server, "localspec_round_sequences_sum") / max(count, 1)


async def test_every_reply_of_many_clients_equals_that_of_a_server_with_one_slot(
    wide: Served, narrow: Served, soak: Callable[[int, int], int]
) -> None:
    """Known fault 107, with passes that are really shared."""
    turns = soak(3, 20)
    bodies = [body_of(number) for number in range(CLIENTS * turns)]
    expected = [ask(narrow, body) for body in bodies]
    assert company(narrow)[1] == 1.0
    waits: list[float] = []

    async def one(number: int) -> None:
        async with httpx2.AsyncClient(base_url=wide.url, timeout=120) as client:
            for turn in range(turns):
                index = number * turns + turn
                began = time.monotonic()
                if turn % 2:
                    got = await streamed(client, bodies[index])
                else:
                    got = said((await client.post(CHAT, json=bodies[index])).json())
                waits.append(time.monotonic() - began)
                assert got == expected[index], bodies[index]

    began = time.monotonic()
    await asyncio.gather(*(one(n) for n in range(CLIENTS)))
    fair_share = (time.monotonic() - began) / turns
    assert max(waits) <= 4 * fair_share, "somebody was starved"
    rounds, mean = company(wide)
    assert rounds > 0 and mean > 0.7 * SLOTS, "passes were hardly shared"
    assert metric(wide, "localspec_replies_running") == metric(wide, "localspec_queue_length") == 0


def test_a_request_begins_at_once_beside_a_long_one(wide: Served) -> None:
    with ThreadPoolExecutor() as pool:
        long = pool.submit(ask, wide, body_of(1, tokens=400))
        assert settles(lambda: metric(wide, "localspec_replies_running") == 1)
        ask(wide, body_of(2, tokens=4))
        assert not long.done(), "the short one waited for the long one"
        long.result()


def test_abrupt_disconnects_leave_no_slot_busy(wide: Served, soak: Callable[[int, int], int]) -> None:
    rng = random.Random(7)
    for n in range(soak(40, 300)):
        body = json.dumps(body_of(n, tokens=300) | {"stream": n % 3 > 0}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", wide.port)) as connection:
            connection.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            if n % 3:
                connection.recv(64)
            time.sleep(rng.random() * 0.02)
            if n % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert settles(lambda: metric(wide, "localspec_replies_running") == 0, within_s=10)
    bodies = [body_of(n) for n in range(SLOTS)]
    with ThreadPoolExecutor() as pool:
        together = list(pool.map(ask, itertools.repeat(wide), bodies))
    assert together == [ask(wide, body) for body in bodies]


def test_memory_of_server_and_worker_stays_flat(wide: Served, soak: Callable[[int, int], int]) -> None:
    def resident() -> int:
        (worker,) = wide.children()
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in (worker, wide.process.pid)]
        return sum(pages) * os.sysconf("SC_PAGE_SIZE")

    def ask_many(count: int) -> int:
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda n: ask(wide, body_of(n % 97, tokens=8)), range(count)))
        return resident()

    warm = ask_many(100)
    assert ask_many(soak(100, 2000)) - warm < 16e6


class TestDeath:
    @pytest.mark.parametrize("how", ["kill", "abort"])
    def test_all_running_requests_fail_with_the_reason_and_the_others_are_served(self, how: str) -> None:
        with served(load={"slots": 3}) as server:
            answers: list[tuple[int, str]] = []
            lock = threading.Lock()

            def post(text: str) -> None:
                reply = httpx2.post(server.url + CHAT, json={"messages": user(text)}, timeout=60)
                with lock:
                    answers.append((reply.status_code, reply.text))

            threads = [threading.Thread(target=post, args=(f"!slow {n}",)) for n in range(9)]
            for thread in threads[:6]:
                thread.start()
            assert settles(lambda: metric(server, "localspec_replies_running") == 3)
            if how == "kill":
                (worker,) = server.children()
                os.kill(worker, signal.SIGKILL)
            else:
                threads[6] = threading.Thread(target=post, args=("!abort",))
            for thread in threads[6:]:
                thread.start()
            for thread in threads:
                thread.join()
            failed = [text for status, text in answers if status == 500]
            # An abort takes who happens to run beside it.
            assert len(failed) == 3 if how == "kill" else 1 <= len(failed) <= 3
            assert all(("SIGKILL" if how == "kill" else "SIGABRT") in text for text in failed)
            assert [status for status, _ in answers].count(200) == len(threads) - len(failed)
            assert settles(lambda: httpx2.get(f"{server.url}/health").status_code == 200)
            assert metric(server, "localspec_worker_restarts_total") == 1
