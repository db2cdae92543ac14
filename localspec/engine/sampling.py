"""The target's distribution after the whole sampler chain, and the verdict on a drafted token.

A chain has state (penalties, DRY, grammar, XTC's draws), so rows are processed one at a time, in the
order tokens are emitted, and never past the first rejection.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.engine.leaders import Likeliest, Row, best, check_finite, likeliest
from localspec.engine.settings import SamplingSettings
from localspec.errors import EngineError


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities of the candidates that survived the chain; all other ids have none."""

    ids: NDArray[np.int32]
    """`[n]`, ascending."""
    p: NDArray[np.float64]
    """`[n]`, sums to 1."""

    @property
    def best(self) -> tuple[int, float]:
        """The likeliest id, the first of several, and its probability."""
        at = self.p.argmax()
        return int(self.ids[at]), float(self.p[at])

    def of(self, id: int) -> float:
        """Probability of one id."""
        at = int(self.ids.searchsorted(np.int32(id)))
        return float(self.p[at]) if at < len(self.ids) and self.ids[at] == id else 0.0

    def at(self, ids: NDArray[np.int32]) -> NDArray[np.float64]:
        """Probabilities of `[n]` ids."""
        at = self.ids.searchsorted(ids)
        at[at == len(self.ids)] = 0
        return np.where(self.ids[at] == ids, self.p[at], 0.0)

    def draw(self, u: float) -> int:
        """The id at quantile `u` ∈ [0, 1) of the cumulative distribution in id order."""
        cumulative = self.p.cumsum()
        at = int(cumulative.searchsorted(u * cumulative[-1], side="right"))
        return int(self.ids[min(at, len(self.ids) - 1)])

    def minus(self, other: Distribution) -> Distribution | None:
        """Normalised positive part of self - other, by id; None when nothing is left."""
        rest = np.maximum(self.p - other.at(self.ids), 0.0)
        total = rest.sum()
        return Distribution(self.ids, rest / total) if total > 0 else None


def point(id: int) -> Distribution:
    """All mass on one id."""
    return Distribution(np.array([id], np.int32), np.ones(1))


def judge(p: Distribution, x: int, q: Distribution | None, u: float, v: float) -> tuple[bool, int]:
    """Judge the drafted token `x`; returns (accepted, token to emit).

    Match (`q` is None, the draft was deterministic): t ~ p; accepted when t = x; emit t.
    Rejection (x ~ q): accept x with probability min(1, p(x)/q(x)); else emit t ~ (p - q)⁺ / Σ(p - q)⁺,
    or t ~ p when that is empty (then p = q and a rejection has probability 0).
    Both emit exactly p: Leviathan et al. 2023, Chen et al. 2023.

    Args:
        u, v: independent uniforms in [0, 1); match uses only u.
    """
    if q is None:
        token = p.draw(u)
        return token == x, token
    if u * q.of(x) < p.of(x):
        return True, x
    residual = p.minus(q)
    return False, (residual or p).draw(v)


