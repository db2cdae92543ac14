"""A file that is being downloaded: `<name>.part` and a note of what its bytes are bytes of.

Appends only, so its length is what is there; the note says at least every `CHUNK` bytes how much that
was, and a part that is off by more is not what we left. Knows nothing of the network.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from localspec.atomic import replace_file
from localspec.download.digest import READ, RunningDigest
from localspec.download.disk import disk_errors
from localspec.errors import LocalspecError
from localspec.hub import FileMetadata

CHUNK = 8 * 1024 * 1024
"""Most bytes that may be fetched twice after a kill."""
NOTE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Note:
    repo: str
    path: str
    commit: str
    size: int
    sha256: str | None
    url: str
    """Byte server's address without its signature."""
    etag: str | None
    """That server's own."""
    done: int


def part_path(final: Path) -> Path:
    """Where the bytes of an unfinished `final` are."""
    return final.with_name(final.name + ".part")


def note_path(final: Path) -> Path:
    """Where the note about them is."""
    return final.with_name(final.name + ".part.json")


def kept_bytes(final: Path, metadata: FileMetadata) -> tuple[int, str | None]:
    """How many bytes of an earlier part can be continued, and why not all of them when some cannot."""
    path, note = part_path(final), _read_note(final)
    if not path.is_file():
        return 0, None
    there = path.stat().st_size
    if there == 0:
        return 0, None
    if note is None:
        return 0, f"`{path.name}` has no record of where it came from; starting over"
    if not _same_content(note, metadata):
        return (
            0,
            f"`{final.name}` is another version on the hub now than the part on this disk; starting over",
        )
    usable = there if note.done <= there <= note.done + CHUNK else min(there, note.done)
    return min(usable, metadata.size), None


class Part:
    """An open part, written and hashed at once. Use under the file's lock."""

    def __init__(self, final: Path, metadata: FileMetadata) -> None:
        """Open or make the part; `discarded` says why an earlier one was not continued.

        Raises:
            LocalspecError: the folder cannot be written.
        """
        self.final = final
        self.metadata = metadata
        self.path = part_path(final)
        self.digest = RunningDigest()
        self.etag: str | None = None
        """ETag of the byte server at `site`, for If-Range."""
        self.site = ""
        self.trusts_etag = True
        """Whether a different ETag means different bytes."""
        with disk_errors(self.path):
            final.parent.mkdir(parents=True, exist_ok=True)
            self.done, self.discarded = kept_bytes(final, metadata)
            if self.done and (note := _read_note(final)):
                self.etag, self.site = note.etag, note.url
            self._file = self.path.open("r+b" if self.path.exists() else "x+b")
            self._file.truncate(self.done)
            self._noted, self._noted_at = self.done, 0.0
            self.note()

    def rehash(self) -> Iterator[int]:
        """Hash what an earlier run left; yields the bytes hashed so far."""
        hashed = 0
        with disk_errors(self.path):
            self._file.seek(0)
            while hashed < self.done:
                piece = self._file.read(READ)
                self.digest.feed(piece)
                hashed += len(piece)
                yield hashed

    def append(self, block: bytes) -> None:
        """Write and hash the next bytes.

        Raises:
            LocalspecError: the disk is full or refuses.
        """
        if self.done + len(block) > self._noted + CHUNK or time.monotonic() > self._noted_at + NOTE_S:
            self.note()
        with disk_errors(self.path):
            self._file.write(block)
            self._file.flush()
        self.done += len(block)
        self.digest.feed(block)

    def note(self) -> None:
        """Write down how far the part is and what it is a part of."""
        facts = self.metadata
        note = _Note(
            facts.repo, facts.path, facts.commit, facts.size, facts.sha256, self.site, self.etag, self.done
        )
        with disk_errors(self.path):
            replace_file(note_path(self.final), json.dumps(asdict(note), indent=1).encode())
        self._noted, self._noted_at = self.done, time.monotonic()

    def restart(self) -> None:
        """Give up every byte."""
        self.digest.close()
        self.digest = RunningDigest()
        self.done, self.etag, self.site = 0, None, ""
        with disk_errors(self.path):
            self._file.seek(0)
            self._file.truncate()
        self.note()

    def finish(self) -> None:
        """Give the part its final name, its bytes being safe on the disk."""
        with disk_errors(self.final):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self.path.replace(self.final)
            note_path(self.final).unlink(missing_ok=True)

    def close(self) -> None:
        """Leave the part for another run; idempotent."""
        self.digest.close()
        if not self._file.closed:
            with contextlib.suppress(LocalspecError):  # a full disk was reported by the write
                self.note()
            self._file.close()

    def discard(self) -> None:
        """Remove the part."""
        self.digest.close()
        self._file.close()
        remove_part(self.final)


def remove_part(final: Path) -> None:
    """Remove what an unfinished download of `final` left."""
    part_path(final).unlink(missing_ok=True)
    note_path(final).unlink(missing_ok=True)


def _read_note(final: Path) -> _Note | None:
    try:
        note = _Note(**json.loads(note_path(final).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return note if isinstance(note.done, int) and isinstance(note.url, str) else None


def _same_content(note: _Note, metadata: FileMetadata) -> bool:
    if metadata.sha256:
        return (note.sha256, note.size) == (metadata.sha256, metadata.size)
    wanted = (metadata.repo, metadata.path, metadata.commit, metadata.size)
    return (note.repo, note.path, note.commit, note.size) == wanted
