"""`localspec pull`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from localspec.cli.face import face
from localspec.cli.options import Asked, SettingCommand, takes
from localspec.cli.planned import CONTEXT, budget_option, catalogue, machine
from localspec.output import Output, amount

if TYPE_CHECKING:
    from localspec.catalog import Catalog, Pair
    from localspec.download import Event
    from localspec.output import Progress
    from localspec.planning import Machine
    from localspec.planning.fetching import Order


@click.command("pull", cls=SettingCommand)
@click.argument("pairs", nargs=-1, required=True, metavar="PAIR...")
@click.option("--force", is_flag=True, help="Download also what does not fit this machine.")
@click.option("--no-wait", is_flag=True, help="Fail when another process downloads the same file.")
@budget_option
@takes(CONTEXT)
@face("Print one JSON object.")
def command(
    pairs: tuple[str, ...], force: bool, no_wait: bool, budget: str | None, asked: Asked, out: Output
) -> int:
    """Download pairs: target and draft together, checked before and after.

    What does not fit is refused with exit code 4, a draft that does not belong to its target with 1, both
    before the first byte. An interrupted download goes on where it was.
    """
    catalog = catalogue()
    wanted = [catalog.pair(name) for name in dict.fromkeys(pairs)]
    models_dir = asked.config.models_dir
    missing = [pair for pair in wanted if not _is_here(pair, models_dir, out)]
    compared = machine(budget, asked) if missing and not force else None
    orders = [_ordered(pair, catalog, asked, budget, compared, out, force=force) for pair in missing]
    for order in orders:
        fetch(order, models_dir, out, wait=not no_wait)
    found = {pair.name: _files(pair, models_dir) for pair in wanted}
    record = {"pairs": [{"name": name, "files": files} for name, files in found.items()]}
    out.report(record, "\n".join(str(path) for files in found.values() for path in files))
    return 0


def _is_here(pair: Pair, models_dir: Path, out: Output) -> bool:
    """Whether every file is on this disk and verified; asks nobody."""
    from localspec.download import installed
    from localspec.planning import unit_of

    unit = unit_of(pair)
    if unit is None:
        out.note(f"`{pair.name}` has nothing to download")
        return True
    if installed(unit, models_dir) is None:
        return False
    out.note(f"`{pair.name}` is already here")
    return True


def _ordered(
    pair: Pair,
    catalog: Catalog,
    asked: Asked,
    budget: str | None,
    compared: Machine | None,
    out: Output,
    *,
    force: bool,
) -> Order:
    """The pair's files as the hub has them now, once it is known to fit and to belong together.

    Raises:
        PairingError: the draft does not belong to the target.
        DoesNotFitError: it is too big, and `force` was not given.
    """
    from localspec.planning import Machine
    from localspec.planning.fetching import inspect
    from localspec.planning.gate import refusal

    found, plan = inspect(
        pair, catalog, budget=budget, load=asked.load(), machine=compared or Machine(reason="not asked"),
        models_dir=asked.config.models_dir,
    )  # fmt: skip
    for old, new in found.renamed:
        out.note(f"`{old}` is called `{new}` on the hub now")
    if plan.fit == "too big" and not force:
        raise refusal(pair.name, plan.devices, plan.suggestions)
    if plan.fit in ("tight", "partial", "unknown") and not force:
        out.note(
            f"`{pair.name}`: {plan.fit}, {plan.needed_text}" + (f" ({plan.reason})" if plan.reason else "")
        )
    return found


def fetch(order: Order, models_dir: Path, out: Output, *, wait: bool) -> None:
    """Download one pair with progress on stderr; Ctrl+C keeps what was fetched."""
    from localspec.download import pull
    from localspec.planning.scan import extra_dirs

    name = order.wanted.name
    with out.progress(f"pulling {name}", order.size_bytes, "bytes") as progress:
        teller = _Teller(out, progress)
        running = pull([order.unit], models_dir, extra_dirs=extra_dirs(), wait=wait)
        try:
            for event in running:
                teller.tell(event)
        except KeyboardInterrupt:
            out.note(f"what was fetched is kept; `localspec pull {name}` goes on with it")
            raise
        finally:
            running.close()
    if teller.stopped:
        out.note(f"`{name}` was paused or cancelled elsewhere; `localspec pull {name}` goes on with it")
        raise KeyboardInterrupt
    order.remember()


class _Teller:
    """Turns a download's events into a bar and lines on stderr."""

    def __init__(self, out: Output, progress: Progress) -> None:
        self._out, self._progress = out, progress
        self._done: dict[str, int] = {}
        self.stopped = False

    def tell(self, event: Event) -> None:
        from localspec import download as d

        if isinstance(event, d.Progress):
            self._done[str(event.file)] = event.done
            self._progress.update(sum(self._done.values()), f"pulling {event.file.path.rsplit('/', 1)[-1]}")
        elif isinstance(event, d.Checking):
            share = 100 * event.done // max(event.total, 1)
            self._progress.update(label=f"checking {event.path.name} {share} %")
        elif isinstance(event, d.Verified):
            self._done[str(event.file)] = size = event.path.stat().st_size
            self._out.note(f"{event.path.name}: {amount(size, 'bytes')}, SHA-256 right")
        elif isinstance(event, d.Notice):
            self._out.note(event.text)
        elif isinstance(event, d.Retrying):
            self._out.note(f"{event.reason}; next try in {event.in_s:.0f} s")
        elif isinstance(event, d.Waiting):
            owner = event.owner
            self._out.note(f"waiting: process {owner.pid} on {owner.host} downloads `{event.file.path}`")
        elif isinstance(event, d.Stopped):
            self.stopped = True


def _files(pair: Pair, models_dir: Path) -> list[Path]:
    """Where the files of a downloaded pair lie, under the names they were pinned with."""
    from localspec.download import Library
    from localspec.pairs import find_file

    found = (find_file(model, Library(models_dir)) for model in catalogue().pair(pair.name).files)
    return [path for path in found if path is not None]
