"""What rounds cost here, learned from measured rounds: seconds by row count and context length.

Pure and deterministic given its observations: no clock is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_STEP = 0.15
"""Weight of a new observation in the running averages."""
_ABSURD = 1.1
"""No row of a decode costs more than this many decodes of one row."""
_OUTLIER = 3.0
"""An observation beyond this multiple of the average is another process's fault and is cut to it."""
_USUAL_ROWS = 17
"""Row counts priced at once: a round's choice looks at all of them."""
_SAME = 0.03
"""Row counts whose prices differ by less than this share one kernel: they count as one bucket."""


@dataclass(slots=True)
class Average:
    """Exponentially decayed mean of a measurement, that starts as a plain mean and cuts outliers."""

    value: float = 0.0
    count: int = 0
    step: float = _STEP
    outlier: float = _OUTLIER
    """Multiple of the mean that a new value is cut to; infinite for what no other process can disturb."""

    def add(self, x: float) -> None:
        if self.count and self.value > 0:
            x = min(x, self.outlier * self.value)
        self.count += 1
        self.value += max(self.step, 1.0 / self.count) * (x - self.value)


@dataclass(slots=True)
class Rate:
    """Tokens and seconds of rounds, decayed alike: how fast they are together.

    Tokens are never cut, or rare long drafts, all accepted, would hardly count. Seconds are, where a round
    was far slower than its tokens usually are.
    """

    step: float
    tokens: float = 0.0
    seconds: float = 0.0
    count: int = 0

    def add(self, tokens: int, seconds: float) -> None:
        if self.tokens > 0 and self.seconds > 0:
            usual = self.seconds / self.tokens * max(tokens, self.tokens)
            seconds = min(seconds, _OUTLIER * usual)
        self.count += 1
        step = max(self.step, 1.0 / self.count)
        self.tokens += step * (tokens - self.tokens)
        self.seconds += step * (seconds - self.seconds)

    @property
    def value(self) -> float:
        """Tokens per second; 0 before the first round."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


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
    _priced: list[float] = field(default_factory=list)
    """Prices of 1, 2, … rows behind `_priced_at` cells; emptied by what changes them."""
    _priced_at: int = -1

    def observe(self, rows: int, n_past: int, seconds: float) -> None:
        """One decode of `rows` rows at context length `n_past` took `seconds`."""
        self._priced.clear()
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
        """Expected seconds of a decode of `rows` rows; 0 when nothing was measured yet.

        Never much more than that many one-row decodes: a larger figure was another process's doing, and
        believing it would keep the row count from ever being measured again.
        """
        if n_past != self._priced_at or rows > len(self._priced):
            self._priced, self._priced_at = self._prices(max(rows, _USUAL_ROWS), n_past), n_past
        return self._priced[rows - 1]

    def _prices(self, most: int, n_past: int) -> list[float]:
        known = sorted(self.buckets)
        if not known:
            return [0.0] * most
        measured = [self._at(rows, n_past) for rows in known]
        if known[0] == 1:
            one = measured[0]
            measured = [
                one,
                *(min(s, _ABSURD * r * one) for r, s in zip(known[1:], measured[1:], strict=True)),
            ]
        return _between(known, _in_buckets(measured), most)

    def _at(self, rows: int, n_past: int) -> float:
        bucket = self.buckets[rows]
        return bucket.seconds.value * self._growth(bucket.n_past.value, n_past)


def _in_buckets(seconds: list[float]) -> list[float]:
    """One price for what differs by noise only, and never more than a larger row count's."""
    out, edge = list(seconds), seconds[-1]
    for i in range(len(out) - 2, -1, -1):
        if out[i] < (1.0 - _SAME) * edge:
            edge = out[i]
        out[i] = edge
    return out


def _between(known: list[int], seconds: list[float], most: int) -> list[float]:
    """Seconds of 1…`most` rows: straight lines between known row counts, flat below and 0.8th power above."""
    out, i = [], 0
    for rows in range(1, most + 1):
        while i < len(known) and known[i] < rows:
            i += 1
        if i == len(known):
            out.append(seconds[-1] * float(rows / known[-1]) ** 0.8)
        elif known[i] == rows or i == 0:
            out.append(seconds[i])
        else:
            share = (rows - known[i - 1]) / (known[i] - known[i - 1])
            out.append(seconds[i - 1] + (seconds[i] - seconds[i - 1]) * share)
    return out


