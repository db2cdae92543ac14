"""A Hugging Face hub on loopback: two HTTP servers, the hub and the CDN its redirects lead to.

The hub speaks the model, tree and resolve API; the CDN serves signed links with ETags of its own. A
token that reaches the CDN, and any failure inside the servers, fails the test when the fake closes.
Faults are injected per request. What the real hub does beyond that is not imitated.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from tests.kit.fakehub_servers import GOOD_TOKEN, STRANGER_TOKEN, CdnHandler, HubHandler, Seen, Server

__all__ = ["GOOD_TOKEN", "STRANGER_TOKEN", "FakeHub", "Fault", "Seen", "gguf"]


def gguf(size: int, seed: int = 1) -> bytes:
    """Content that starts like a GGUF and repeats nowhere."""
    return b"GGUF" + random.Random(seed).randbytes(size - 4)


Kind = Literal[
    "status", "cut", "stall", "ignore_range", "new_etag", "flip", "html", "pointer", "short", "expire"
]


@dataclass
class Fault:
    """What goes wrong with the next `times` requests to one host."""

    kind: Kind
    at: int = 0
    """Body bytes before the break; offset of the flipped byte; bytes a short body lacks."""
    status: int = 500
    seconds: float = 60.0
    retry_after: int | None = None
    times: int = 1
    host: Literal["hub", "cdn"] = "cdn"
    path: str = ""
    """Only requests whose path contains this."""


@dataclass
class _Repo:
    gated: bool | str
    private: bool
    commits: dict[str, dict[str, bytes | Path]] = field(default_factory=dict)
    head: str = ""


class FakeHub:
    """Use as a context manager; `endpoint` goes into HF_ENDPOINT."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.violations: list[str] = []
        self.faults: list[Fault] = []
        self.rate_bps: float | None = None
        """Speed limit of each CDN answer."""
        self.redirects = True
        """False: the hub serves large files itself."""
        self.closing = threading.Event()
        self._repos: dict[str, _Repo] = {}
        self._blobs: dict[str, bytes | Path] = {}
        self._digests: dict[tuple[str, int, int], str] = {}
        self._links = 0
        self._oldest_link = 0
        self._etag_age = 0
        self._lock = threading.Lock()
        self._servers = [Server(self, HubHandler), Server(self, CdnHandler)]
        self.endpoint, self.cdn = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)

    def __enter__(self) -> FakeHub:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()
        if error is None:
            assert not self.violations, self.violations

    def environment(self, home: Path, token: str = "") -> dict[str, str]:
        """Variables that make the hub client use this hub, with a cache of its own below `home`."""
        return {"HF_ENDPOINT": self.endpoint, "HF_HOME": str(home), "HF_TOKEN": token}

    def push(
        self,
        repo: str,
        files: Mapping[str, bytes | Path],
        *,
        gated: bool | str = False,
        private: bool = False,
    ) -> str:
        """A commit on `main` that holds exactly `files`; returns its id."""
        known = self._repos.setdefault(repo, _Repo(gated, private))
        commit = hashlib.sha1(f"{repo} {len(known.commits)}".encode()).hexdigest()
        known.commits[commit], known.head = dict(files), commit
        for content in files.values():
            self._blobs[self.sha256(content)] = content
        return commit

    def inject(self, *faults: Fault) -> None:
        """Faults strike in this order, each on the next request that it fits."""
        self.faults += map(replace, faults)

    def expire_links(self) -> None:
        """Every link given out so far is refused from now on."""
        self._oldest_link = self._links + 1

    def requests(self, host: str, method: str = "GET") -> list[Seen]:
        """What one host was asked, in order."""
        return [seen for seen in self.seen if (seen.host, seen.method) == (host, method)]

    def sent(self) -> int:
        """Body bytes the CDN has sent."""
        return sum(seen.sent for seen in self.seen if seen.host == "cdn")

    def wait_sent(self, count: int, timeout_s: float = 30.0) -> None:
        """Return once the CDN has sent `count` bytes."""
        end = time.monotonic() + timeout_s
        while self.sent() < count:
            assert time.monotonic() < end, f"the CDN sent {self.sent()} of {count} bytes in {timeout_s} s"
            time.sleep(0.002)

    def sha256(self, content: bytes | Path) -> str:
        """Digest of a file's content; files on disk are hashed once."""
        if isinstance(content, bytes):
            return hashlib.sha256(content).hexdigest()
        stat = content.stat()
        key = (str(content), stat.st_size, stat.st_mtime_ns)
        if key not in self._digests:
            with content.open("rb") as file:
                self._digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._digests[key]

    # What the handlers ask.

    def take_fault(self, host: str, path: str, *kinds: Kind) -> Fault | None:
        """The next fault for this request, counted down."""
        with self._lock:
            for fault in self.faults:
                if (
                    fault.times
                    and fault.host == host
                    and fault.path in path
                    and (not kinds or fault.kind in kinds)
                ):
                    fault.times -= 1
                    return fault
        return None

    def link(self, sha: str) -> str:
        """A fresh signed link."""
        with self._lock:
            self._links += 1
            return f"{self.cdn}/blobs/{sha}?Signature=secret&serial={self._links}"

    def link_is_valid(self, serial: str) -> bool:
        """Whether a link has not expired."""
        return serial.isdigit() and int(serial) >= self._oldest_link

    def etag(self, sha: str) -> str:
        """The CDN's own ETag."""
        return f'"cdn-{self._etag_age}-{sha[:8]}"'

    def age_etags(self) -> None:
        """All ETags of the CDN change."""
        self._etag_age += 1

    def repo(self, name: str) -> _Repo | None:
        return self._repos.get(name)

    def blob(self, sha: str) -> bytes | Path | None:
        return self._blobs.get(sha)
