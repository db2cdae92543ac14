"""Tiny models on disk, written once per test run: `syn("syn-hyb")` is a path."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from localspec.selftest import write
from localspec.selftest.targets import Target, write_llama
from localspec.selftest.variants import SYN
from localspec.selftest.vocab import TEXT


@cache
def syn(name: str) -> Path:
    """The GGUF of a tiny model (`localspec.selftest.VARIANTS`); tests read it and never change it."""
    return write(name, _folder())


@cache
def syn_with(template: str) -> Path:
    """The GGUF of `syn` with another chat template and no BOS."""
    path = _folder() / f"syn-{len(template)}-{hash(template) & 0xFFFF:x}.gguf"
    write_llama(path, Target(path.stem, SYN, replace(TEXT, add_bos=False, template=template)))
    return path


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="localspec-syn-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
