"""What rounds cost here, learned from measured rounds: seconds by row count and context length.

Pure and deterministic given its observations: no clock is read here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_STEP = 0.15
"""Weight of a new observation in the running averages."""
_ABSURD = 1.1
"""No row of a decode costs more than this many decodes of one row."""
_OUTLIER = 3.0
"""An observation beyond this multiple of the average is another process's fault and is cut to it."""


@dataclass(slots=True)
class Average:
    """Exponentially decayed mean that starts as a plain mean."""

    value: float = 0.0
    count: int = 0
    step: float = _STEP

    def add(self, x: float) -> None:
        if self.count and self.value > 0:
            x = min(x, _OUTLIER * self.value)
        self.count += 1
        self.value += max(self.step, 1.0 / self.count) * (x - self.value)


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
        if bucket.seconds.value > _OUTLIER * seconds:
            bucket = self.buckets[rows] = _Bucket()  # nothing is that much too fast: forget the rest
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

    def _growth(self, start: float, end: float) -> float:
        """How much dearer a decode is at context `end` than at `start`; 1 until the context varied enough."""
        if self._var < 64.0**2 or self._mean_t <= 0:
            return 1.0
        slope = max(0.0, self._cov / self._var)
        at_start = self._mean_t + slope * (start - self._mean_n)
        at_end = self._mean_t + slope * (end - self._mean_n)
        floor = 0.1 * self._mean_t
        return float(max(at_end, floor) / max(at_start, floor))

    def known(self, rows: int) -> bool:
        return rows in self.buckets

    def seconds(self, rows: int, n_past: int) -> float:
        """Expected seconds; 0 when nothing was measured yet.

        Never much more than that many one-row decodes: a larger figure was another process's doing, and
        believing it would keep the row count from ever being measured again.
        """
        expected = self._expected(rows, n_past)
        if rows > 1 and 1 in self.buckets:
            return min(expected, _ABSURD * rows * self._at(1, n_past))
        return expected

    def _expected(self, rows: int, n_past: int) -> float:
        if rows in self.buckets:
            return self._at(rows, n_past)
        below = max((r for r in self.buckets if r < rows), default=None)
        above = min((r for r in self.buckets if r > rows), default=None)
        if below is None and above is None:
            return 0.0
        if below is None or above is None:
            nearest = below if above is None else above
            assert nearest is not None
            scale: float = (rows / nearest) ** 0.8 if above is None else 1.0
            return self._at(nearest, n_past) * scale
        low, high = self._at(below, n_past), self._at(above, n_past)
        share: float = (rows - below) / (above - below)
        return low + (high - low) * share

    def _at(self, rows: int, n_past: int) -> float:
        bucket = self.buckets[rows]
        return bucket.seconds.value * self._growth(bucket.n_past.value, n_past)


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
    """Chance that the target accepts a token: by confidence bucket, corrected by draft position.

    Decayed counts over a prior. Where confidence says little, acceptance still has a shape over positions
    (it rarely fails at once, or never reaches far); the correction is what was accepted at a position
    relative to what the buckets had promised there.
    """

    prior: tuple[float, ...]
    prior_weight: float = 4.0
    decay: float = 0.98
    _hits: list[float] = field(default_factory=list)
    _tries: list[float] = field(default_factory=list)
    _hits_at: list[float] = field(default_factory=list)
    _promised_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._hits = [0.0] * len(self.prior)
        self._tries = [0.0] * len(self.prior)

    def observe(self, bucket: int, position: int, accepted: bool) -> None:
        """A token of `bucket` at draft position `position` was judged."""
        while len(self._hits_at) <= position:
            self._hits_at.append(0.0)
            self._promised_at.append(0.0)
        self._hits_at[position] = self.decay * self._hits_at[position] + accepted
        self._promised_at[position] = self.decay * self._promised_at[position] + self._by_bucket(bucket)
        self._hits[bucket] = self.decay * self._hits[bucket] + accepted
        self._tries[bucket] = self.decay * self._tries[bucket] + 1.0

    def _by_bucket(self, bucket: int) -> float:
        weight = self.prior_weight
        return (self._hits[bucket] + weight * self.prior[bucket]) / (self._tries[bucket] + weight)

    def chance(self, bucket: int, position: int) -> float:
        """Acceptance to expect, given that everything before `position` is accepted."""
        return min(0.995, self._by_bucket(bucket) * self._correction(position))

    def _correction(self, position: int) -> float:
        if position >= len(self._hits_at):
            return 1.0
        weight = self.prior_weight / 2
        return (self._hits_at[position] + weight) / (self._promised_at[position] + weight)

    def usual(self, position: int) -> float:
        """Acceptance to expect at `position` before a confidence is known."""
        tries = sum(self._tries)
        weight = self.prior_weight
        mean = (sum(self._hits) + weight * self.prior[len(self.prior) // 2]) / (tries + weight)
        return min(0.995, mean * self._correction(position))