def uniform(seed: int, position: int, lane: int) -> float:
    """A uniform in [0, 1) that depends only on its key (SplitMix64, Steele et al. 2014).

    Keyed by the absolute position, so the text of a seeded reply depends on no draft length.
    """
    mask = 0xFFFFFFFFFFFFFFFF
    z = (seed * 0x9E3779B97F4A7C15 + position * 0xD1B54A32D192ED03 + lane * 0x8CB92BA72F3D8DD7) & mask
    for _ in range(2):
        z = (z + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
    return (z >> 11) * 2.0**-53


class RowProcessor(Protocol):
    """Turns logits rows into what may be emitted; the native sampler chain or a test's table."""

    greedy: bool

    def best(self, row: Row) -> int:
        """The most likely id after the chain (temperature 0)."""

    def distribution(self, row: Row) -> Distribution:
        """The chain's distribution; consumes one draw of samplers that draw."""

    def accept(self, id: int) -> None:
        """`id` was emitted."""

    def close(self) -> None: ...


class Sampler:
    """The request's chain over one model's rows: bias and penalties, grammar, truncation, temperature.

    The grammar comes before truncation, so that p is the distribution of legal tokens. It is the slow
    part over a whole vocabulary, hence it looks at the most likely candidates first and at more only
    when too few of them are legal; the result is the same.
    """

    def __init__(
        self, settings: SamplingSettings, native: NativeSamplers, history: NDArray[np.int32] | None = None
    ) -> None:
        self.settings = settings
        self.greedy = settings.greedy
        self._native = native
        if history is not None and native.needs_history:
            for id in history.tolist():
                self._remember(id)

    def best(self, row: Row) -> int:
        logits = self._with_history(row) if self._native.history_length else row
        if self._native.grammar is not None:
            legal = self._legal(logits, 1)
            return int(legal.ids[legal.logits.argmax()])
        return best(logits)

    def distribution(self, row: Row) -> Distribution:
        if self.greedy:
            return point(self.best(row))
        logits = self._with_history(row) if self._native.history_length else row
        native, top_k = self._native, self.settings.top_k
        found = likeliest(logits, top_k) if native.grammar is None else self._legal(logits, top_k)
        ids, kept = native.truncation.apply(native.room, found.ids, found.logits)
        order = ids.argsort()
        p = kept.take(order).astype(np.float64)
        top = np.maximum.reduce(p) if len(p) else np.nan
        check_finite(float(top))
        p -= top
        np.exp(p, p)
        p /= np.add.reduce(p)
        return Distribution(ids.take(order), p)

    def accept(self, id: int) -> None:
        if self._native.needs_history:
            self._remember(id)
        if self._native.truncation_has_state:
            self._native.truncation.accept(id)
        if self._native.grammar is not None:
            self._native.grammar.accept(id)

    def close(self) -> None:
        self._native.close()

    def _remember(self, id: int) -> None:
        self._native.history.accept(id)
        self._native.touched.add(id)

    def _with_history(self, row: Row) -> Row:
        """The row after bias and penalties, which change the logits of known ids only."""
        native = self._native
        logits, touched = row.copy(), native.touched.ids
        ids, changed = native.history.apply(native.room, touched, row[touched])
        logits[ids] = changed
        return logits

    def _legal(self, logits: Row, wanted: int) -> Likeliest:
        """The `wanted` best legal candidates at least (all when 0), with their logits."""
        n_vocab, native = len(logits), self._native
        assert native.grammar is not None
        n = min(max(4 * wanted, 16), n_vocab) if wanted > 0 else n_vocab
        while True:
            found = likeliest(logits, n)
            ids, judged = native.grammar.apply(native.room, found.ids, found.logits)
            legal = np.isfinite(judged)
            if n == n_vocab or (wanted > 0 and legal.sum() >= wanted):
                break
            n = min(8 * n, n_vocab)
        if not legal.any():
            raise EngineError("the grammar allows no token here")
        return Likeliest(ids[legal], judged[legal])


class Touched:
    """Ids whose logits bias and penalties may change: biased ones, and all that ever occurred."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._seen: set[int] = set()
        self._ids = np.zeros(64, np.int32)
        for id in ids:
            self.add(id)

    def add(self, id: int) -> None:
        n = len(self._seen)
        self._seen.add(id)
        if len(self._seen) > n:
            if n == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._ids[n] = id

    @property
    def ids(self) -> NDArray[np.int32]:
        """`[n]` view, each once, in order of appearance; valid until the next `add`."""
        return self._ids[: len(self._seen)]


class NativeSamplers:
    """The native parts of one request's chain, owned together."""

    def __init__(
        self,
        room: Any,
        history: SamplerChain,
        truncation: SamplerChain,
        grammar: GrammarFilter | None,
        *,
        needs_history: bool,
        truncation_has_state: bool,
        touched: Touched,
    ) -> None:
        self.room = room
        """Memory that candidates pass through, the backend's own."""
        self.history = history
        self.history_length = history.length
        self.truncation = truncation
        self.grammar = grammar
        self.needs_history = needs_history
        self.truncation_has_state = truncation_has_state
        self.touched = touched

    def close(self) -> None:
        for part in (self.history, self.truncation, self.grammar):
            if part is not None:
                part.close()


class SamplerChain(Protocol):
    """Samplers applied in order."""

    length: int

    def apply(self, room: Any, ids: NDArray[np.integer], logits: Row, /) -> tuple[NDArray[np.int32], Row]: ...
    def accept(self, id: int) -> None: ...
    def close(self) -> None: ...


class GrammarFilter(Protocol):
    """Sets illegal candidates to -inf and follows what was emitted."""

    def apply(self, room: Any, ids: NDArray[np.integer], logits: Row, /) -> tuple[NDArray[np.int32], Row]: ...
    def accept(self, id: int) -> None: ...
    def close(self) -> None: ...


def log_probabilities(row: Row, id: int, n: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """(log-probability of `id`, the `n` most likely (id, log-probability)) under the raw `[n_vocab]` row."""
    top = float(row.max())
    check_finite(top)
    norm = top + math.log(float(np.exp(row - np.float32(top)).sum(dtype=np.float64)))
    if not n:
        return float(row[id]) - norm, ()
    found = likeliest(row, n)
    best = np.argsort(-found.logits, kind="stable")[:n]
    return float(row[id]) - norm, tuple((int(found.ids[j]), float(found.logits[j]) - norm) for j in best)
