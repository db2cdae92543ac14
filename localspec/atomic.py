"""Replace small files in one step, so that a reader or a kill never meets half of one."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to `path`, making folders as needed; the last of several writers wins.

    Raises:
        OSError: the folder cannot be written, or the disk is full; `path` is then unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        fresh.write_bytes(data)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
