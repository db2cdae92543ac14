"""When to draw next while text arrives: about ten times a second, less often where drawing is dear."""

from __future__ import annotations

from collections.abc import Callable

BASE_S = 0.1
LONGEST_S = 0.5
SHARE = 8
"""Drawing may take one part in this many of the time, unless that makes the screen lag."""


class Pacer:
    """Ask `wait_s` before drawing, tell `spent` after."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_at = 0.0
        self.interval_s = BASE_S

    def wait_s(self) -> float:
        """Seconds until the next flush is due; 0 after a pause, so a first token shows at once."""
        return max(0.0, self._next_at - self._clock())

    def spent(self, seconds: float) -> None:
        """A flush took this long, repaint included."""
        self.interval_s = min(LONGEST_S, max(BASE_S, SHARE * seconds))
        self._next_at = self._clock() + self.interval_s
