"""What was learnt when a file was fetched: its name then, commit, digest and size.

Kept in one small JSON file of the data folder, replaced as a whole. Two processes that pin at the same
moment may lose one pin; it is learnt again at the next fetch. Knows nothing of the network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localspec.atomic import replace_file
from localspec.errors import LocalspecError, UsageError
from localspec.locations import locations

_MAX_BYTES = 4 << 20
_TEXTS = ("repo", "wanted", "file", "revision", "sha256")


@dataclass(frozen=True, slots=True)
class Pin:
    """Identity of a fetched file."""

    file: str
    """Path in the repository at that commit; differs from the wanted one when it was renamed."""
    revision: str
    sha256: str
    size_bytes: int


Pins = dict[tuple[str, str], Pin]
"""(repository, file as the catalogue names it) -> what was fetched."""


def pins_file() -> Path:
    return locations().data_dir / "pins.json"


def read_pins(path: Path | None = None) -> Pins:
    """Every pin; none when the file does not exist.

    Raises:
        UsageError: the file is damaged.
        LocalspecError: it cannot be read.
    """
    path = path or pins_file()
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise LocalspecError(f"cannot read `{path}`: {error.strerror}") from error
    try:
        document = json.loads(raw) if len(raw) <= _MAX_BYTES else None
    except (ValueError, RecursionError):
        document = None
    pins = _pins(document)
    if pins is None:
        raise UsageError(f"`{path}` is damaged", hint="delete it: pins are learnt again at the next download")
    return pins


def _pins(document: Any) -> Pins | None:
    rows = document.get("pins") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        return None
    pins: Pins = {}
    for row in rows:
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in _TEXTS):
            return None
        size = row.get("size_bytes")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            return None
        pins[row["repo"], row["wanted"]] = Pin(row["file"], row["revision"], row["sha256"], size)
    return pins


def write_pin(repo: str, wanted: str, pin: Pin, path: Path | None = None) -> None:
    """Keep what a fetch of `wanted` from `repo` found; an earlier pin of the same file is replaced.

    Raises:
        UsageError: the file is damaged.
        LocalspecError: it cannot be written.
    """
    path = path or pins_file()
    _write(path, {**read_pins(path), (repo, wanted): pin})


def remove_pin(repo: str, file: str, path: Path | None = None) -> None:
    """Forget the pins of a file, by the catalogue's name for it or the one it was fetched under.

    Raises:
        UsageError, LocalspecError: as `write_pin`.
    """
    path = path or pins_file()
    pins = read_pins(path)
    kept = {key: pin for key, pin in pins.items() if key[0] != repo or file not in (key[1], pin.file)}
    if kept != pins:
        _write(path, kept)


def _write(path: Path, pins: Mapping[tuple[str, str], Pin]) -> None:
    rows = [{"repo": repo, "wanted": wanted, **asdict(pin)} for (repo, wanted), pin in sorted(pins.items())]
    try:
        replace_file(path, json.dumps({"pins": rows}, indent=1).encode() + b"\n")
    except OSError as error:
        raise LocalspecError(f"cannot write `{path}`: {error.strerror}") from error
