"""Bytes of one URL by range over HTTP: redirects, time-outs and status codes turned into typed errors.

Knows nothing of the hub, of files or of retrying; it never repeats a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urljoin, urlsplit

from localspec.errors import OutsideError

if TYPE_CHECKING:
    import httpx2

MAX_REDIRECTS = 5
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_EXPIRED = {401, 403, 404, 410}
_PORTS = {"http": 80, "https": 443}


class Unavailable(OutsideError):
    """The network or a server failed in a way that may pass within seconds."""

    retry_after_s: float | None = None
    """What the server asked for, in seconds."""


class LinkExpired(OutsideError):
    """The byte server no longer accepts the signed link."""


class RangeRefused(OutsideError):
    """416: the server has no such bytes."""


@dataclass(frozen=True, slots=True)
class Link:
    """Where bytes are, with the headers that may go there."""

    url: str = field(repr=False)
    """May hold a signature: never stored, never shown."""
    headers: Mapping[str, str] = field(repr=False)

    @property
    def site(self) -> str:
        """The address without its signature."""
        return urlsplit(self.url)._replace(query="", fragment="").geturl()


@dataclass(frozen=True, slots=True)
class Body:
    """An open answer with bytes of the file, and of nothing but the file as far as headers tell."""

    start: int
    """Offset of the first byte that comes: 0 when the server ignored the range."""
    total: int | None
    """Size of the whole file as this server sees it."""
    etag: str | None
    """Strong ETag of the byte server, fit for If-Range."""
    content_type: str
    site: str
    chunks: Iterator[bytes]


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port: what a token is bound to."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme)


@contextmanager
def open_bytes(
    link: Link,
    *,
    start: int = 0,
    end: int | None = None,
    if_range: str | None = None,
    connect_s: float = 10.0,
    stall_s: float = 30.0,
) -> Iterator[Body]:
    """Open the bytes [start, end) behind `link`; a redirect to another origin drops the link's headers.

    Raises:
        LinkExpired: 401, 403, 404 or 410.
        RangeRefused: 416.
        Unavailable: no connection, a cut, no byte for `stall_s` seconds, 408, 425, 429 or 5xx; also
            while the chunks are read.
        OutsideError: any other answer.
    """
    import httpx2

    wanted = {"accept-encoding": "identity"}
    if start or end is not None:
        wanted["range"] = f"bytes={start}-{'' if end is None else end - 1}"
    if if_range and start:
        wanted["if-range"] = if_range
    timeout = httpx2.Timeout(stall_s, connect=connect_s)
    with httpx2.Client(timeout=timeout, follow_redirects=False) as client:
        for _ in range(MAX_REDIRECTS + 1):
            with _opened(client, link, wanted) as response:
                if response.has_redirect_location:
                    link = _redirected(link, response.headers["location"])
                    continue
                yield _body(response, link, timeout)
                return
    raise OutsideError(f"`{link.site}` redirects in circles")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a `Retry-After` header; its rarer date form is not read."""
    value = headers.get("retry-after", "").strip()
    return float(value) if value.isdigit() else None


@contextmanager
def _opened(client: httpx2.Client, link: Link, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
    with _typed_errors(link, client.timeout):
        request = client.build_request("GET", link.url, headers={**link.headers, **headers})
        response = client.send(request, stream=True)
    try:
        yield response
    finally:
        response.close()


@contextmanager
def _typed_errors(link: Link, timeout: httpx2.Timeout) -> Iterator[None]:
    import httpx2

    host = origin(link.url)[1]
    try:
        yield
    except httpx2.ConnectTimeout as error:
        raise Unavailable(f"`{host}` did not answer within {timeout.connect:g} s") from error
    except httpx2.TimeoutException as error:
        raise Unavailable(f"`{host}` sent nothing for {timeout.read:g} s") from error
    except httpx2.HTTPError as error:
        raise Unavailable(f"the connection to `{host}` broke: {error or type(error).__name__}") from error


def _chunks(response: httpx2.Response, link: Link, timeout: httpx2.Timeout) -> Iterator[bytes]:
    with _typed_errors(link, timeout):
        yield from response.iter_raw()


def _redirected(link: Link, location: str) -> Link:
    url = urljoin(link.url, location)
    return Link(url, link.headers if origin(url) == origin(link.url) else {})


def _body(response: httpx2.Response, link: Link, timeout: httpx2.Timeout) -> Body:
    if response.status_code not in (200, 206):
        _refuse(response, link)
    length = response.headers.get("content-length", "")
    start, total = 0, int(length) if length.isdigit() else None
    if response.status_code == 206:
        start, total = _content_range(response.headers.get("content-range", ""), link)
    etag = response.headers.get("etag")
    return Body(
        start=start,
        total=total,
        etag=None if etag is None or etag.startswith("W/") else etag,
        content_type=response.headers.get("content-type", "").partition(";")[0].strip().lower(),
        site=link.site,
        chunks=_chunks(response, link, timeout),
    )


def _content_range(value: str, link: Link) -> tuple[int, int | None]:
    """First byte and full size out of `bytes 5-9/10` or `bytes 5-9/*`."""
    span, _, total = value.removeprefix("bytes ").partition("/")
    start = span.partition("-")[0]
    if not start.isdigit():
        raise OutsideError(f"`{link.site}` sent a part of the file without saying which: `{value}`")
    return int(start), int(total) if total.isdigit() else None


def _refuse(response: httpx2.Response, link: Link) -> NoReturn:
    status = response.status_code
    said = f"`{link.site}` answered {status} {response.reason_phrase}".rstrip()
    if status in _EXPIRED:
        raise LinkExpired(said)
    if status == 416:
        raise RangeRefused(said)
    if status in _PASSING:
        error = Unavailable(said)
        error.retry_after_s = retry_after(response.headers)
        raise error
    raise OutsideError(said)
