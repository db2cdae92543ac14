"""Fetch the bytes of one part file until they are complete and their digest is right.

Retries, resumes and restarts; knows nothing of units, queues or final names.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from localspec import hub
from localspec.download.control import Backoff, Channel, Control, Policy
from localspec.download.digest import MAGIC, first_difference, is_gguf_name, piece_digests
from localspec.download.events import Checking, Event, Notice
from localspec.download.part import Part
from localspec.errors import LocalspecError, ModelFileError, OutsideError, PermissionDeniedError
from localspec.hub import FileMetadata
from localspec.transport import Body, Link, LinkExpired, RangeRefused, Unavailable, open_bytes, origin

BLOCK = 1024 * 1024
"""Bytes handed on at once; a slow connection hands on what it has every `BLOCK_S` seconds."""
BLOCK_S = 0.25
MAX_CHANGES = 2
"""Fresh starts within one run because the server says that the file is another one."""
HEAD = 512
"""Bytes looked at before anything is written."""


@dataclass(frozen=True, slots=True)
class Grown:
    """The part has more bytes."""

    done: int


@dataclass(frozen=True, slots=True)
class _Opened:
    etag: str | None
    site: str


class _Changed(Exception):
    """The byte server has another version of the file than the part began with."""


class Meter:
    """Transfer rate over the last seconds."""

    WINDOW_S = 5.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()

    def rate(self, done: int) -> float:
        """Take a sample of the bytes done; bytes per second over the window, 0.0 when unknown."""
        now = self._clock()
        if self._samples and done < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[0][0] > self.WINDOW_S:
            self._samples.popleft()
        began, then = self._samples[0]
        span = now - began
        return (done - then) / span if span > 0 else 0.0


def fetch(part: Part, policy: Policy, control: Control) -> Iterator[Event | Grown]:
    """Complete `part`; when the iteration ends its bytes are all there and right.

    Raises:
        ModelFileError: the digest was wrong twice, or the content is no GGUF.
        OutsideError, PermissionDeniedError: as `hub.resolve`, when retries did not help.
        LocalspecError: the disk refuses.
        StopRequested: asked for through `control`.
    """
    if part.discarded:
        yield Notice("restart", part.discarded)
    for hashed in part.rehash():
        control.check()
        yield Checking(part.path, hashed, part.done)
    earlier: list[bytes] | None = None
    while True:
        yield from _complete(part, policy, control)
        digest = part.digest.hexdigest()
        if part.metadata.sha256 in (None, digest):
            return
        pieces = piece_digests(part.path)
        if earlier is not None:
            part.discard()
            raise _mismatch(part, digest, first_difference(earlier, pieces))
        earlier = pieces
        yield Notice("restart", f"`{part.final.name}` arrived with a wrong SHA-256; fetching it once more")
        part.restart()


def _complete(part: Part, policy: Policy, control: Control) -> Iterator[Event | Grown]:
    """Append until the size is reached; every try that brought bytes sets patience back."""
    backoff, expired, changes = Backoff(policy), 0, 0
    link: Link | None = None
    while part.done < part.metadata.size:
        before = part.done
        stream = _Stream(part, link, policy)
        try:
            yield from _drain(stream, part, control)
        except _Changed as change:
            changes += 1
            if changes > MAX_CHANGES:
                raise OutsideError(f"{change}, again and again", hint="try again later") from change
            yield Notice("restart", f"{change}; starting over")
            part.restart()
            # Servers behind one name may disagree about ETags: from now on the digest alone decides.
            part.trusts_etag = part.metadata.sha256 is None
        except LinkExpired as error:
            expired = 1 if part.done > before else expired + 1
            if expired > 1:
                raise OutsideError(
                    f"{error.message}, also with a fresh link", hint="try again later"
                ) from error
            stream.link = None
        except Unavailable as error:
            if part.done > before:
                backoff.failures, expired = 0, 0
            retrying = backoff.failed(error)
            yield retrying
            control.sleep(retrying.in_s)
        finally:
            stream.close()
        link = stream.link


def _drain(stream: _Stream, part: Part, control: Control) -> Iterator[Grown]:
    for item in stream:
        control.check()
        if isinstance(item, _Opened):
            part.etag, part.site = item.etag, item.site
            part.note()
        elif item is not None:
            part.append(item)
            yield Grown(part.done)


class _Stream:
    """One answer of the byte server, read in a thread of its own; without a link it asks the hub."""

    def __init__(self, part: Part, link: Link | None, policy: Policy) -> None:
        self.link = link
        self._file = part.metadata
        self._offset = part.done
        self._known = (part.etag, part.site) if part.etag and part.trusts_etag else None
        self._policy = policy
        self._channel: Channel[_Opened | bytes] = Channel(self._feed)

    def __iter__(self) -> Iterator[_Opened | bytes | None]:
        return iter(self._channel)

    def close(self) -> None:
        self._channel.close()

    def _feed(self, put: Callable[[_Opened | bytes], None]) -> None:
        file, policy = self._file, self._policy
        link = self.link
        if link is None:
            _, link = hub.resolve(file.repo, file.path, file.commit)
            self.link = link
        try:
            with open_bytes(
                link,
                start=self._offset,
                if_range=self._etag_of(link.url),
                connect_s=policy.connect_s,
                stall_s=policy.stall_s,
            ) as body:
                self._receive(body, put)
        except RangeRefused as error:
            if not self._offset:
                raise
            raise _Changed(f"`{file.path}` is shorter on the server than the part on this disk") from error

    def _etag_of(self, url: str) -> str | None:
        """The ETag that this very server sent for the bytes we have."""
        return self._known[0] if self._known and origin(self._known[1]) == origin(url) else None

    def _receive(self, body: Body, put: Callable[[_Opened | bytes], None]) -> None:
        file = self._file
        known = self._etag_of(body.site)
        if self._offset and known and body.etag and body.etag != known:
            raise _Changed(f"`{file.path}` changed on the server since the download began")
        if body.start not in (0, self._offset):
            raise OutsideError(f"`{body.site}` sent bytes from {body.start} instead of {self._offset}")
        chunks = body.chunks
        if body.start == 0:
            head, chunks = _peek(chunks, HEAD)
            _check_content(file, body, head)
        put(_Opened(body.etag, body.site))
        position = body.start
        for block in _blocks(chunks):
            position += len(block)
            if position > file.size:
                raise OutsideError(f"`{body.site}` sent more than the {file.size} bytes of `{file.path}`")
            if fresh := _after(block, position, self._offset):
                put(fresh)
        if position < file.size:
            raise Unavailable(f"`{body.site}` ended at byte {position} of {file.size}")


def _peek(chunks: Iterator[bytes], size: int) -> tuple[bytes, Iterator[bytes]]:
    """The first `size` bytes (or all there are), and the stream as if they had not been read."""
    read: list[bytes] = []
    while sum(map(len, read)) < size and (chunk := next(chunks, b"")):
        read.append(chunk)
    return b"".join(read)[:size], chain(read, chunks)


def _blocks(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Gather network reads: one copy is cheaper than the thread switches that many small pieces cost."""
    reads: list[bytes] = []
    size, since = 0, time.monotonic()
    try:
        for chunk in chunks:
            reads.append(chunk)
            size += len(chunk)
            if size >= BLOCK or time.monotonic() - since >= BLOCK_S:
                yield b"".join(reads)
                reads, size, since = [], 0, time.monotonic()
    except Unavailable:
        yield b"".join(reads)
        raise
    yield b"".join(reads)


