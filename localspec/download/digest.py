"""SHA-256 of files: while they are written, after the fact, and piece by piece to find a bad range."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from localspec.download.events import Checking
from localspec.errors import ModelFileError

MAGIC = b"GGUF"
READ = 4 * 1024 * 1024
PIECE = 8 * 1024 * 1024


class RunningDigest:
    """SHA-256 of bytes that arrive in order, computed in a thread of its own beside reading and writing."""

    AHEAD = 4
    """Blocks that may wait; more would only hold memory."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._waiting: deque[Future[None]] = deque()

    def feed(self, block: bytes) -> None:
        """Add bytes."""
        self._waiting.append(self._thread.submit(self._sha.update, block))
        if len(self._waiting) > self.AHEAD:
            self._waiting.popleft().result()

    def hexdigest(self) -> str:
        """Digest of everything fed so far."""
        while self._waiting:
            self._waiting.popleft().result()
        return self._sha.hexdigest()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)


def is_gguf_name(path: str) -> bool:
    """Whether the name promises GGUF content."""
    return path.lower().endswith(".gguf")


def has_magic(path: Path) -> bool:
    """Whether the file starts like a GGUF; OSError when unreadable."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def verifying(path: Path, sha256: str) -> Iterator[Checking]:
    """Check a file on disk against its digest, and its GGUF magic when the name promises one.

    Raises:
        ModelFileError: missing, unreadable, not GGUF, or another digest.
    """
    sha, done = hashlib.sha256(), 0
    try:
        if is_gguf_name(path.name) and not has_magic(path):
            raise ModelFileError(f"`{path}` is not a GGUF file", hint="remove it and pull it again")
        total = path.stat().st_size
        with path.open("rb", buffering=0) as file:
            buffer = memoryview(bytearray(READ))
            while count := file.readinto(buffer):
                sha.update(buffer[:count])
                done += count
                yield Checking(path, done, total)
    except OSError as error:
        raise ModelFileError(f"cannot read `{path}`: {error.strerror or error}") from error
    if sha.hexdigest() != sha256:
        raise ModelFileError(
            f"`{path}` does not have its SHA-256: expected {sha256[:12]}…, found {sha.hexdigest()[:12]}…",
            hint="remove it and pull it again",
        )


def verify(path: Path, sha256: str) -> None:
    """`verifying` without its events."""
    for _ in verifying(path, sha256):
        pass


def piece_digests(path: Path) -> list[bytes]:
    """Digest of each `PIECE` of a file, to tell where two downloads of it differ."""
    digests = []
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            digests.append(hashlib.blake2b(piece, digest_size=16).digest())
    return digests


def first_difference(one: Sequence[bytes], other: Sequence[bytes]) -> tuple[int, int] | None:
    """Byte range [start, end) of the first piece in which two files differ; None when they are equal."""
    for index in range(max(len(one), len(other))):
        if one[index : index + 1] != other[index : index + 1]:
            return index * PIECE, (index + 1) * PIECE
    return None
