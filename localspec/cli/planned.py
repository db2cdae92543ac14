"""What the commands about models share: the catalogue with its pins, the question, how plans are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from localspec.cli.options import LOAD, Asked
from localspec.output import Output, table

if TYPE_CHECKING:
    from localspec.catalog import Catalog
    from localspec.engine.settings import LoadSettings
    from localspec.interfaces import PairFiles, SessionInfo, SessionLike
    from localspec.planning import Machine, PairPlan, Recording, RecordingWorker
    from localspec.planning.speeds import Rates
    from localspec.store.measurements import Measurements
    from localspec.worker import WorkerSession

GIB = 1 << 30
CONTEXT = tuple(option for option in LOAD if option.fills in ("load.n_ctx", "load.kv"))
MEMORY = tuple(option for option in LOAD if option.fills not in ("load.mmap", "load.mlock", "load.threads"))
"""Load options that change how much memory a pair takes, or of which device."""


def budget_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--budget`."""
    return click.option(
        "--budget",
        metavar="SIZE",
        help="Compare with a simulated card (24GiB, 24GB-card, 16GB-card, …) instead of this machine.",
    )(command)


def catalogue() -> Catalog:
    """The catalogue, with what was learnt when files were fetched."""
    from localspec.catalog import load_catalog, read_pins

    return load_catalog().with_pins(read_pins())


def machine(budget: str | None, asked: Asked) -> Machine | None:
    """This machine's devices; None where a simulated card takes their place."""
    from localspec.planning import host_machine, read_machine

    if budget is not None:
        return None
    rpc = asked.load().rpc
    return (None if rpc else host_machine()) or read_machine(rpc=rpc)


@contextmanager
def measurements() -> Iterator[Measurements]:
    """What earlier loads took."""
    from localspec.locations import locations
    from localspec.store.measurements import Measurements

    store = Measurements(locations().measurements_db)
    try:
        yield store
    finally:
        store.close()


def settled(files: PairFiles, asked: Asked, out: Output) -> LoadSettings:
    """What a pair is loaded with, once it is known to fit.

    Raises:
        DoesNotFitError: it does not, and `--force` was not given.
    """
    from localspec.planning import settle

    load = asked.load()
    found = settle(files, load, force=asked.force)
    if found.gpu_layers != load.gpu_layers:
        out.note(f"{found.gpu_layers} layers go to the GPU: more do not fit beside caches and draft")
    return found


def remember(files: PairFiles, info: SessionInfo, out: Output) -> None:
    """Keep what the load took for the next plan; a database that refuses is a warning."""
    from localspec.errors import LocalspecError
    from localspec.planning import remember_load

    try:
        with measurements() as kept:
            remember_load(files, info, kept)
    except LocalspecError as error:
        out.warn(error.message)


def recorded(files: PairFiles, session: SessionLike, out: Output) -> Recording:
    """The session, whose replies' speeds are kept for the next plan."""
    from localspec.planning import Recording

    return Recording(session, _keeper(files, session, out))


def recorded_worker(files: PairFiles, session: WorkerSession, out: Output) -> RecordingWorker:
    """The same of a session in a child process."""
    from localspec.planning import RecordingWorker

    return RecordingWorker(session, _keeper(files, session, out))


def _keeper(files: PairFiles, session: SessionLike, out: Output) -> Callable[[Rates], None]:
    """Stores rates; a database that refuses is a warning, once."""
    from localspec.errors import LocalspecError
    from localspec.planning import remember_rates

    warned: set[str] = set()

    def keep(rates: Rates) -> None:
        try:
            with measurements() as kept:
                remember_rates(files, session.info, rates, kept)
        except LocalspecError as error:
            if error.message not in warned:
                warned.add(error.message)
                out.warn(error.message)

    return keep


def plans_table(plans: Sequence[PairPlan]) -> str:
    """One line per pair."""
    rows = [
        (p.name, fit(p), p.needed_text, context(p.largest_ctx), gain(p), p.method, p.state, license_of(p))
        for p in plans
    ]
    headers = ["pair", "fit", "memory", "max ctx", "speed-up", "method", "state", "licence"]
    return table(headers, rows, right=[2, 3])


def fit(plan: PairPlan) -> str:
    """Mark and word; of a partial fit also the layers."""
    from localspec.planning import SYMBOLS

    layers = f" {plan.gpu_layers}/{plan.n_layers}" if plan.fit == "partial" else ""
    return f"{SYMBOLS[plan.fit]} {plan.fit}{layers}"


def context(tokens: int) -> str:
    """`32k`, or `–` for none."""
    return f"{tokens / 1024:.0f}k" if tokens else "–"


def gain(plan: PairPlan) -> str:
    """Measured speed with `✓`, else the published speed-up, marked as somebody else's measurement."""
    if plan.speed is not None:
        from localspec.planning.result import rate_text

        ratio = f" {plan.speed.speedup:.1f}×" if plan.speed.speedup else ""
        return f"✓{ratio} {rate_text(plan.speed.tps)} tok/s"
    if plan.gain is None:
        return "–"
    low, high = (f"{value:.1f}" for value in plan.gain)
    return f"~{low}×" if low == high else f"~{low}–{high}×"


def license_of(plan: PairPlan) -> str:
    """The licence, with a word where it has to be accepted first."""
    return (plan.license or "not stated") + (" (gated)" if plan.gated else "")


def question_text(plans: Sequence[PairPlan]) -> str:
    """What the plans were compared with, in one line."""
    first = plans[0]
    where = [device for device in first.devices if device.kind != "cpu"] or list(first.devices)
    names = ", ".join(
        f"{d.name}{' SIM' if d.simulated else ''} ({d.usable_bytes / GIB:.1f} GiB usable)" for d in where
    )
    kind = "RAM, no GPU: " if first.compared_with == "CPU" else ""
    contexts = {plan.n_ctx for plan in plans}
    n_ctx = str(first.n_ctx) if len(contexts) == 1 else f"{min(contexts)}–{max(contexts)}"
    return f"compared with {kind}{names} · context {n_ctx} · KV {'/'.join(dict.fromkeys(first.kv))}"
