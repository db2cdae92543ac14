"""Delete a pair's downloaded files, and only those that no other downloaded pair needs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from localspec.catalog import Catalog, Pair, is_users, remove_pin, remove_user_pair
from localspec.download import Queue, RemoteFile, remove
from localspec.errors import UsageError
from localspec.planning.facts import PairFacts, unit_of


@dataclass(frozen=True, slots=True)
class Removal:
    """What was, or would be, deleted."""

    removed: tuple[Path, ...]
    kept: tuple[RemoteFile, ...]
    """Files that stay because another downloaded pair needs them."""
    rows: tuple[str, ...] = ()
    """Tables taken out of the user's models file."""


def needed_elsewhere(going: Collection[str], catalog: Catalog, models_dir: Path) -> set[RemoteFile]:
    """Files of downloaded pairs that stay when the pairs named `going` go."""
    look = PairFacts(models_dir)
    staying = [p for p in catalog.pairs.values() if p.name not in going and look.state(p) == "installed"]
    return {file for pair in staying if (unit := unit_of(pair)) for file in unit.files}


def remove_pair(
    pair: Pair, catalog: Catalog, models_dir: Path, going: Collection[str] = (), *, keep_row: bool = False
) -> Removal:
    """Delete a pair's files, unfinished ones included, and its row where it is one of the user's own.

    Files outside the models folder stay.

    Args:
        going: further pairs that are deleted with it, and so need no file.
        keep_row: leave the user's models file as it is.

    Raises:
        UsageError: nothing of it was downloaded by localspec, and it has no row of the user's.
        LocalspecError: a file is being downloaded, or cannot be deleted.
    """
    unit = unit_of(pair)
    takes_row = is_users(pair) and not keep_row
    if unit is None and takes_row:
        return Removal((), (), remove_user_pair(pair))
    if unit is None:
        raise UsageError(
            f"the files of `{pair.name}` were not downloaded by localspec and stay where they are",
            hint=f"its row is in `{pair.origin}`",
        )
    keep = needed_elsewhere({pair.name, *going}, catalog, models_dir)
    queue = Queue(models_dir)
    if queue.get(pair.name):
        queue.cancel(pair.name)
    removed = remove(unit, models_dir, keep)
    for file in unit.files:
        if file not in keep:
            remove_pin(file.repo, file.path)
    rows = remove_user_pair(pair) if takes_row else ()
    return Removal(removed, tuple(file for file in unit.files if file in keep), rows)
