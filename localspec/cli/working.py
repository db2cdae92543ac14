"""A pair in a child process for the length of a command, and what such commands tell about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from localspec.cli.options import Asked
from localspec.cli.planned import settled
from localspec.engine.events import Loading, Notice
from localspec.interfaces import PairFiles
from localspec.output import Output

if TYPE_CHECKING:
    from localspec.worker import WorkerSession


def start_worker(files: PairFiles, asked: Asked, out: Output) -> WorkerSession:
    """Begin to load a pair in a child; each file it reads and each notice is a line on stderr."""
    from localspec.worker import WorkerSession

    for warning in asked.config.warnings:
        out.warn(warning)
    return WorkerSession(files, settled(files, asked, out), on_event=_teller(out))


def _teller(out: Output) -> Callable[[Loading | Notice], None]:
    told: set[str] = set()

    def on_event(event: Loading | Notice) -> None:
        if isinstance(event, Notice):
            (out.warn if event.kind in ("alarm", "off") else out.note)(event.reason)
        elif event.what not in told:
            told.add(event.what)
            out.note(f"loading {event.what}")

    return on_event
