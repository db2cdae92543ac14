"""Facts of a pair's files from the best source: headers on this disk, those read earlier, the catalogue.

No request: what was once read from a remote header is kept as facts, so that a list needs no network.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localspec.atomic import replace_file
from localspec.catalog import ModelFile, Pair
from localspec.download import Library, Queue, Unit
from localspec.errors import LocalspecError
from localspec.header import Header, ModelFacts, facts_from_catalogue, facts_from_header, read_header
from localspec.header.source import shard_paths
from localspec.locations import locations
from localspec.pairs import find_file, remote_file
from localspec.planning.result import State


@dataclass(frozen=True, slots=True)
class Known:
    """Facts and how they were come by."""

    facts: ModelFacts
    source: Literal["catalogue", "header"]


class FactsCache:
    """Facts of headers read earlier, a small JSON file each; a cache that cannot be used costs time only."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or locations().cache_dir / "facts"

    def get(self, key: str) -> ModelFacts | None:
        try:
            return ModelFacts.from_json(json.loads(self._file(key).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put(self, key: str, facts: ModelFacts) -> None:
        with suppress(OSError):
            replace_file(self._file(key), json.dumps(facts.to_json()).encode())

    def _file(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def remote_key(model: ModelFile) -> str:
    """What facts of a remote header are kept under."""
    return f"hub {model.repo}/{model.file}@{model.revision or 'main'}"


def local_facts(path: Path, cache: FactsCache, *, header: Header | None = None) -> ModelFacts:
    """Facts of a file on this disk, read in full once per size and time of the file.

    Raises:
        ModelFileError: missing, not GGUF or truncated.
    """
    stats = [part.stat() for part in shard_paths(path) if part.is_file()]
    key = f"file {path.absolute()} {[(stat.st_size, stat.st_mtime_ns) for stat in stats]}"
    known = None if header else cache.get(key)
    if known is None:
        known = facts_from_header(header or read_header(path))
        cache.put(key, known)
    return known


class PairFacts:
    """Looks up the files and facts of catalogue pairs for one question."""

    def __init__(self, models_dir: Path, cache: FactsCache | None = None) -> None:
        self.models_dir = models_dir
        self.cache = cache or FactsCache()
        self._library = Library(models_dir)
        self._queue = Queue(models_dir)

    def path(self, model: ModelFile) -> Path | None:
        """Where the file lies on this disk, used in place or not; None when it does not."""
        return find_file(model, self._library)

    def known(self, model: ModelFile) -> Known:
        """The best facts without a request; a file that cannot be read leaves the catalogue's word."""
        path = self.path(model)
        if path is not None:
            with suppress(LocalspecError):
                return Known(local_facts(path, self.cache), "header")
        kept = self.cache.get(remote_key(model)) if model.repo else None
        if kept is not None:
            return Known(kept, "header")
        facts = facts_from_catalogue(
            model.facts, model.size_bytes or 0, name=model.name, file_type=model.quant or ""
        )
        return Known(facts, "catalogue")

    def state(self, pair: Pair) -> State:
        """Whether the pair's files are here."""
        here = [self.path(model) is not None for model in pair.files]
        if all(here):
            return "installed"
        unit = unit_of(pair)
        return "partial download" if unit and self._queue.fetched_bytes(unit) else "not downloaded"


def unit_of(pair: Pair) -> Unit | None:
    """What has to be downloaded for a pair, as one unit; None when nothing comes from the hub."""
    files = tuple(remote_file(model) for model in pair.files if model.repo)
    return Unit(pair.name, files) if files else None
