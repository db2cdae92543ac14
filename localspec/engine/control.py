"""What steers one reply from outside the loop: its options, its end, and a clock that skips the consumer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock

from localspec.engine.events import DoneReason


class Control:
    """How a reply is ended from outside: `cancel` from any thread, `stop` by the consumer of its tokens."""

    def __init__(
        self, on_cancel: Callable[[], None] | None = None, on_ended: Callable[[], None] | None = None
    ) -> None:
        self.cancelled = False
        self.stop_reason: DoneReason | None = None
        self._on_cancel = on_cancel
        self._on_ended = on_ended
        self._lock = RLock()

    def cancel(self) -> None:
        self.cancelled = True
        with self._lock:
            if self._on_cancel is not None:
                self._on_cancel()

    def retire(self) -> None:
        """The reply is over: a cancel that comes late must not stop the decodes of the next one."""
        with self._lock:
            self._on_cancel = None

    def acknowledge(self) -> None:
        """The loop saw the cancel; native calls that put the caches in order must run again."""
        if self.cancelled and self._on_ended is not None:
            self._on_ended()

    def stop(self, reason: DoneReason = "stop") -> None:
        """The token just yielded is the last one; call between two `next`."""
        self.stop_reason = reason


@dataclass(frozen=True, slots=True)
class Options:
    """What one reply asks of the loop."""

    max_tokens: int | None
    k_max: int
    seed: int
    eog: frozenset[int]
    rejection: bool = False
    """Judge sampled drafts by rejection instead of match."""
    logprobs: int | None = None
    require: bool = False
    """A drafter failure ends the reply instead of switching speculation off."""


@dataclass(slots=True)
class Clock:
    """Wall time without the time the consumer spends between events."""

    now: Callable[[], float]
    idle_s: float = 0.0
    _left_at: float | None = None

    def leave(self) -> None:
        self._left_at = self.now()

    def back(self) -> None:
        if self._left_at is not None:
            self.idle_s += self.now() - self._left_at
            self._left_at = None

    def busy(self) -> float:
        """Seconds of work so far; a consumer that never came back has cost none."""
        until = self.now() if self._left_at is None else self._left_at
        return until - self.idle_s
