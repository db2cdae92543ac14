"""GGUF files that are already on this disk, in the folders of localspec and of other tools. Only read."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec import hub
from localspec.errors import LocalspecError
from localspec.header import draft_kind, facts_from_header, read_header, shard_paths
from localspec.header.kind import FileKind

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Found:
    """One model file, all parts of a split one together."""

    path: Path
    where: str
    """Whose folder it is: `localspec`, `Hugging Face`, `LM Studio`, `llama.cpp`."""
    size_bytes: int
    name: str = ""
    architecture: str = ""
    quant: str = ""
    kind: FileKind | None = None
    """What it is by its first 64 KiB; None when it cannot be read."""
    error: str | None = None


def foreign_folders() -> dict[str, list[Path]]:
    """Folders in which other tools keep GGUF files."""
    home, env = Path.home(), os.environ
    cache = (
        home / "Library/Caches"
        if sys.platform == "darwin"
        else Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    )
    llama = Path(env["LLAMA_CACHE"]) if env.get("LLAMA_CACHE") else cache / "llama.cpp"
    return {
        "LM Studio": [home / ".lmstudio/models", home / ".cache/lm-studio/models"],
        "llama.cpp": [llama],
    }


def extra_dirs() -> tuple[Path, ...]:
    """Folders of other tools that exist; a download uses what it finds there in place."""
    return tuple(folder for folders in foreign_folders().values() for folder in folders if folder.is_dir())


def scan(models_dir: Path) -> list[Found]:
    """Every GGUF in the known folders, each once; files that cannot be read are listed with the reason."""
    places = {"localspec": [models_dir], "Hugging Face": [hub.cache_dir()], **foreign_folders()}
    seen: set[Path] = set()
    found = []
    for where, folders in places.items():
        for path in (path for folder in folders for path in _files(folder)):
            real = path.resolve()
            if real not in seen:
                seen.add(real)
                found.append(look(path, where))
    return found


def _files(folder: Path) -> Iterator[Path]:
    """First parts only, in order; links are followed to files, not to folders."""
    for root, _, names in sorted(os.walk(folder, onerror=None)):
        for name in sorted(names):
            if name.lower().endswith(".gguf") and not _LATER_PART.search(name):
                yield Path(root, name)


def look(path: Path, where: str) -> Found:
    """What one file is, by the beginning of its header."""
    try:
        size = sum(part.stat().st_size for part in shard_paths(path) if part.is_file())
        header = read_header(path, only_first=True)
        facts = facts_from_header(header)
    except (LocalspecError, OSError) as error:
        return Found(path, where, 0, error=str(error))
    return Found(path, where, size, facts.name, facts.architecture, facts.file_type, draft_kind(header))
