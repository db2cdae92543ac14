"""What the picker asks of the rest of the program. Blocking: to be called beside the screen."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from localspec.catalog import Catalog, is_users, load_catalog, read_pins
from localspec.config import Config, set_key
from localspec.download import Queue
from localspec.download.disk import SPARE_BYTES
from localspec.engine.settings import LoadSettings
from localspec.header import Header
from localspec.planning import Machine, PairPlan, host_machine, plan_pair, plan_pairs, read_machine
from localspec.planning.adding import add, locate
from localspec.planning.facts import PairFacts, unit_of
from localspec.planning.fetching import Order, inspect
from localspec.planning.removing import Removal, needed_elsewhere, remove_pair
from localspec.planning.scan import Found, scan
from localspec.planning.suggest import Candidate, suggest
from localspec.store.measurements import Measurements
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

    order: Order
    plan: PairPlan
    """By the headers of the files as they are on the hub."""
    fetched: int
    """Bytes of it already on this disk."""
    free: int
    """Free bytes where models are kept."""

    @property
    def size(self) -> int | None:
        """Bytes of all files; None when the hub did not say."""
        return self.order.size_bytes

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

    def __init__(
        self,
        catalog: Catalog,
        config: Config,
        *,
        measurements: Measurements | None = None,
        own: Mapping[str, int] | None = None,
    ) -> None:
        """Args:
        measurements: what earlier loads took.
        own: device -> bytes that this program's loaded pair holds there, and would give back.
        """
        self.catalog = catalog
        self.config = config
        self.default = config.default_pair
        self.measurements = measurements
        self.own = own or {}
        self._machine: Machine | None = None

    @property
    def models_dir(self) -> Path:
        return self.config.models_dir

    def size_of(self, repo: str, path: str) -> int | None:
        """Bytes of a hub file as the catalogue lists them."""
        models = self.catalog.models.values()
        return next((m.size_bytes for m in models if (m.repo, m.file) == (repo, path)), None)

    def forget_machine(self) -> None:
        """Read the devices again at the next question: what is free changes."""
        self._machine = None

    def machine(self, load: LoadSettings) -> Machine:
        """The devices, read once."""
        if self._machine is None:
            near = None if load.rpc else host_machine()
            self._machine = near or read_machine(rpc=load.rpc, own=self.own)
        return self._machine

    def plans(self, question: Question) -> list[PairPlan]:
        """Every pair of the catalogue; under a second once the devices are known."""
        return plan_pairs(
            self.catalog,
            load=question.load,
            budget=question.budget,
            machine=self.machine(question.load) if question.budget is None else None,
            models_dir=self.models_dir,
            measurements=self.measurements,
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
            machine=self.machine(question.load) if question.budget is None else None,
            models_dir=self.models_dir,
            measurements=self.measurements,
            online=online,
        )

    def set_default(self, name: str) -> None:
        """Make a pair what commands without one use.

        Raises:
            LocalspecError: the config file cannot be edited.
        """
        set_key("default_pair", name, self.config.file)
        self.default = name

    def parcel(self, name: str, question: Question) -> Parcel:
        """What a download of this pair would bring, as the hub lists it now; reads the headers.

        Raises:
            UsageError: nothing of it comes from the hub, or a file is gone.
            PairingError: the combination is known to be bad, or the draft does not belong to the target.
            ModelFileError: what is there is no GGUF.
            PermissionDeniedError, OutsideError: the hub refuses, or cannot be reached.
        """
        found, plan = inspect(
            self.catalog.pair(name),
            self.catalog,
            budget=question.budget,
            load=question.load,
            machine=self.machine(question.load) if question.budget is None else None,
            models_dir=self.models_dir,
        )
        fetched = Queue(self.models_dir).fetched_bytes(found.unit)
        return Parcel(found, plan, fetched, free_bytes(self.models_dir))

    def ordered(self, found: Order) -> None:
        """A download was queued: names and digests hold from now on, also after a restart."""
        found.remember()
        self.reload()

    def reload(self) -> None:
        """Read the catalogue again, with the user's own pairs and what is pinned."""
        self.catalog = load_catalog().with_pins(read_pins())

    def removable(self, name: str) -> tuple[str, ...]:
        """Files that deleting a pair would delete: those that no other downloaded pair needs."""
        unit = unit_of(self.catalog.pair(name))
        kept = needed_elsewhere({name}, self.catalog, self.models_dir)
        return tuple(str(file) for file in unit.files if file not in kept) if unit else ()

    def has_row(self, name: str) -> bool:
        """Whether the pair is one of the user's own, which can be forgotten."""
        return is_users(self.catalog.pair(name))

    def delete(self, name: str, *, keep_row: bool) -> Removal:
        """Delete a pair's files, and the row of a pair of the user's own; raises as `remove_pair`."""
        return remove_pair(self.catalog.pair(name), self.catalog, self.models_dir, keep_row=keep_row)

    def add(self, name: str, target: str, draft: str) -> str:
        """Save a pair of the user's own, and say in words what its files are to each other.

        Args:
            target, draft: paths, `owner/repo:file` or names of the catalogue; an empty draft is none.

        Raises:
            UsageError, ModelFileError, PairingError, PermissionDeniedError, OutsideError: as `adding`.
        """
        found = [locate(text, self.catalog, self.models_dir) for text in (target, draft) if text]
        pair, verdict = add(name, found[0], found[1] if draft else None, self.catalog, k=None, note=None)
        self.reload()
        return verdict.text if verdict else f"drafts by {pair.method}"

    def scan(self) -> list[Found]:
        """GGUF files on this disk."""
        return scan(self.models_dir)

    def drafts(self, name: str) -> list[Candidate]:
        """Drafts for a pair's target, the best first.

        Raises:
            PermissionDeniedError, OutsideError: the target's header is on the hub and cannot be read.
        """
        look = PairFacts(self.models_dir)
        model = self.catalog.pair(name).target
        header: Header = locate(model.name, self.catalog, self.models_dir).header
        return suggest(header, model, self.catalog, look, online=True)


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk that a folder, made yet or not, lies on."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
