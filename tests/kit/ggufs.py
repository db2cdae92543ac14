"""Tiny models on disk, written once per test run: `syn("syn-hyb")` is a path."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from localspec.selftest import write


@cache
def syn(name: str) -> Path:
    """The GGUF of a tiny model (`localspec.selftest.VARIANTS`); tests read it and never change it."""
    return write(name, _folder())


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="localspec-syn-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
