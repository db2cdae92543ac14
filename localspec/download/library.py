"""Model files on this disk, and the record of those whose content was checked.

A record holds size, modification time and SHA-256, so that a later start needs neither hashing nor a
request. One small file per record: processes never rewrite each other's. No network here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from localspec import hub
from localspec.atomic import replace_file
from localspec.download.disk import disk_errors
from localspec.download.units import RemoteFile, Unit
from localspec.header.source import shard_paths

STATE = ".localspec"
"""Folder inside the models folder for records and the queue."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Record:
    """A file whose content was right when it had this size and time."""

    location: str
    """Relative to the models folder when inside it, so that the folder can move; else absolute."""
    size: int
    mtime_ns: int
    sha256: str
    repo: str
    path: str
    commit: str


class Library:
    """The models folder plus folders of other tools, which are only read."""

    def __init__(self, models_dir: Path, extra_dirs: Sequence[Path] = ()) -> None:
        self.models_dir = models_dir
        self.extra_dirs = tuple(extra_dirs)
        self._records_dir = models_dir / STATE / "verified"

    def find(self, file: RemoteFile) -> tuple[Path, ...] | None:
        """All parts of `file` as checked earlier and unchanged since; instant."""
        for first in self._recorded_places(file):
            paths = tuple(shard_paths(first))
            records = [self.recorded(path) for path in paths]
            if all(records) and records[0] and _satisfies(records[0], file):
                return paths
        return None

    def copies(self, file: RemoteFile) -> Iterator[tuple[Path, ...]]:
        """Complete sets of parts that may be `file`, unchecked: ours, Hugging Face's cache, other tools'."""
        first = file.parts[0]
        owner, name = first.repo.split("/")
        base = Path(first.path).name
        candidates = [first.local(self.models_dir), *hub.cached_copies(first.repo, first.path)]
        for folder in self.extra_dirs:
            flat = f"{owner}_{name}_{first.path.replace('/', '_')}"  # llama.cpp's own cache
            candidates += [folder / first.repo / first.path, folder / base, folder / flat]
        for candidate in candidates:
            paths = tuple(shard_paths(candidate))
            if all(path.is_file() for path in paths):
                yield paths

    def recorded(self, path: Path) -> Record | None:
        """The record of a file, when the file is unchanged since."""
        record = _read(self._record_file(path))
        try:
            stat = path.stat()
        except OSError:
            return None
        unchanged = record and (record.size, record.mtime_ns) == (stat.st_size, stat.st_mtime_ns)
        return record if unchanged else None

    def record(self, path: Path, file: RemoteFile, sha256: str, commit: str, stat: os.stat_result) -> None:
        """Remember that the content of `path`, having this `stat`, is `file`; `path` may come to be later."""
        record = Record(
            self._location(path), stat.st_size, stat.st_mtime_ns, sha256, file.repo, file.path, commit
        )
        with disk_errors(path):
            replace_file(self._record_file(path), json.dumps(asdict(record), indent=1).encode())

    def forget(self, path: Path) -> None:
        """Drop the record of a file."""
        self._record_file(path).unlink(missing_ok=True)

    def records(self) -> tuple[Record, ...]:
        """Every record, valid or not, ordered by location."""
        found = (_read(entry) for entry in self._records_dir.glob("*.json"))
        return tuple(sorted((record for record in found if record), key=lambda record: record.location))

    def _recorded_places(self, file: RemoteFile) -> Iterator[Path]:
        first = file.parts[0]
        yield first.local(self.models_dir)
        for record in self.records():
            if (record.repo, record.path) == (first.repo, first.path):
                yield self.models_dir / record.location

    def _location(self, path: Path) -> str:
        absolute, root = path.absolute(), self.models_dir.absolute()
        return absolute.relative_to(root).as_posix() if absolute.is_relative_to(root) else str(absolute)

    def _record_file(self, path: Path) -> Path:
        return self._records_dir / f"{hashlib.sha256(self._location(path).encode()).hexdigest()[:32]}.json"


def installed(unit: Unit, models_dir: Path) -> tuple[Path, ...] | None:
    """Where the files of a unit are when all of them were verified; no request, no hashing.

    Returns:
        One path per file in the unit's order (the first part of a split one), or None.
    """
    library = Library(models_dir)
    found = [library.find(file) for file in unit.files]
    return tuple(paths[0] for paths in found if paths) if all(found) else None


def _read(path: Path) -> Record | None:
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _satisfies(record: Record, file: RemoteFile) -> bool:
    """A pinned digest or commit must be the recorded one; any commit satisfies a branch."""
    if file.sha256:
        return record.sha256 == file.sha256
    return not _COMMIT.fullmatch(file.revision) or record.commit == file.revision