@dataclass(slots=True)
class DraftCosts:
    """A drafter's seconds: per pass, per proposed token, per caught-up row.

    Drafters that decode token by token cost by the token, those that propose a block at once by the pass.
    Which it is, is measured: a line through (tokens, seconds), drawn towards "by the token" until the number
    of tokens varied.
    """

    per_catchup_row: Average = field(default_factory=Average)
    _seen: int = 0
    _mean_n: float = 0.0
    _mean_t: float = 0.0
    _var: float = 0.0
    _cov: float = 0.0

    def observe(self, tokens: int, draft_s: float, catchup_rows: int, catchup_s: float) -> None:
        """One proposal of `tokens` tokens."""
        if catchup_rows > 2:
            self.per_catchup_row.add(catchup_s / catchup_rows)
        else:  # the decode that catches up also yields the first token's row: it is part of the drafting
            draft_s += catchup_s
        if not tokens:
            return
        if self._seen and self._mean_t > 0:
            draft_s = min(draft_s, _OUTLIER * self._mean_t * max(1.0, tokens / self._mean_n))
        self._seen += 1
        step = max(0.05, 1.0 / self._seen)
        dn, dt = tokens - self._mean_n, draft_s - self._mean_t
        self._mean_n += step * dn
        self._mean_t += step * dt
        self._var += step * (dn * (tokens - self._mean_n) - self._var)
        self._cov += step * (dn * (draft_s - self._mean_t) - self._cov)

    @property
    def known(self) -> int:
        """Proposals measured so far."""
        return self._seen

    def shape(self) -> tuple[float, float]:
        """(seconds per pass, seconds per token), neither negative."""
        if not self._seen:
            return 0.0, 0.0
        by_token = self._mean_t / self._mean_n
        ridge = 0.5 / self._seen + 0.02
        slope = (self._cov + ridge * by_token) / (self._var + ridge)
        slope = min(max(slope, 0.0), by_token)
        return self._mean_t - slope * self._mean_n, slope

    def seconds(self, tokens: int) -> float:
        """Expected seconds of a proposal of `tokens` tokens; 0 for none."""
        per_pass, per_token = self.shape()
        return per_pass + per_token * tokens if tokens else 0.0


@dataclass(slots=True)
class UndoCosts:
    """Seconds of a round outside its decodes: of plain ones, and of those with drafts.

    What a target that cannot drop cells spends on saving its state belongs to every round with drafts, and
    on replaying it to those with a rejection.
    """

    plain: Average = field(default_factory=Average)
    kept: Average = field(default_factory=Average)
    dropped: Average = field(default_factory=Average)

    def observe(self, drafted: int, accepted: int, seconds: float) -> None:
        chosen = self.plain if not drafted else self.dropped if accepted < drafted else self.kept
        chosen.add(seconds)

    def seconds(self, reach: float) -> float:
        """Expected for a round whose drafts are all accepted with chance `reach`."""
        kept = (self.kept if self.kept.count else self.plain).value
        dropped = self.dropped.value if self.dropped.count else kept
        return reach * kept + (1.0 - reach) * dropped


def round_costs(
    verify: Sequence[float], chances: Sequence[float], draft: DraftCosts | None, undo: UndoCosts
) -> list[float]:
    """Seconds of a round by drafted tokens, 0…len(chances).

    Args:
        verify: seconds of decodes of 1…len(chances) + 1 rows.
        chances: of acceptance, by position.
        draft: what proposing costs; None = nothing, or spent already.
    """
    per_pass, per_token = draft.shape() if draft is not None else (0.0, 0.0)
    costs, reach = [verify[0] + undo.plain.value], 1.0
    for k, chance in enumerate(chances, 1):
        reach *= chance
        costs.append(verify[k] + per_pass + k * per_token + undo.seconds(reach))
    return costs
