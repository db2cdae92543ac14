"""Bytes by range: where headers go over redirects, and what each answer means."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from localspec.errors import OutsideError
from localspec.transport import Link, LinkExpired, RangeRefused, Unavailable, open_bytes, origin

Answer = tuple[int, dict[str, str], bytes]


class Site:
    """A server whose answers are set per path."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                site.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
                status, headers, body = site.answers[self.path]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def site() -> Iterator[Callable[[], Site]]:
    sites: list[Site] = []

    def make() -> Site:
        sites.append(Site())
        return sites[-1]

    yield make
    for made in sites:
        made.server.shutdown()
        made.server.server_close()


def test_a_redirect_to_another_origin_drops_the_token(site: Callable[[], Site]) -> None:
    home, other = site(), site()
    home.answers = {"/a": (302, {"Location": "/b"}, b""), "/b": (307, {"Location": f"{other.url}/c"}, b"")}
    other.answers = {"/c": (302, {"Location": f"{home.url}/d"}, b"")}
    home.answers["/d"] = (200, {"Content-Length": "2", "ETag": '"x"'}, b"ok")
    with open_bytes(Link(f"{home.url}/a", {"authorization": "Bearer t"})) as body:
        assert b"".join(body.chunks) == b"ok"
        assert (body.start, body.total, body.etag, body.site) == (0, 2, '"x"', f"{home.url}/d")
    carried = {path: headers.get("authorization") for path, headers in home.seen + other.seen}
    assert carried == {"/a": "Bearer t", "/b": "Bearer t", "/c": None, "/d": None}


def test_redirects_in_circles_end(site: Callable[[], Site]) -> None:
    home = site()
    home.answers = {"/a": (302, {"Location": "/a"}, b"")}
    with pytest.raises(OutsideError, match="in circles"), open_bytes(Link(f"{home.url}/a", {})):
        pass


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, LinkExpired), (403, LinkExpired), (404, LinkExpired), (410, LinkExpired), (416, RangeRefused),
     (408, Unavailable), (429, Unavailable), (500, Unavailable), (504, Unavailable), (418, OutsideError)],
)  # fmt: skip
def test_statuses(site: Callable[[], Site], status: int, kind: type[OutsideError]) -> None:
    home = site()
    home.answers = {"/a?Signature=s": (status, {"Retry-After": "3"}, b"")}
    with (
        pytest.raises(OutsideError, match=str(status)) as caught,
        open_bytes(Link(f"{home.url}/a?Signature=s", {})),
    ):
        pass
    assert type(caught.value) is kind and "Signature" not in caught.value.message
    if isinstance(caught.value, Unavailable):
        assert caught.value.retry_after_s == 3.0


def test_ranges_and_conditions_are_asked_for(site: Callable[[], Site]) -> None:
    home = site()
    home.answers = {
        "/a": (206, {"Content-Range": "bytes 5-9/20", "Content-Length": "5", "ETag": 'W/"x"'}, b"abcde")
    }
    with open_bytes(Link(f"{home.url}/a", {}), start=5, end=10, if_range='"x"') as body:
        assert b"".join(body.chunks) == b"abcde"
        assert (body.start, body.total, body.etag) == (5, 20, None), "a weak ETag is no condition"
    headers = home.seen[0][1]
    assert (headers["range"], headers["if-range"]) == ("bytes=5-9", '"x"')
    assert headers["accept-encoding"] == "identity"


def test_a_part_that_does_not_say_which_is_refused(site: Callable[[], Site]) -> None:
    home = site()
    home.answers = {"/a": (206, {"Content-Length": "1"}, b"x")}
    with (
        pytest.raises(OutsideError, match="without saying which"),
        open_bytes(Link(f"{home.url}/a", {}), start=3),
    ):
        pass


def test_a_body_that_breaks_off_is_unavailable_and_keeps_what_came(site: Callable[[], Site]) -> None:
    home = site()
    home.answers = {"/a": (200, {"Content-Length": "10"}, b"abc")}
    got = b""
    with open_bytes(Link(f"{home.url}/a", {})) as body, pytest.raises(Unavailable, match="broke"):
        for chunk in body.chunks:
            got += chunk
    assert got == b"abc"


def test_nobody_listening_is_unavailable() -> None:
    with (
        pytest.raises(Unavailable, match=r"connection to `127\.0\.0\.1` broke"),
        open_bytes(Link("http://127.0.0.1:9/a", {})),
    ):
        pass


def test_origins_are_scheme_host_and_port() -> None:
    assert origin("https://HuggingFace.co/a?b") == origin("https://huggingface.co:443/")
    assert len({origin(url) for url in ("http://h/", "https://h/", "https://h:8443/", "https://g/")}) == 4
