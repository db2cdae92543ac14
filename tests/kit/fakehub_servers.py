"""The two HTTP servers of the fake hub: what each request is answered, faults included."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

if TYPE_CHECKING:
    from tests.kit.fakehub import FakeHub, Fault

GOOD_TOKEN = "hf_good"
STRANGER_TOKEN = "hf_stranger"
"""Valid, but its account has no access to gated or private repositories."""
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{sha}\nsize {size}\n"


PAGE = b"<!DOCTYPE html><html><title>Log in</title></html>"
STEP = 64 * 1024
BREAKING = ("cut", "stall", "expire", "new_etag")
"""Faults that end the connection after `at` body bytes; with 0 a new ETag breaks nothing."""


@dataclass
class Seen:
    """One request and what was answered."""

    host: str
    method: str
    path: str
    headers: dict[str, str]
    status: int = 0
    start: int = 0
    """File offset of the first body byte."""
    sent: int = 0
    """Body bytes handed to the socket, or just about to be."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, fake: FakeHub, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.fake = fake

    def handle_error(self, request: Any, client_address: Any) -> None:
        self.fake.violations.append(traceback.format_exc())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    host = ""
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def handle(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            super().handle()

    def begin(self) -> Seen:
        seen = Seen(self.host, self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
        self.server.fake.seen.append(seen)
        return seen

    def answer(
        self, seen: Seen, status: int, headers: Mapping[str, object] = {}, body: bytes | None = b""
    ) -> None:
        """Send head and body; body None: the caller sends it."""
        seen.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        if body is not None:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(body)

    def hang_up(self) -> None:
        """Cut the connection so that the client notices at once."""
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def struck(self, seen: Seen, fault: Fault) -> None:
        """A fault that replaces the whole answer."""
        if fault.kind == "html":
            self.answer(seen, 200, {"Content-Type": "text/html; charset=utf-8"}, PAGE)
        elif fault.kind == "status":
            extra = {} if fault.retry_after is None else {"Retry-After": fault.retry_after}
            self.answer(seen, fault.status, extra, b"no")
        elif fault.kind == "stall":
            self.server.fake.closing.wait(fault.seconds)
            self.hang_up()
        elif fault.kind == "cut":
            self.hang_up()


class HubHandler(Handler):
    host = "hub"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        seen, fake = self.begin(), self.server.fake
        path = unquote(urlsplit(self.path).path)
        if fault := fake.take_fault("hub", path):
            self.struck(seen, fault)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            self.api(seen, match[1], match[2] or "revision", match[3] or "main")
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(seen, match[1], match[2], match[3])
        else:
            self.refuse(seen, 404, "EntryNotFound", "unknown page")

    def refuse(self, seen: Seen, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code} if code else {}
        self.answer(seen, status, {**headers, "X-Error-Message": message}, b"")

    def found(self, seen: Seen, name: str, revision: str, *, bytes_wanted: bool) -> tuple[str, Any] | None:
        """Commit and files of a revision, or a refusal with the codes of the real hub."""
        token = seen.headers.get("authorization", "").removeprefix("Bearer ")
        repo = self.server.fake.repo(name)
        if token not in ("", GOOD_TOKEN, STRANGER_TOKEN):
            self.refuse(seen, 401, "", "Invalid credentials in Authorization header")
            return None
        if repo is None or (repo.private and token != GOOD_TOKEN):
            status = 404 if token else 401
            self.refuse(seen, status, "RepoNotFound", "Invalid username or password.")
            return None
        if repo.gated and bytes_wanted and token != GOOD_TOKEN:
            status = 403 if token else 401
            said = (
                "Your request to access it is awaiting a review"
                if repo.gated == "asked"
                else "Access is restricted"
            )
            self.refuse(seen, status, "GatedRepo", said)
            return None
        commit = repo.head if revision == "main" else revision
        if commit not in repo.commits:
            self.refuse(seen, 404, "RevisionNotFound", "Invalid rev id")
            return None
        return commit, repo.commits[commit]

    def api(self, seen: Seen, name: str, what: str, revision: str) -> None:
        found = self.found(seen, name, revision, bytes_wanted=False)
        if found is None:
            return
        commit, files = found
        repo = self.server.fake.repo(name)
        assert repo is not None
        siblings, tree = [], []
        for path, content in files.items():
            size, sha = size_of(content), self.server.fake.sha256(content)
            blob = hashlib.sha1(sha.encode()).hexdigest()
            lfs: dict[str, object] | None = {"size": size, "pointerSize": 130} if is_lfs(path) else None
            siblings.append(
                {"rfilename": path, "size": size, "blobId": blob, "lfs": lfs and {**lfs, "sha256": sha}}
            )
            tree.append(
                {"type": "file", "path": path, "size": size, "oid": blob, "lfs": lfs and {**lfs, "oid": sha}}
            )
        info = {"id": name, "sha": commit, "gated": repo.gated and "manual", "siblings": siblings}
        body = json.dumps(tree if what == "tree" else info).encode()
        self.answer(seen, 200, {"Content-Type": "application/json"}, body)

    def resolve(self, seen: Seen, name: str, revision: str, path: str) -> None:
        found = self.found(seen, name, revision, bytes_wanted=True)
        if found is None:
            return
        commit, files = found
        if path not in files:
            return self.refuse(seen, 404, "EntryNotFound", "Entry not found")
        content = files[path]
        sha = self.server.fake.sha256(content)
        headers = {"X-Repo-Commit": commit, "X-Linked-Size": size_of(content)}
        if not is_lfs(path) or not self.server.fake.redirects:
            body = None if self.command == "HEAD" else read_range(content, 0, size_of(content))
            length = {"Content-Length": size_of(content)} if body is None else {}
            self.answer(seen, 200, {**headers, **length, "ETag": f'"{sha}"'}, body)
            return
        headers |= {"X-Linked-Etag": f'"{sha}"', "X-Xet-Hash": sha, "ETag": '"hub-pointer"'}
        self.answer(seen, 302, {**headers, "Location": self.server.fake.link(sha)}, b"")


class CdnHandler(Handler):
    host = "cdn"

    def do_GET(self) -> None:
        seen, fake = self.begin(), self.server.fake
        if "authorization" in seen.headers or "hf_" in self.path or "cookie" in seen.headers:
            fake.violations.append(f"a token reached the CDN: {self.path}")
        url = urlsplit(self.path)
        content = fake.blob(url.path.rpartition("/")[2])
        fault = fake.take_fault("cdn", self.path)
        if not fake.link_is_valid(parse_qs(url.query).get("serial", [""])[0]):
            self.answer(seen, 403, {}, b"<Error>expired</Error>")
        elif content is None:
            self.answer(seen, 404, {}, b"")
        elif fault and (
            fault.kind in ("html", "status") or (fault.kind in ("cut", "stall") and not fault.at)
        ):
            self.struck(seen, fault)
        elif fault and fault.kind == "pointer":
            sha = fake.sha256(content)
            self.answer(seen, 200, {}, POINTER.format(sha=sha, size=size_of(content)).encode())
        else:
            self.serve(seen, content, fault)

    def serve(self, seen: Seen, content: bytes | Path, fault: Fault | None) -> None:
        fake, size = self.server.fake, size_of(content)
        if fault and fault.kind == "new_etag":
            fake.age_etags()
        etag = fake.etag(fake.sha256(content))
        start, end = self.range(seen, size, etag)
        if fault and fault.kind == "ignore_range":
            start, end = 0, size
        if start >= size:
            self.answer(seen, 416, {"Content-Range": f"bytes */{size}"}, b"")
            return
        if fault and fault.kind == "short":
            end -= fault.at
        partial = "range" in seen.headers and (start, end) != (0, size)
        headers: dict[str, object] = {"ETag": etag, "Content-Length": end - start, "Accept-Ranges": "bytes"}
        if partial:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        seen.start = start
        self.answer(seen, 206 if partial else 200, headers, None)
        for piece in self.pieces(content, start, end, fault):
            seen.sent += len(piece)  # before: the client may look at the count as soon as it has the bytes
            self.wfile.write(piece)

    def range(self, seen: Seen, size: int, etag: str) -> tuple[int, int]:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", seen.headers.get("range", ""))
        condition = seen.headers.get("if-range")
        if asked is None or (condition is not None and condition != etag):
            return 0, size
        return int(asked[1]), min(int(asked[2]) + 1 if asked[2] else size, size)

    def pieces(self, content: bytes | Path, start: int, end: int, fault: Fault | None) -> Iterator[bytes]:
        """The body, as slow and as wrong as asked for."""
        fake, began, position = self.server.fake, time.monotonic(), start
        step = STEP if fault or fake.rate_bps else 4 * 1024 * 1024
        if fake.rate_bps:  # little may hide in the socket when a test counts what was fetched twice
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * STEP)
        while position < end:
            stop = min(position + step, end)
            breaks = fault and fault.kind in BREAKING and fault.at and start + fault.at <= stop
            if fault and breaks:
                yield read_range(content, position, start + fault.at)
                self.wfile.flush()
                if fault.kind == "expire":
                    fake.expire_links()
                elif fault.kind == "stall":
                    fake.closing.wait(fault.seconds)
                self.hang_up()
                return
            piece = read_range(content, position, stop)
            if fault and fault.kind == "flip" and position <= fault.at < stop:
                index = fault.at - position
                piece = piece[:index] + bytes([piece[index] ^ 1]) + piece[index + 1 :]
            yield piece
            position = stop
            if (
                fake.rate_bps
                and (ahead := (position - start) / fake.rate_bps - (time.monotonic() - began)) > 0
            ):
                time.sleep(ahead)


def size_of(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def read_range(content: bytes | Path, start: int, end: int) -> bytes:
    if isinstance(content, bytes):
        return content[start:end]
    with content.open("rb") as file:
        file.seek(start)
        return file.read(end - start)


def is_lfs(path: str) -> bool:
    return path.endswith(".gguf")
