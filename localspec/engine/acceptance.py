"""How likely the target accepts a drafted token: by the drafter's confidence, corrected by position.

Pure and deterministic given its observations.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import isfinite

_TOPS = (0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.86, 0.9, 0.93, 0.96, 0.99, 1.01)
"""Upper ends of the confidence buckets: finer towards certainty, where it decides how long to draft."""
PRIOR = (0.1, 0.2, 0.35, 0.45, 0.6, 0.7, 0.78, 0.84, 0.88, 0.92, 0.95, 0.97)
"""Acceptance to expect of each bucket before anything was seen: a little below the drafter's own word."""
_MOST, _LEAST = 0.995, 0.002
_LONG = 0.999
_NEWEST = 12
_TURNED = 0.15
"""What earlier evidence still counts when the text has turned."""


def bucket_of(confidence: float) -> int:
    """Index of a confidence in the tables; what is no number counts as none at all."""
    return min(bisect_right(_TOPS, confidence), len(_TOPS) - 1) if isfinite(confidence) else 0


@dataclass(slots=True)
class _Trust:
    """What confidence is worth here: a line through (prior of the bucket, accepted or not).

    A drafter that knows when it is right keeps the slope of the prior; of one whose confidence says nothing
    the slope goes to 0, and every bucket to the same acceptance. Decayed least squares.
    """

    decay: float
    weight: float
    """Observations that the prior's own line is worth."""
    n: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    long_n: float = 0.0
    long_y: float = 0.0
    """What was usual for long: new evidence starts from there, not from the prior."""

    def observe(self, prior: float, accepted: bool) -> None:
        keep = self.decay
        self.long_n = _LONG * self.long_n + 1.0
        self.long_y = _LONG * self.long_y + accepted
        self.n = keep * self.n + 1.0
        self.x = keep * self.x + prior
        self.y = keep * self.y + accepted
        self.xx = keep * self.xx + prior * prior
        self.xy = keep * self.xy + prior * accepted

    def fade(self, share: float) -> None:
        self.n, self.x, self.y, self.xx, self.xy = (
            share * value for value in (self.n, self.x, self.y, self.xx, self.xy)
        )

    def line(self) -> tuple[float, float, float]:
        """(mean prior, mean acceptance, slope) of what was seen."""
        if not self.n:
            return 0.0, 0.0, 1.0
        mean_x = self.x / self.n
        spread = self.xx - self.x * mean_x
        # Until confidences varied, the slope stays near the prior's.
        ridge = self.weight * 0.05
        slope = (self.xy - self.y * mean_x + ridge) / (spread + ridge)
        anchor = (self.long_y + self.weight * mean_x) / (self.long_n + self.weight)
        mean_y = (self.y + self.weight * anchor) / (self.n + self.weight)
        return mean_x, mean_y, min(max(slope, 0.0), 1.2)


@dataclass(slots=True)
class Acceptance:
    """Chance that the target accepts a token, learned from judged ones.

    Three layers, each drawn towards the one before it where little was seen: what confidence is worth
    altogether, the bucket's own record, and the shape over positions (acceptance rarely fails at once, or
    never reaches far): what was accepted at a position relative to what the buckets had promised there.
    """

    prior: tuple[float, ...] = PRIOR
    bucket_weight: float = 8.0
    position_weight: float = 6.0
    decay: float = 0.995
    _trust: _Trust = field(default_factory=lambda: _Trust(0.998, 4.0))
    _surprise: float = 0.0
    _expected_spread: float = 0.25
    _hits: list[float] = field(default_factory=list)
    _tries: list[float] = field(default_factory=list)
    _hits_at: list[float] = field(default_factory=list)
    _promised_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._hits = [0.0] * len(self.prior)
        self._tries = [0.0] * len(self.prior)

    @property
    def seen(self) -> float:
        """How many judged tokens the estimate rests on, old ones counting less."""
        return self._trust.n

    def observe(self, bucket: int, position: int, accepted: bool) -> None:
        """A token of `bucket` at draft position `position` was judged."""
        while len(self._hits_at) <= position:
            self._hits_at.append(0.0)
            self._promised_at.append(0.0)
        promised = self._by_bucket(bucket)
        self._watch(min(_MOST, promised * self._correction(position)), accepted)
        self._hits_at[position] = self.decay * self._hits_at[position] + accepted
        self._promised_at[position] = self.decay * self._promised_at[position] + promised
        for counts in (self._hits, self._tries):
            counts[:] = [self.decay * value for value in counts]
        self._hits[bucket] += accepted
        self._tries[bucket] += 1.0
        self._trust.observe(self.prior[bucket], accepted)

    def _watch(self, expected: float, accepted: bool) -> None:
        """Notice that the text has turned: the newest outcomes are all too different from what was expected.

        The mean of the newest surprises has a variance of about expected · (1 - expected) / (2 · _NEWEST);
        beyond three standard deviations it is no chance.
        """
        step = 1.0 / _NEWEST
        self._surprise += step * (accepted - expected - self._surprise)
        self._expected_spread += step * (max(expected * (1.0 - expected), 0.18) - self._expected_spread)
        if self._surprise**2 > 10.0 * self._expected_spread * step / (2.0 - step):
            self._surprise = 0.0
            self.fade(_TURNED)

    def fade(self, share: float) -> None:
        """Let everything seen so far count `share` of what it did: the text has turned."""
        self._trust.fade(share)
        for counts in (self._hits, self._tries, self._hits_at, self._promised_at):
            counts[:] = [share * value for value in counts]

    def _by_bucket(self, bucket: int) -> float:
        mean_x, mean_y, slope = self._trust.line()
        expected = min(max(mean_y + slope * (self.prior[bucket] - mean_x), _LEAST), _MOST)
        weight = self.bucket_weight
        return (self._hits[bucket] + weight * expected) / (self._tries[bucket] + weight)

    def chance(self, bucket: int, position: int) -> float:
        """Acceptance to expect, given that everything before `position` is accepted."""
        return min(_MOST, self._by_bucket(bucket) * self._correction(position))

    def _correction(self, position: int) -> float:
        """Relative to the bucket's promise; drawn towards the position before, and so on to the first."""
        weight, correction = self.position_weight, 1.0
        for hits, promised in zip(self._hits_at[: position + 1], self._promised_at, strict=False):
            correction = (hits + weight * correction) / (promised + weight)
        return correction

    def usual(self, k: int, hope: float = 0.0) -> list[float]:
        """Acceptance to expect at positions 0…k - 1 before a confidence is known.

        Args:
            hope: standard errors of the mean to add: what it may well be yet.
        """
        n = self._trust.n + self._trust.weight
        mean = self._trust.line()[1] if self._trust.n else self.prior[len(self.prior) // 2]
        if hope:  # the upper end of the interval of Agresti and Coull (1998)
            mean = (mean * n + hope**2 / 2) / (n + hope**2)
            mean += hope * (mean * (1.0 - mean) / (n + hope**2)) ** 0.5
        mean = min(mean, _MOST)
        weight, correction, out = self.position_weight, 1.0, []
        for position in range(k):
            if position < len(self._hits_at):
                hits, promised = self._hits_at[position], self._promised_at[position]
                correction = (hits + weight * correction) / (promised + weight)
            out.append(min(_MOST, mean * correction))
        return out