def _after(block: bytes, end: int, offset: int) -> bytes:
    """What of a block that ends at file position `end` lies beyond `offset`: a server may ignore ranges."""
    start = end - len(block)
    return block if start >= offset else block[offset - start :]


def _check_content(file: FileMetadata, body: Body, head: bytes) -> None:
    """Refuse what is plainly not the file before a byte of it is written."""
    if body.content_type == "text/html" or head.lstrip()[:9].lower() in (b"<!doctype", b"<html"):
        raise _web_page(file, body)
    if head.startswith(b"version https://git-lfs"):
        raise ModelFileError(
            f"`{body.site}` holds a Git LFS pointer instead of the content of `{file.path}`",
            hint="the repository or mirror is incomplete: choose another source",
        )
    if body.total not in (None, file.size):
        raise OutsideError(
            f"`{body.site}` has {body.total} bytes where the hub lists {file.size} for `{file.path}`",
            hint="try again later, or another source",
        )
    if is_gguf_name(file.path) and not head.startswith(MAGIC):
        raise ModelFileError(f"`{file.repo}/{file.path}` is not a GGUF file", hint="choose another source")


def _web_page(file: FileMetadata, body: Body) -> LocalspecError:
    page = f"{hub.endpoint()}/{file.repo}"
    if file.gated:
        return PermissionDeniedError(
            f"`{body.site}` sent a web page instead of `{file.path}`: `{file.repo}` is gated",
            hint=f"accept its terms at {page}, then set HF_TOKEN or run `hf auth login`",
        )
    return OutsideError(
        f"`{body.site}` sent a web page instead of `{file.path}`",
        hint="a proxy or a login page may stand in between: open the address in a browser once",
    )


def _mismatch(part: Part, digest: str, where: tuple[int, int] | None) -> ModelFileError:
    file = part.metadata
    cause = (
        f"the two downloads differ within bytes {where[0]}–{where[1]}, so a connection, memory or disk is bad"
        if where
        else "both downloads are the same, so the server's copy is not what the hub lists"
    )
    return ModelFileError(
        f"`{file.repo}/{file.path}` arrived twice with a wrong SHA-256 "
        f"(expected {file.sha256 or ''!s:.12}…, got {digest[:12]}…): {cause}",
        hint="choose another source, or check this machine's memory and disk",
    )
