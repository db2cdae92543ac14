"""Runs a request and keeps what a comparison needs: ids, time per token, counts."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localspec.engine.events import Done, Event, Notice, Round, Token
from localspec.engine.settings import Request
from localspec.engine.stats import Summary
from localspec.errors import EngineError
from localspec.interfaces import SessionLike


@dataclass(slots=True)
class Run:
    """One finished reply."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    token_s: list[float] = field(default_factory=list)
    """Cumulated decode seconds after each token; a round's tokens share its end."""
    notices: list[Notice] = field(default_factory=list)
    tops: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    summary: Summary | None = None

    @property
    def counts(self) -> Summary:
        if self.summary is None:
            raise EngineError("the reply did not finish")
        return self.summary

    def tps(self, first: int = 0) -> float:
        """Decode rate in tokens per second from the round that begins at token `first` or behind it."""
        if len(self.token_s) <= first:
            return 0.0
        before = 0.0
        if first:
            before = self.token_s[first - 1]
            first = bisect_right(self.token_s, before, first)  # the rest of its round took no more time
        seconds = self.token_s[-1] - before
        return (len(self.token_s) - first) / seconds if seconds > 0 else 0.0


def run(session: SessionLike, request: Request, watch: Callable[[Event], None] | None = None) -> Run:
    """Produce one reply to the end.

    Raises:
        EngineError: the reply ended with an error.
    """
    result, elapsed = Run(), 0.0
    for event in session.reply(request):
        if watch is not None:
            watch(event)
        if isinstance(event, Token):
            result.ids.append(event.id)
            result.text += event.text
            result.tops.append(event.top)
        elif isinstance(event, Round):
            elapsed += event.wall_s
            result.token_s += [elapsed] * event.committed
        elif isinstance(event, Notice):
            result.notices.append(event)
        elif isinstance(event, Done):
            result.summary = event.summary
            if event.reason == "error":
                raise EngineError(event.error or "the reply failed")
        elif hasattr(event, "text"):
            result.text += event.text
    return result


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median, minimum and maximum of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs, None when one is a prefix of the other."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
