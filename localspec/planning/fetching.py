"""From a pair's name to what is downloaded: names as the hub has them now, and what is learnt at the end.

Before the first byte of it the complete headers are read: does it fit, and is the draft right?
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from localspec.catalog import Catalog, Pair, write_pin
from localspec.download import Unit
from localspec.engine.settings import LoadSettings
from localspec.errors import UsageError
from localspec.planning.facts import FactsCache, remote_key, unit_of
from localspec.planning.machine import Machine
from localspec.planning.pairs import plan_pair
from localspec.planning.remote import current, pin_of
from localspec.planning.result import PairPlan


@dataclass(frozen=True, slots=True)
class Order:
    """A pair ready to be downloaded."""

    wanted: Pair
    """As the catalogue names its files."""
    pair: Pair
    """With names, commits, digests and sizes as the hub lists them now."""
    unit: Unit

    @property
    def size_bytes(self) -> int | None:
        """All files together; None when the hub does not say."""
        sizes = [model.size_bytes for model in self.pair.files if model.repo]
        return sum(size or 0 for size in sizes) if all(sizes) else None

    @property
    def renamed(self) -> tuple[tuple[str, str], ...]:
        """(catalogue's name, name on the hub) of files that go by another name now."""
        pairs = zip(self.wanted.files, self.pair.files, strict=True)
        return tuple((old.file, new.file) for old, new in pairs if old.file != new.file)

    def remember(self) -> None:
        """Pin what was downloaded, so that the next start asks nobody and finds the same content.

        Raises:
            LocalspecError: the pins cannot be written.
        """
        for old, new in zip(self.wanted.files, self.pair.files, strict=True):
            pin = pin_of(new)
            if old.repo is not None and pin is not None and old != new:
                write_pin(old.repo, old.file, pin)


def order(pair: Pair) -> Order:
    """Find a pair's files on the hub: one request per repository file that is not pinned yet.

    Raises:
        UsageError: no file of the pair comes from the hub, or the repository does not have it.
        PermissionDeniedError, OutsideError: as `hub.list_files`.
    """
    found = {model.name: current(model) for model in pair.files}
    now = replace(
        pair,
        target=found[pair.target.name],
        drafters=tuple(replace(d, model=d.model and found[d.model.name]) for d in pair.drafters),
    )
    unit = unit_of(now)
    if unit is None:
        raise UsageError(f"`{pair.name}` has nothing to download: its files are on this disk or in a package")
    return Order(pair, now, unit)


def inspect(
    pair: Pair,
    catalog: Catalog,
    *,
    budget: str | None,
    load: LoadSettings,
    machine: Machine | None,
    models_dir: Path,
) -> tuple[Order, PairPlan]:
    """What a download would bring, and the plan of it by the files' own headers.

    Args:
        budget, load, machine: as `plan_pair`.

    Raises:
        PairingError: the combination is known to be bad, or the draft does not belong to the target.
        ModelFileError: what is there is no GGUF.
        UsageError, PermissionDeniedError, OutsideError: as `order`.
    """
    catalog.check_allowed(pair)
    found = order(pair)
    plan = plan_pair(found.pair, budget=budget, load=load, machine=machine, models_dir=models_dir)
    _keep_facts(found)
    if plan.verdict is not None:
        plan.verdict.raise_if_refused()
    return found, plan


def _keep_facts(found: Order) -> None:
    """Let what was read of the files hold for their rows, too, which name no commit."""
    cache = FactsCache()
    for old, new in zip(found.wanted.files, found.pair.files, strict=True):
        if new.repo and old != new and (facts := cache.get(remote_key(new))):
            cache.put(remote_key(old), facts)
