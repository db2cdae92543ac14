"""How a running download is told to stop, and how it stays responsive while it waits."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from localspec.download.events import Retrying
from localspec.download.lock import FileLock
from localspec.transport import Unavailable

T = TypeVar("T")
TICK_S = 0.1
POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Policy:
    """Patience of a download."""

    connect_s: float = 10.0
    stall_s: float = 30.0
    """A connection that brings no byte for so long is given up."""
    attempts: int = 6
    """Failures in a row, without a new byte in between, before the error is raised."""
    backoff_s: float = 1.0
    """First wait; doubles up to `backoff_max_s`."""
    backoff_max_s: float = 30.0


class StopRequested(Exception):
    """Cancelled, or paused in the queue; caught where the unit ends."""


class Control:
    """What ends one unit's run, and what is to be done now and then while it lasts."""

    def __init__(self, cancelled: threading.Event, paused: Callable[[], bool]) -> None:
        """`cancelled` may be set from any thread; `paused` is asked at most every `POLL_S` seconds."""
        self._cancelled = cancelled
        self._paused = paused
        self._next_poll = 0.0
        self.lock: FileLock | None = None
        """Lock of the file at work: its holder shows with each poll that it is alive."""

    def check(self) -> None:
        """Cheap; to be called at least every `TICK_S` seconds.

        Raises:
            StopRequested: cancelled or paused.
        """
        if self._cancelled.is_set():
            raise StopRequested
        now = time.monotonic()
        if now >= self._next_poll:
            self._next_poll = now + POLL_S
            if self.lock:
                self.lock.beat()
            if self._paused():
                raise StopRequested

    def sleep(self, seconds: float) -> None:
        """Wait, but not beyond a stop."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.check()
            self._cancelled.wait(min(left, TICK_S))
        self.check()


class Backoff:
    """Counts failures in a row and says how long to wait."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.failures = 0

    def failed(self, error: Unavailable) -> Retrying:
        """One more failure; raises `error` itself when patience is at its end."""
        self.failures += 1
        if self.failures >= self._policy.attempts:
            raise error
        wait = min(self._policy.backoff_s * 2 ** (self.failures - 1), self._policy.backoff_max_s)
        return Retrying(error.message, error.retry_after_s or wait)


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


class Channel(Generic[T]):
    """A daemon thread that feeds the thread which iterates: blocking calls stay out of the latter's way.

    Iteration gives items, `None` for every `TICK_S` without one, and re-raises what the feeding function
    raised after the items it had put before.
    """

    def __init__(self, feed: Callable[[Callable[[T], None]], None], depth: int = 4) -> None:
        """`feed(put)` runs in the thread; `put` waits while `depth` items do, and ends it after `close`."""
        self._items: queue.Queue[T | _End] = queue.Queue(depth)
        self._closed = threading.Event()
        threading.Thread(target=self._run, args=(feed,), daemon=True).start()

    def __iter__(self) -> Iterator[T | None]:
        while True:
            try:
                item = self._items.get(timeout=TICK_S)
            except queue.Empty:
                yield None
                continue
            if not isinstance(item, _End):
                yield item
            elif item.error is None:
                return
            else:
                raise item.error

    def close(self) -> None:
        """Nothing more is wanted; the thread ends by itself, at the latest when its blocking call returns."""
        self._closed.set()

    def _put(self, item: T | _End) -> None:
        while not self._closed.is_set():
            try:
                return self._items.put(item, timeout=TICK_S)
            except queue.Full:
                continue
        raise StopRequested

    def _run(self, feed: Callable[[Callable[[T], None]], None]) -> None:
        """Boundary between threads: whatever `feed` raises is raised again where the items are read."""
        end = _End(None)
        try:
            feed(self._put)
        except StopRequested:
            return
        except BaseException as error:  # noqa: BLE001
            end = _End(error)
        with contextlib.suppress(StopRequested):
            self._put(end)


def call(function: Callable[[], T], control: Control) -> T:
    """The result of a blocking call, or `StopRequested` as soon as a stop is asked for."""
    channel: Channel[T] = Channel(lambda put: put(function()))
    try:
        for result in channel:
            control.check()
            if result is not None:
                return result
    finally:
        channel.close()
    raise AssertionError("the function returned nothing")
