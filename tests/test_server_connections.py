"""Connections of the real process: slow, silent, deaf and many clients, ports and addresses."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from localspec.errors import OutsideError, UsageError
from localspec.server.connections import connection_cap
from localspec.server.run import bind
from tests.kit.serving import CHAT, Served, served, settles, solo, user

resource = pytest.importorskip("resource", reason="POSIX only")


def closed_after(connection: socket.socket, limit_s: float) -> float:
    """Seconds until the server closes the connection."""
    began = time.monotonic()
    connection.settimeout(limit_s)
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - began


@pytest.fixture(scope="module")
def strict() -> Iterator[Served]:
    """A server with short limits."""
    with served(limits={"head_s": 0.6, "request_s": 0.9, "stall_s": 0.7, "body_bytes": 1 << 20}) as running:
        yield running


class TestRudeClients:
    def test_a_head_that_does_not_come(self, strict: Served) -> None:
        with socket.create_connection(("127.0.0.1", strict.port)) as silent:
            assert 0.4 < closed_after(silent, 5) < 2

    @pytest.mark.parametrize("start", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
    def test_a_head_that_trickles(self, strict: Served, start: bytes) -> None:
        """Every byte counts as life for a keep-alive timer; the deadline is for the whole head."""
        with socket.create_connection(("127.0.0.1", strict.port)) as slow:
            slow.sendall(start)
            if start:
                slow.recv(4096)
            began = time.monotonic()
            try:
                while time.monotonic() - began < 5:
                    slow.sendall(b"G")
                    time.sleep(0.1)
            except OSError:
                pass
            assert time.monotonic() - began < 2.5

    def test_a_body_that_trickles(self, strict: Served) -> None:
        with socket.create_connection(("127.0.0.1", strict.port)) as slow:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            slow.sendall(head.encode() + b"Content-Length: 1000\r\n\r\n{")
            began = time.monotonic()
            try:
                while time.monotonic() - began < 5:
                    slow.sendall(b" ")
                    time.sleep(0.1)
            except OSError:
                pass
            assert 0.7 < time.monotonic() - began < 2.5
        assert httpx2.get(f"{strict.url}/health").status_code == 200

    def test_a_client_that_does_not_read(self, strict: Served) -> None:
        text = "!say " + "x" * 700_000
        body = json.dumps({"messages": user(text), "n": 16}).encode()
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", strict.port))
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            deaf.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            sockets = _open_sockets(strict)
            assert settles(lambda: _open_sockets(strict) < sockets, within_s=20)

    def test_a_body_over_the_limit_gets_its_answer(self, strict: Served) -> None:
        for size in (2 << 20, 8 << 20):
            reply = httpx2.post(strict.url + CHAT, json={"messages": user("x" * size)}, timeout=20)
            assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")

    @pytest.mark.parametrize(
        "junk",
        [
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"GET\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 9000,
        ],
    )
    def test_what_is_no_http(self, strict: Served, junk: bytes) -> None:
        with socket.create_connection(("127.0.0.1", strict.port)) as connection:
            with suppress(OSError):
                connection.sendall(junk + b"\r\n\r\n")
            assert closed_after(connection, 5) < 2
        assert httpx2.get(f"{strict.url}/health").status_code == 200

    def test_pipelined_requests_are_answered_in_order(self, strict: Served) -> None:
        one = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        two = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", strict.port)) as connection:
            connection.sendall(one + two)
            connection.settimeout(5)
            got = b""
            while data := connection.recv(65536):
                got += data
        assert got.count(b"HTTP/1.1 200") == 2
        assert got.index(b'"object":"list"') < got.index(b'"status":"ready"')


def _open_sockets(server: Served) -> int:
    found = 0
    for entry in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += str(entry.readlink()).startswith("socket:")
    return found


class TestManyConnections:
    @pytest.mark.parametrize("hard", [256, 4096])
    def test_idle_connections_do_not_keep_others_out(self, hard: int) -> None:
        """1 000 silent connections under `ulimit -n 256`: `/health` answers within a second."""
        mine, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        count = min(1000, most - 200) if most != resource.RLIM_INFINITY else 1000
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(mine, count + 200), most))
        try:
            with (
                served(preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))) as server,
                ExitStack() as stack,
            ):
                for _ in range(count):
                    stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
                began = time.monotonic()
                assert httpx2.get(f"{server.url}/health", timeout=5).status_code == 200
                assert time.monotonic() - began < 1
                reply = httpx2.post(server.url + CHAT, json={"messages": user("hi")}, timeout=10)
                assert reply.json()["choices"][0]["message"]["content"] == solo("hi")
                limits = (server.process.pid, resource.RLIMIT_NOFILE)
                assert resource.prlimit(*limits)[0] == hard, "the soft limit is raised to the hard one"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (mine, most))

    def test_the_cap_leaves_room_for_the_rest(self) -> None:
        assert connection_cap(256) <= 256 - 64
        assert connection_cap(100) >= 16


class TestListening:
    def test_a_port_that_is_taken(self) -> None:
        with bind("127.0.0.1", 0) as first:
            first.listen()
            port = first.getsockname()[1]
            with pytest.raises(OutsideError, match=f"port {port} on `127.0.0.1` is taken"):
                bind("127.0.0.1", port)

    def test_an_address_that_is_not_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_such_name(*_: Any, **__: Any) -> Any:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", no_such_name)
        with pytest.raises(UsageError, match="cannot listen on `nowhere`: Name or service not known"):
            bind("nowhere", 0)
