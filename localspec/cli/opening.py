"""Load a pair for the length of a command, with its progress and notices on stderr."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localspec.cli.options import Asked
from localspec.cli.planned import remember, settled
from localspec.engine.events import Event, Loading, Notice
from localspec.interfaces import PairFiles
from localspec.output import Output

if TYPE_CHECKING:
    from localspec.session import Session


@contextmanager
def opened(files: PairFiles, asked: Asked, out: Output) -> Generator[Session, None, None]:
    """The loaded pair; closed when the block ends, however it ends."""
    from localspec.session import open_session

    for warning in asked.config.warnings:
        out.warn(warning)
    load = settled(files, asked, out)
    notices: list[Notice] = []
    with out.progress(f"loading {files.name}", 1.0) as progress:

        def notify(event: Event) -> None:
            if isinstance(event, Loading):
                progress.update(event.fraction, f"loading {event.what}")
            elif isinstance(event, Notice):
                notices.append(event)

        session = open_session(files, load, notify)
    try:
        remember(files, session.info, out)
        for notice in notices:
            (out.warn if notice.kind in ("alarm", "off") else out.note)(notice.reason)
        yield session
    finally:
        session.close()
