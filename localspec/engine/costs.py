"""What rounds cost here, learned from measured rounds: seconds by row count and context length.

Pure and deterministic given its observations: no clock is read here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_STEP = 0.15
"""Weight of a new observation in the running averages."""
_OUTLIER = 3.0
"""An observation beyond this multiple of the average is another process's fault and is cut to it."""


@dataclass(slots=True)
class Average:
    """Exponentially decayed mean that starts as a plain mean."""

    value: float = 0.0
    count: int = 0

    def add(self, x: float) -> None:
        if self.count and self.value > 0:
            x = min(x, _OUTLIER * self.value)
        self.count += 1
        self.value += max(_STEP, 1.0 / self.count) * (x - self.value)


@dataclass(slots=True)
class _Bucket:
    seconds: Average = field(default_factory=Average)
    n_past: Average = field(default_factory=Average)


@dataclass(slots=True)
class VerifyCosts:
    """Seconds of a target decode by number of rows.

    Kernels have cliffs, so measured row counts stand for themselves and only gaps between them are
    interpolated. All of them grow with the context at the same relative rate, which is learned from
    one-row rounds (the growth is the attention's, and one-row rounds are never rare for long).
    """

    buckets: dict[int, _Bucket] = field(default_factory=dict)
    _mean_n: float = 0.0
    _mean_t: float = 0.0
    _var: float = 0.0
    _cov: float = 0.0
    _seen: int = 0

    def observe(self, rows: int, n_past: int, seconds: float) -> None:
        """One decode of `rows` rows at context length `n_past` took `seconds`."""
        bucket = self.buckets.setdefault(rows, _Bucket())
        bucket.seconds.add(seconds)
        bucket.n_past.add(float(n_past))
        if rows == 1:
            self._regress(float(n_past), min(seconds, _OUTLIER * bucket.seconds.value))

    def _regress(self, n: float, t: float) -> None:
        self._seen += 1
        step = max(0.02, 1.0 / self._seen)
        dn, dt = n - self._mean_n, t - self._mean_t
        self._mean_n += step * dn
        self._mean_t += step * dt
        self._var += step * (dn * (n - self._mean_n) - self._var)
        self._cov += step * (dn * (t - self._mean_t) - self._cov)

    @property
    def growth(self) -> float:
        """Relative growth of a decode's time per token of context; 0 until the context varied enough."""
        if self._var < 64.0**2 or self._mean_t <= 0:
            return 0.0
        return max(0.0, self._cov / self._var) / self._mean_t

    def known(self, rows: int) -> bool:
        return rows in self.buckets

    def seconds(self, rows: int, n_past: int) -> float:
        """Expected seconds; 0 when nothing was measured yet."""
        if rows in self.buckets:
            return self._at(rows, n_past)
        below = max((r for r in self.buckets if r < rows), default=None)
        above = min((r for r in self.buckets if r > rows), default=None)
        if below is None and above is None:
            return 0.0
        if below is None or above is None:
            nearest = below if above is None else above
            assert nearest is not None
            scale = (rows / nearest) ** (0.8 if above is None else 0.0)
            return self._at(nearest, n_past) * scale
        low, high = self._at(below, n_past), self._at(above, n_past)
        return low + (high - low) * (rows - below) / (above - below)

    def _at(self, rows: int, n_past: int) -> float:
        bucket = self.buckets[rows]
        shift = 1.0 + self.growth * (n_past - bucket.n_past.value)
        return bucket.seconds.value * max(shift, 0.1)


@dataclass(slots=True)
class DraftCosts:
    """A drafter's seconds per proposed token and per caught-up row."""

    per_token: Average = field(default_factory=Average)
    per_catchup_row: Average = field(default_factory=Average)

    def observe(self, tokens: int, draft_s: float, catchup_rows: int, catchup_s: float) -> None:
        # The catch-up decode also yields the first token's row, so it is part of the drafting.
        if tokens:
            self.per_token.add((draft_s + (catchup_s if catchup_rows <= 2 else 0.0)) / tokens)
        if catchup_rows > 2:
            self.per_catchup_row.add(catchup_s / catchup_rows)


@dataclass(slots=True)
class Acceptance:
    """Chance that the target accepts a token, by confidence bucket; decayed counts over a prior."""

    prior: tuple[float, ...]
    prior_weight: float = 4.0
    decay: float = 0.97
    _hits: list[float] = field(default_factory=list)
    _tries: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._hits = [0.0] * len(self.prior)
        self._tries = [0.0] * len(self.prior)

    def observe(self, bucket: int, accepted: bool) -> None:
        self._hits[bucket] = self.decay * self._hits[bucket] + accepted
        self._tries[bucket] = self.decay * self._tries[bucket] + 1.0

    def chance(self, bucket: int) -> float:
        weight = self.prior_weight
        return (self._hits[bucket] + weight * self.prior[bucket]) / (self._tries[bucket] + weight)

    def mean(self) -> float:
        """Acceptance over all buckets as they came."""
        tries = sum(self._tries)
        weight = self.prior_weight
        middle = self.prior[len(self.prior) // 2]
        return (sum(self._hits) + weight * middle) / (tries + weight)
