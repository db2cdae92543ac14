"""What the picker asks of the rest of the program. Blocking: to be called beside the screen."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from localspec.catalog import Catalog
from localspec.config import Config, set_key
from localspec.download import Library, Queue, RemoteFile, Unit, remove
from localspec.download.disk import SPARE_BYTES
from localspec.engine.settings import LoadSettings
from localspec.errors import UsageError
from localspec.pairs import find_file, remote_file
from localspec.planning import Machine, PairPlan, host_machine, plan_pair, plan_pairs, read_machine
from localspec.planning.remote import current
from localspec.tui.picking.question import Question


@dataclass(frozen=True, slots=True)
class Picked:
    """What the picker ends with in a chat."""

    pair: str
    load: LoadSettings
    """With the context and KV type that were chosen in the picker."""
    force: bool = False
    """The user wants it loaded although it does not fit."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """What a download would bring."""

    unit: Unit
    size: int | None
    """Bytes of all files; None when the hub did not say."""
    fetched: int
    """Of these already on this disk."""
    free: int
    """Free bytes where models are kept."""

    @property
    def missing(self) -> int | None:
        """Bytes still to fetch."""
        return None if self.size is None else max(0, self.size - self.fetched)

    @property
    def left(self) -> int | None:
        """Free bytes afterwards; negative when they do not suffice."""
        return None if self.missing is None else self.free - self.missing

    @property
    def lacking(self) -> bool:
        """Whether the disk is known to be too small."""
        return self.left is not None and self.left < SPARE_BYTES


class Services:
    """The program behind the picker, on one catalogue."""

    def __init__(self, catalog: Catalog, config: Config) -> None:
        self.catalog = catalog
        self.config = config
        self.default = config.default_pair
        self._machine: Machine | None = None

    @property
    def models_dir(self) -> Path:
        return self.config.models_dir

    @property
    def sizes(self) -> dict[tuple[str, str], int]:
        """(repository, path) -> bytes as the catalogue lists them."""
        models = self.catalog.models.values()
        return {
            (model.repo, model.file): model.size_bytes for model in models if model.repo and model.size_bytes
        }

    def forget_machine(self) -> None:
        """Read the devices again at the next question: what is free changes."""
        self._machine = None

    def machine(self) -> Machine:
        """This machine's devices, read once."""
        if self._machine is None:
            self._machine = host_machine() or read_machine()
        return self._machine

    def plans(self, question: Question) -> list[PairPlan]:
        """Every pair of the catalogue; under a second once the devices are known."""
        return plan_pairs(
            self.catalog,
            load=question.load,
            budget=question.budget,
            machine=self.machine() if question.budget is None else None,
            models_dir=self.models_dir,
        )

    def detail(self, name: str, question: Question, *, online: bool = False) -> PairPlan:
        """One pair in full: complete headers, verdict, suggestions.

        Args:
            online: read headers of files that are not here from the hub.
        """
        return plan_pair(
            self.catalog.pair(name),
            load=question.load,
            budget=question.budget,
            machine=self.machine() if question.budget is None else None,
            models_dir=self.models_dir,
            online=online,
        )

    def set_default(self, name: str) -> None:
        """Make a pair what commands without one use.

        Raises:
            LocalspecError: the config file cannot be edited.
        """
        set_key("default_pair", name, self.config.file)
        self.default = name

    def parcel(self, name: str) -> Parcel:
        """What a download of this pair would bring, as the hub lists it now; names and digests are pinned.

        Raises:
            UsageError: nothing of it comes from the hub, or a file is gone.
            PermissionDeniedError, OutsideError: the hub refuses, or cannot be reached.
        """
        pair = self.catalog.pair(name)
        self.catalog.check_allowed(pair)
        models = [current(model) for model in pair.files if model.repo]
        if not models:
            raise UsageError(
                f"nothing of {name} comes from the hub", hint="`scripts/setup` installs the demo"
            )
        unit = Unit(name, tuple(remote_file(model) for model in models))
        known = [model.size_bytes for model in models]
        return Parcel(
            unit,
            sum(size or 0 for size in known) if all(known) else None,
            Queue(self.models_dir).fetched_bytes(unit),
            free_bytes(self.models_dir),
        )

    def removable(self, name: str) -> tuple[RemoteFile, ...]:
        """Files of a pair that deleting it would delete: those that no other installed pair uses.

        Raises:
            UsageError: there is none.
        """
        pair = self.catalog.pair(name)
        library = Library(self.models_dir)
        here = [remote_file(model) for model in pair.files if model.repo and find_file(model, library)]
        found = tuple(file for file in here if file not in self._used(name))
        if not found:
            raise UsageError(
                f"{name} has no file to delete",
                hint="its files belong to other pairs too, or were not downloaded by localspec",
            )
        return found

    def _used(self, name: str) -> set[RemoteFile]:
        library = Library(self.models_dir)
        others = [pair for pair in self.catalog.pairs.values() if pair.name != name]
        return {
            remote_file(model)
            for pair in others
            if all(find_file(model, library) for model in pair.files)
            for model in pair.files
            if model.repo
        }

    def delete(self, name: str) -> tuple[Path, ...]:
        """Delete what `removable` lists; raises as it does, and as `download.remove`."""
        return remove(Unit(name, self.removable(name)), self.models_dir)


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk that a folder, made yet or not, lies on."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
