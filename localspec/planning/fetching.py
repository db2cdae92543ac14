"""From a pair's name to what is downloaded: names as the hub has them now, and what is learnt at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from localspec.catalog import Pair, write_pin
from localspec.download import Unit
from localspec.errors import UsageError
from localspec.planning.facts import unit_of
from localspec.planning.remote import current, pin_of


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
