"""Run downloads: given units, or everything queued. The faces iterate the events; `cancel` is thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from localspec.download.control import Control, Policy, StopRequested
from localspec.download.events import Event, Failed, Finished, Stopped
from localspec.download.fetch_unit import fetch_unit
from localspec.download.library import Library
from localspec.download.queue import Queue
from localspec.download.units import Unit
from localspec.errors import LocalspecError


class Pull:
    """Running downloads: iterate once, in one thread; what was fetched survives any end."""

    def __init__(self, events: Callable[[threading.Event], Generator[Event, None, None]]) -> None:
        self._cancelled = threading.Event()
        self._events = events(self._cancelled)

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def __next__(self) -> Event:
        return next(self._events)

    def cancel(self) -> None:
        """Ask for the end from any thread; within a fraction of a second the stream ends with `Stopped`."""
        self._cancelled.set()

    def close(self) -> None:
        """Drop a suspended iteration, from the thread that iterates; what was fetched is kept."""
        self._events.close()


def pull(
    units: Sequence[Unit],
    models_dir: Path,
    *,
    extra_dirs: Sequence[Path] = (),
    policy: Policy | None = None,
    wait: bool = True,
) -> Pull:
    """Download units one after another; verified local files cause no request at all.

    A unit that is not complete yet is queued first and leaves the queue when it is; an error or a stop
    leaves it there.

    Args:
        models_dir: new files go to `<models_dir>/<owner>/<repo>/<path>`.
        extra_dirs: folders of other tools whose files are used in place.
        wait: when another process downloads a file of a unit, wait for it; else raise.

    Raises (while iterating):
        PermissionDeniedError: gated, no token, or a token without access.
        OutsideError: the network or a server failed, and retries did not help.
        ModelFileError: the content is not GGUF, or twice not what the hub lists.
        LocalspecError: no space, the disk refuses, or a file is busy and `wait` is False.
        UsageError: no such repository, revision or file.
    """
    queue, library = Queue(models_dir), Library(models_dir, extra_dirs)

    def events(cancelled: threading.Event) -> Generator[Event, None, None]:
        for unit in units:
            if not all(map(library.find, unit.files)):
                queue.add(unit)
        for unit in units:
            yield from _run(unit, queue, library, policy or Policy(), cancelled, wait=wait)
            if cancelled.is_set():
                return

    return Pull(events)


def run_queue(models_dir: Path, *, extra_dirs: Sequence[Path] = (), policy: Policy | None = None) -> Pull:
    """Download what is queued, also what is added meanwhile, until nothing is; `Failed` tells of errors."""
    queue, library = Queue(models_dir), Library(models_dir, extra_dirs)

    def events(cancelled: threading.Event) -> Generator[Event, None, None]:
        while entry := next((entry for entry in queue.entries() if entry.state == "queued"), None):
            try:
                yield from _run(entry.unit, queue, library, policy or Policy(), cancelled, wait=True)
            except LocalspecError as error:
                yield Failed(entry.unit, error.message, error.hint)
            if cancelled.is_set():
                return

    return Pull(events)


def _run(
    unit: Unit, queue: Queue, library: Library, policy: Policy, cancelled: threading.Event, *, wait: bool
) -> Iterator[Event]:
    def paused() -> bool:
        entry = queue.get(unit.name)
        if entry:
            return entry.state == "paused"
        # Off the queue: cancelled, unless another process has just completed the unit.
        return not all(map(library.find, unit.files))

    try:
        for event in fetch_unit(unit, library, policy, Control(cancelled, paused), wait=wait):
            if isinstance(event, Finished):
                queue.discard(unit.name)
            yield event
    except StopRequested:
        if queue.get(unit.name) is None:
            queue.sweep(unit)
        yield Stopped(unit)
    except LocalspecError as error:
        if queue.get(unit.name):
            queue.fail(unit.name, error)
        raise
