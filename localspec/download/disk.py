"""What the disk may refuse, in words."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from localspec.errors import LocalspecError

SPARE_BYTES = 64 * 1024 * 1024
"""Left free beyond the files: records, notes, and a system that still works."""


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Name the file and the remedy when the disk refuses."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise LocalspecError(
                f"the disk is full: `{path}` could not be written",
                hint="free some space and start again (it goes on where it was), "
                "or move the models with LOCALSPEC_MODELS_DIR",
            ) from error
        raise LocalspecError(
            f"cannot write `{path}`: {error.strerror or error}",
            hint="check the folder's permissions, or move the models with LOCALSPEC_MODELS_DIR",
        ) from error


def check_space(folder: Path, needed: int) -> None:
    """Refuse before the first byte what cannot fit.

    Raises:
        LocalspecError: fewer than `needed` bytes and some spare ones are free, or no such folder can be made.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    if needed and needed + SPARE_BYTES > free:
        raise LocalspecError(
            f"not enough space in `{folder}`: {_gib(needed)} to download, {_gib(free)} free",
            hint=f"free {_gib(needed + SPARE_BYTES - free)}, or move the models with LOCALSPEC_MODELS_DIR",
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
