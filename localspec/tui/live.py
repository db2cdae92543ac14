"""The numbers of a session as they happen: rates, acceptance, prefill, context. No widgets, no engine.

Rates come from the seconds inside the events, so a slow screen never makes the model look slow; only the
curves over time use the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from localspec.engine.events import Done, Event, Prefill, Round, Token
from localspec.engine.stats import Stats, Summary
from localspec.tui.speed import SpeedModel, SpeedUp

RECENT_S = 2.0
"""Decode seconds over which the shown rate is averaged."""
HISTORY_S = 120


@dataclass(slots=True)
class Second:
    """What happened within one second of the curves."""

    tokens: int = 0
    seconds: float = 0.0
    tested: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Live:
    """Observe every event of every reply of a session."""

    clock: Callable[[], float]
    speed: SpeedModel = field(init=False)
    stats: Stats = field(default_factory=Stats)
    """Counts of the running or last reply."""
    total: Stats = field(default_factory=Stats)
    """Counts of all replies since the model was loaded."""
    summary: Summary | None = None
    """Of the last finished reply."""
    prefill: Prefill | None = None
    n_past: int = 0
    tokens: int = 0
    asked_at: float = 0.0
    first_token_s: float | None = None
    curve: dict[int, Second] = field(default_factory=dict)
    """By whole second of the clock."""
    _recent: deque[tuple[int, float]] = field(default_factory=deque)
    _recent_s: float = 0.0

    def __post_init__(self) -> None:
        self.speed = SpeedModel(self.clock)

    def begin_chat(self) -> None:
        """Another chat is shown: nothing of it was read yet, and no reply of it ran."""
        self.begin_reply()
        self.n_past = 0

    def begin_reply(self) -> None:
        self.stats = Stats()
        self.summary = self.prefill = self.first_token_s = None
        self.tokens = 0
        self.asked_at = self.clock()
        self._recent.clear()
        self._recent_s = 0.0
        self.speed.begin_reply()

    def observe(self, event: Event) -> None:
        """Count an event of the running reply."""
        match event:
            case Prefill():
                self.prefill = event
                self.n_past = event.done
            case Token():
                self.tokens += 1
                if self.first_token_s is None:
                    self.first_token_s = self.clock() - self.asked_at
            case Round():
                self._observe_round(event)
            case Done():
                self.summary = event.summary
                if event.summary.first_token_s is not None:
                    self.first_token_s = event.summary.first_token_s

    def _observe_round(self, r: Round) -> None:
        self.n_past = r.n_past
        for stats in (self.stats, self.total):
            stats.observe(r)
        self.speed.observe(r)
        self._recent.append((r.committed, r.wall_s))
        self._recent_s += r.wall_s
        while len(self._recent) > 1 and self._recent_s - self._recent[0][1] > RECENT_S:
            self._recent_s -= self._recent.popleft()[1]
        now = int(self.clock())
        second = self.curve.setdefault(now, Second())
        second.tokens += r.committed
        second.seconds += r.wall_s
        second.tested += r.tested
        second.accepted += r.accepted
        for old in [at for at in self.curve if at < now - HISTORY_S]:
            del self.curve[old]

    @property
    def tps(self) -> float | None:
        """Tokens per second now, or of the whole reply once it has ended."""
        if self.summary is not None:
            return self.summary.decode_tps
        return sum(n for n, _ in self._recent) / self._recent_s if self._recent_s > 0 else None

    @property
    def acceptance(self) -> float | None:
        """Accepted / tested of the running or last reply."""
        return self.stats.accepted / self.stats.tested if self.stats.tested else None

    def speedup(self) -> SpeedUp | None:
        return self.speed.current()

    def rate_curve(self, seconds: int) -> list[float]:
        """Tokens per decode second of each of the last seconds, 0 where nothing was decoded."""
        return [s.tokens / s.seconds if s.seconds > 0 else 0.0 for s in self._last(seconds)]

    def acceptance_curve(self, seconds: int) -> list[float]:
        return [s.accepted / s.tested if s.tested else 0.0 for s in self._last(seconds)]

    def _last(self, seconds: int) -> list[Second]:
        now = int(self.clock())
        return [self.curve.get(at, Second()) for at in range(now - seconds + 1, now + 1)]
