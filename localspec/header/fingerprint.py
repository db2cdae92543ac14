"""What a model file is, whatever its name and folder: a digest that takes milliseconds at any size."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.header.source import shard_paths

BLOCK = 64 << 10
BLOCKS = 32
"""Read per file, evenly spread from the first byte to the last: a file of other weights differs in all."""


def fingerprint(path: Path) -> str:
    """Hexadecimal digest of a model's sizes, header and samples of its weights, all parts of a split one.

    Not for telling a damaged file from a whole one; that takes every byte.

    Raises:
        ModelFileError: a part is missing or cannot be read.
    """
    try:
        stats = [(part, part.stat()) for part in shard_paths(path)]
        return _digest(tuple((part, stat.st_size, stat.st_mtime_ns) for part, stat in stats))
    except OSError as error:
        raise ModelFileError(f"cannot read `{path}`: {error.strerror or error}") from error


@lru_cache(maxsize=512)
def _digest(parts: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, size, _ in parts:
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb", buffering=0) as file:
            for offset in _offsets(size):
                file.seek(offset)
                digest.update(file.read(BLOCK))
    return digest.hexdigest()[:32]


def _offsets(size: int) -> list[int]:
    if size <= BLOCK * BLOCKS:
        return list(range(0, size, BLOCK))
    return [n * (size - BLOCK) // (BLOCKS - 1) for n in range(BLOCKS)]
