"""A clock that moves only when told to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class FakeClock:
    """Call it for the time in seconds; pass it wherever a `now` or a `clock` is asked for."""

    time_s: float = 0.0

    def __call__(self) -> float:
        return self.time_s

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self.time_s += seconds
