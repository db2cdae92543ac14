"""Downloads as the picker shows them: the queue on disk, and one thread that works on it.

What is on disk is the truth, also where another process works on the same queue; progress is only
remembered here. Ending the program ends the thread: what was fetched stays, and the next start goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from localspec.download import (
    Checking,
    Entry,
    Event,
    Failed,
    Finished,
    Notice,
    Progress,
    Queue,
    RemoteFile,
    Retrying,
    Started,
    Stopped,
    Unit,
    Verified,
    Waiting,
    run_queue,
)

JOIN_S = 1.5
"""How long the way out waits for the thread; a killed download loses at most one chunk."""


class Run(Protocol):
    """A running queue, as `run_queue` starts it."""

    def __next__(self) -> Event: ...

    def cancel(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Transfer:
    """One unit as a person sees it."""

    name: str
    state: str
    """`queued`, `paused`, `failed`, `downloading`, `checking`, `waiting` or `retrying`."""
    done: int
    """Bytes on this disk, of all files of the unit."""
    total: int | None
    """None until the size of every file is known."""
    rate_bps: float = 0.0
    eta_s: float | None = None
    remark: str = ""
    """Why it failed, waits or tries again."""

    @property
    def share(self) -> float | None:
        return min(1.0, self.done / self.total) if self.total else None


@dataclass(slots=True)
class _Live:
    """What the thread last said of the unit it works on."""

    unit: Unit
    state: str = "downloading"
    remark: str = ""
    rate_bps: float = 0.0
    done: dict[RemoteFile, int] = field(default_factory=dict)
    total: dict[RemoteFile, int] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        self.remark = ""
        match event:
            case Progress():
                self.state, self.rate_bps = "downloading", event.rate_bps
                self.done[event.file], self.total[event.file] = event.done, event.total
            case Checking():
                self.state = "checking"
                self.remark = f"{event.path.name} {100 * event.done / max(1, event.total):.0f} %"
            case Waiting():
                self.state = "waiting"
                self.remark = f"process {event.owner.pid} on {event.owner.host} downloads {event.file.path}"
            case Retrying():
                self.state, self.remark = "retrying", f"in {event.in_s:.0f} s: {event.reason}"
            case Notice():
                self.remark = event.text
            case Verified() if event.file in self.total:
                self.done[event.file] = self.total[event.file]


class Downloads:
    """The queue of one models folder. Every method may be called from any thread."""

    def __init__(
        self,
        models_dir: Path,
        size_of: Callable[[str, str], int | None],
        *,
        extra_dirs: tuple[Path, ...] = (),
        start: Callable[[], Run] | None = None,
    ) -> None:
        """Args:
        size_of: repository and path -> bytes as listed, for what the thread has not begun yet.
        extra_dirs: folders of other tools, whose files are used in place.
        start: instead of `run_queue` on the folder.
        """
        self.queue = Queue(models_dir)
        self.finished: list[str] = []
        """Units completed since the program started, oldest first."""
        self._size_of = size_of
        self._start = start or (lambda: run_queue(models_dir, extra_dirs=extra_dirs))
        self._lock = threading.Lock()
        self._live: _Live | None = None
        self._run: Run | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, unit: Unit) -> None:
        """Queue a unit and begin."""
        self.queue.add(unit)
        self.wake()

    def resume(self, name: str) -> None:
        """Queue a paused or failed unit again and begin; raises as `Queue.resume`."""
        self.queue.resume(name)
        self.wake()

    def wake(self) -> None:
        """Work on what is queued, if anything is and nobody does yet."""
        with self._lock:
            busy = self._thread is not None
            if self._closed or busy or not any(e.state == "queued" for e in self.queue.entries()):
                return
            self._run = self._start()
            # A daemon: leaving the program must not wait for a server.
            self._thread = threading.Thread(
                target=self._work, args=(self._run,), name="downloads", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Stop; what was fetched and the queue stay on disk."""
        with self._lock:
            self._closed = True
            run, thread = self._run, self._thread
        if run is not None:
            run.cancel()
        if thread is not None:
            thread.join(JOIN_S)

    def transfers(self) -> tuple[Transfer, ...]:
        """Every unit that is not complete, oldest first."""
        with self._lock:
            live = self._live
            return tuple(self._transfer(entry, live) for entry in self.queue.entries())

    def transfer(self, name: str) -> Transfer | None:
        """One unit, if it is not complete."""
        return next((transfer for transfer in self.transfers() if transfer.name == name), None)

    def _transfer(self, entry: Entry, live: _Live | None) -> Transfer:
        unit = entry.unit
        current = live if live and live.unit.name == unit.name and entry.state == "queued" else None
        totals = [self._size(file, current) for file in unit.files]
        total = sum(size for size in totals if size) if all(totals) else None
        done = self.queue.fetched_bytes(unit)
        if current is None:
            remark = ". ".join(part for part in (entry.error, entry.hint) if part)
            return Transfer(unit.name, entry.state, done, total, remark=remark)
        # The thread counts bytes that the file system may not show yet.
        done = max(done, sum(current.done.values()))
        rate = current.rate_bps if current.state == "downloading" else 0.0
        eta = (total - done) / rate if total is not None and rate > 0 else None
        return Transfer(unit.name, current.state, done, total, rate, eta, current.remark)

    def _size(self, file: RemoteFile, live: _Live | None) -> int | None:
        told = live.total.get(file) if live else None
        return told or self._size_of(file.repo, file.path)

    def _work(self, run: Run) -> None:
        while True:
            try:
                self._take(next(run))
            except StopIteration:
                break
        with self._lock:
            self._live = self._run = self._thread = None
        self.wake()  # something may have been queued between the last look and the end

    def _take(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Started):
                self._live = _Live(event.unit)
            elif isinstance(event, Finished | Stopped | Failed):
                self._live = None
                if isinstance(event, Finished):
                    self.finished.append(event.unit.name)
            elif self._live is not None:
                self._live.take(event)
