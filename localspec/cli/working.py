"""A pair in a child process for the length of a command, and what such commands tell about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from localspec.cli.options import Asked
from localspec.engine.events import Loading
from localspec.interfaces import PairFiles
from localspec.output import Output

if TYPE_CHECKING:
    from localspec.worker import WorkerSession


def start_worker(files: PairFiles, asked: Asked, out: Output) -> WorkerSession:
    """Begin to load a pair in a child; each file that it reads is a line on stderr."""
    from localspec.worker import WorkerSession

    for warning in asked.config.warnings:
        out.warn(warning)
    return WorkerSession(files, asked.load(), on_event=_once_each(out.note))


def _once_each(note: Callable[[str], None]) -> Callable[[Loading], None]:
    told: set[str] = set()

    def on_event(event: Loading) -> None:
        if event.what not in told:
            told.add(event.what)
            note(f"loading {event.what}")

    return on_event
