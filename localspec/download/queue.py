"""Units to download, kept on disk: they survive the process, and other processes may pause them.

One small file per unit in the models folder; knows nothing of the network.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from localspec.atomic import replace_file
from localspec.download.disk import disk_errors
from localspec.download.library import STATE, Library
from localspec.download.lock import FileLock, lock_path
from localspec.download.part import part_path, remove_part
from localspec.download.units import RemoteFile, Unit
from localspec.errors import LocalspecError, UsageError, unknown

State = Literal["queued", "paused", "failed"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A unit that is not complete yet."""

    unit: Unit
    state: State
    added: float
    """Unix time; the queue runs oldest first."""
    error: str | None = None
    hint: str | None = None


class Queue:
    """The units still to be downloaded into one models folder."""

    def __init__(self, models_dir: Path) -> None:
        self.models_dir = models_dir
        self._dir = models_dir / STATE / "queue"

    def add(self, unit: Unit) -> None:
        """Queue a unit, or queue it again after a pause or failure; keeps its place."""
        known = self.get(unit.name)
        self._write(Entry(unit, "queued", known.added if known else time.time()))

    def entries(self) -> tuple[Entry, ...]:
        """Oldest first."""
        found = (_read(path) for path in self._dir.glob("*.json"))
        return tuple(sorted((entry for entry in found if entry), key=lambda entry: entry.added))

    def get(self, name: str) -> Entry | None:
        """The entry of a unit, if it is here."""
        return _read(self._file(name))

    def fetched_bytes(self, unit: Unit) -> int:
        """Bytes of the unit that are in the models folder, finished or not."""
        finals = [part.local(self.models_dir) for file in unit.files for part in file.parts]
        both = [path for final in finals for path in (final, part_path(final)) if path.is_file()]
        return sum(path.stat().st_size for path in both)

    def pause(self, name: str) -> None:
        """Stop a unit within a second, in whichever process it runs; what was fetched stays."""
        self._write(replace(self._require(name), state="paused"))

    def resume(self, name: str) -> None:
        """Queue a paused or failed unit again."""
        self.add(self._require(name).unit)

    def fail(self, name: str, error: LocalspecError) -> None:
        """Mark a unit that could not be completed."""
        self._write(replace(self._require(name), state="failed", error=error.message, hint=error.hint))

    def discard(self, name: str) -> None:
        """Take a unit off the queue and leave its files."""
        self._file(name).unlink(missing_ok=True)

    def cancel(self, name: str) -> None:
        """Take a unit off the queue and remove what was fetched of its unfinished files.

        Whoever is downloading it notices within a second and removes the rest.

        Raises:
            UsageError: no such unit.
        """
        unit = self._require(name).unit
        self.discard(name)
        self.sweep(unit)

    def sweep(self, unit: Unit) -> None:
        """Remove the unfinished files of a unit, except those in use and those another entry wants."""
        wanted = {file for entry in self.entries() for file in entry.unit.files}
        for file in set(unit.files) - wanted:
            _remove_parts(file, self.models_dir)

    def _require(self, name: str) -> Entry:
        entry = self.get(name)
        if entry is None:
            raise unknown("download", name, [entry.unit.name for entry in self.entries()])
        return entry

    def _write(self, entry: Entry) -> None:
        with disk_errors(self._dir):
            replace_file(self._file(entry.unit.name), json.dumps(asdict(entry), indent=1).encode())

    def _file(self, name: str) -> Path:
        return self._dir / f"{quote(name, safe='')}.json"


def remove(unit: Unit, models_dir: Path, keep: Collection[RemoteFile] = ()) -> tuple[Path, ...]:
    """Delete the files of a unit from the models folder; files used in place elsewhere are only forgotten.

    Args:
        keep: files that other pairs need.

    Returns:
        What was deleted.

    Raises:
        LocalspecError: a file is being downloaded, or cannot be deleted.
    """
    library, removed = Library(models_dir), []
    for file in unit.files:
        if file in keep:
            continue
        elsewhere = library.find(file) or ()
        if not _remove_parts(file, models_dir):
            raise LocalspecError(f"`{file}` is being downloaded", hint="cancel the download first")
        for path in {*elsewhere, *(part.local(models_dir) for part in file.parts)}:
            library.forget(path)
            if path.is_relative_to(models_dir) and path.is_file():
                with disk_errors(path):
                    path.unlink()
                    _prune(path.parent, models_dir)
                removed.append(path)
    return tuple(sorted(removed))


def _remove_parts(file: RemoteFile, models_dir: Path) -> bool:
    """Remove unfinished bytes of a file; False when somebody is writing them."""
    path = lock_path(file, models_dir)
    if not path.parent.is_dir():
        return True
    lock = FileLock(path)
    with disk_errors(path):
        if lock.try_acquire() is not None:
            return False
        try:
            for part in file.parts:
                remove_part(part.local(models_dir))
        finally:
            lock.release()
        _prune(path.parent, models_dir)
    return True


def _prune(folder: Path, models_dir: Path) -> None:
    """Remove folders that became empty."""
    while folder != models_dir and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _read(path: Path) -> Entry | None:
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        unit = facts.pop("unit")
        files = tuple(RemoteFile(**file) for file in unit["files"])
        return Entry(unit=Unit(unit["name"], files), **facts)
    except (OSError, ValueError, TypeError, KeyError, UsageError):
        return None
