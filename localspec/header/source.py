"""Where header bytes come from: anything that knows its size and can read a range of itself.

A local file is one such source; a remote one (HTTP ranges) is passed in by the caller. This module
knows nothing of GGUF, and nothing of networks.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from localspec.errors import ModelFileError

SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$", re.IGNORECASE)
"""Name of one part of a split GGUF, as llama.cpp's gguf-split writes it."""
MAX_SHARDS = 1024


class RangeSource(Protocol):
    """A byte string that can be read in pieces."""

    @property
    def size(self) -> int:
        """Total length in bytes."""

    def read(self, offset: int, length: int) -> bytes:
        """The bytes at `offset`; shorter than `length` only at the end."""


class FileSource:
    """A local file, opened for each read: headers need a handful of reads, so no handle is kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.size = path.stat().st_size
        except FileNotFoundError:
            raise ModelFileError(
                f"model file `{path}` does not exist",
                hint="check the path, or fetch it with `localspec pull`",
            ) from None
        except OSError as error:
            raise ModelFileError(f"cannot read `{path}`: {error.strerror or error}") from error
        if path.is_dir():
            raise ModelFileError(f"`{path}` is a folder, not a GGUF file")

    def read(self, offset: int, length: int) -> bytes:
        try:
            with self._path.open("rb") as stream:
                stream.seek(offset)
                return stream.read(length)
        except OSError as error:
            raise ModelFileError(f"cannot read `{self._path}`: {error.strerror or error}") from error


def shard_paths(path: Path) -> list[Path]:
    """All parts of the model that `path` belongs to, in order; just `[path]` for an unsplit file.

    Raises:
        ModelFileError: the name announces an absurd number of parts.
    """
    match = SHARD.match(path.name)
    if not match:
        return [path]
    count = int(match["count"])
    if not 1 <= count <= MAX_SHARDS:
        raise ModelFileError(f"`{path.name}` claims to be split into {count} parts")
    return [path.with_name(f"{match['stem']}-{n:05d}-of-{count:05d}.gguf") for n in range(1, count + 1)]
