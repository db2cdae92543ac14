"""The target's distribution after the whole sampler chain, and the verdict on a drafted token.

A chain has state (penalties, DRY, grammar, XTC's draws), so rows are processed one at a time, in the
order tokens are emitted, and never past the first rejection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.engine.settings import SamplingSettings
from localspec.errors import EngineError

Row = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Probabilities of the candidates that survived the chain; all other ids have none."""

    ids: NDArray[np.int32]
    """`[n]`, ascending."""
    p: NDArray[np.float64]
    """`[n]`, sums to 1."""

    def of(self, id: int) -> float:
        """Probability of one id."""
        at = int(np.searchsorted(self.ids, id))
        return float(self.p[at]) if at < len(self.ids) and self.ids[at] == id else 0.0

    def draw(self, u: float) -> int:
        """The id at quantile `u` ∈ [0, 1) of the cumulative distribution in id order."""
        cumulative = np.cumsum(self.p)
        at = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
        return int(self.ids[min(at, len(self.ids) - 1)])

    def minus(self, other: Distribution) -> Distribution | None:
        """Normalised positive part of self - other, by id; None when nothing is left."""
        at = np.searchsorted(other.ids, self.ids)
        inside = np.minimum(at, len(other.ids) - 1)
        q = np.where(other.ids[inside] == self.ids, other.p[inside], 0.0)
        rest = np.maximum(self.p - q, 0.0)
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

    @property
    def greedy(self) -> bool: ...

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
        self._native = native
        if history is not None and native.needs_history:
            for id in history.tolist():
                native.history.accept(id)

    @property
    def greedy(self) -> bool:
        return self.settings.greedy

    def best(self, row: Row) -> int:
        logits = self._with_history(row)
        if self._native.grammar is not None:
            ids, kept = self._legal(logits, 1)
            return int(ids[int(kept.argmax())])
        id = int(logits.argmax())
        check_finite(float(logits[id]))
        return id

    def distribution(self, row: Row) -> Distribution:
        if self.greedy:
            return point(self.best(row))
        check_finite(float(row.max()))
        logits = self._with_history(row)
        candidates, top_k = self._native.candidates, self.settings.top_k
        if self._native.grammar is not None:
            ids, kept = self._legal(logits, top_k)
            candidates.fill(kept, ids)
        elif 0 < top_k < len(logits):
            ids = likeliest(logits, top_k)
            candidates.fill(logits[ids], ids)
        else:
            candidates.fill(logits)
        self._native.truncation.apply(candidates)
        return _softmax(candidates.view["id"], candidates.view["logit"])

    def accept(self, id: int) -> None:
        if self._native.needs_history:
            self._native.history.accept(id)
        if self._native.truncation_has_state:
            self._native.truncation.accept(id)
        if self._native.grammar is not None:
            self._native.grammar.accept(id)

    def close(self) -> None:
        self._native.close()

    def _with_history(self, row: Row) -> Row:
        if not self._native.history_length:
            return row
        candidates = self._native.candidates
        candidates.fill(row)
        self._native.history.apply(candidates)
        logits = np.empty_like(row)
        logits[candidates.view["id"]] = candidates.view["logit"]
        return logits

    def _legal(self, logits: Row, wanted: int) -> tuple[NDArray[np.int32], Row]:
        """The `wanted` best legal candidates at least (all when 0), with their logits."""
        n_vocab, grammar = len(logits), self._native.grammar
        assert grammar is not None
        n = min(max(4 * wanted, 16), n_vocab) if wanted > 0 else n_vocab
        while True:
            ids = likeliest(logits, n)
            candidates = self._native.candidates
            candidates.fill(logits[ids], ids)
            grammar.apply(candidates)
            view = candidates.view
            legal = np.isfinite(view["logit"])
            if n == n_vocab or (wanted > 0 and legal.sum() >= wanted):
                break
            n = min(8 * n, n_vocab)
        if not legal.any():
            raise EngineError("the grammar allows no token here")
        return view["id"][legal].copy(), view["logit"][legal].copy()


class NativeSamplers:
    """The native parts of one request's chain, owned together."""

    def __init__(
        self,
        candidates: CandidateArray,
        history: SamplerChain,
        truncation: SamplerChain,
        grammar: GrammarFilter | None,
        *,
        needs_history: bool,
        truncation_has_state: bool,
    ) -> None:
        self.candidates = candidates
        self.history = history
        self.history_length = history.length
        self.truncation = truncation
        self.grammar = grammar
        self.needs_history = needs_history
        self.truncation_has_state = truncation_has_state

    def close(self) -> None:
        for part in (self.history, self.truncation, self.grammar):
            if part is not None:
                part.close()


class CandidateArray(Protocol):
    """An array of (id, logit) that samplers permute and shrink in place."""

    def fill(self, logits: Row, ids: NDArray[np.int32] | None = None) -> None: ...

    @property
    def view(self) -> NDArray[np.void]: ...


class SamplerChain(Protocol):
    """Samplers applied in order."""

    length: int

    def apply(self, candidates: Any, /) -> None: ...
    def accept(self, id: int) -> None: ...
    def close(self) -> None: ...


class GrammarFilter(Protocol):
    """Sets illegal candidates to -inf and follows what was emitted."""

    def apply(self, candidates: Any, /) -> None: ...
    def accept(self, id: int) -> None: ...
    def close(self) -> None: ...


_GROUP = 64
"""Ids that share one leader."""
_LARGE = 16384
"""Rows from this length on are looked at through their leaders."""


def _leaders(row: Row) -> Row:
    """The largest logit of each group of ids, a few thousand instead of a whole vocabulary.

    Group c holds the ids c, c + width, c + 2 width, …; what is left over at the end is one more group.
    """
    whole = len(row) // _GROUP * _GROUP
    leaders: Row = row[:whole].reshape(_GROUP, -1).max(axis=0)
    return leaders if whole == len(row) else np.append(leaders, row[whole:].max())


def _members(groups: NDArray[np.intp], length: int) -> NDArray[np.intp]:
    """Ids of these groups (ascending group numbers), ascending."""
    width = length // _GROUP
    ids: NDArray[np.intp] = (np.arange(_GROUP)[:, None] * width + groups[groups < width]).ravel()
    return ids if groups[-1] < width else np.append(ids, np.arange(width * _GROUP, length))


def likeliest(row: Row, n: int) -> NDArray[np.int32]:
    """Ids of the `n` largest logits, ascending, and of those equal to the last of them.

    The n-th largest leader is a bound: n logits reach it, so the n largest do, and they lie in groups whose
    leader does.
    """
    length = len(row)
    if n >= length:
        return np.arange(length, dtype=np.int32)
    if length < _LARGE or n > length // _GROUP:
        bound = np.partition(row, length - n)[length - n]
        return np.flatnonzero(row >= bound).astype(np.int32)
    leaders = _leaders(row)
    bound = np.partition(leaders, len(leaders) - n)[len(leaders) - n]
    ids = _members(np.flatnonzero(leaders >= bound), length)
    logits = row[ids]
    bound = np.partition(logits, len(logits) - n)[len(logits) - n]
    return np.asarray(ids[logits >= bound], np.int32)


def best_guess(row: Row) -> tuple[int, float]:
    """The likeliest id, and how likely it is by its own model.

    Over a large vocabulary the probability is taken against the leaders of groups only: a little high where
    the row is flat, and a tenth of the time, which a drafter pays per token.
    """
    if len(row) < _LARGE:
        id = int(row.argmax())
        return id, 1.0 / float(np.exp(row - row[id]).sum())
    leaders = _leaders(row)
    group = leaders.argmax()
    members = _members(np.array([group]), len(row))
    id = int(members[row[members].argmax()])
    return id, 1.0 / float(np.exp(leaders - leaders[group]).sum())


def _softmax(ids: NDArray[np.int32], logits: Row) -> Distribution:
    order = np.argsort(ids)
    wide = logits[order].astype(np.float64)
    top = wide.max() if len(wide) else np.nan
    check_finite(float(top))
    p = np.exp(wide - top)
    return Distribution(ids[order].copy(), p / p.sum())


class NotFiniteError(EngineError):
    """A row of logits holds NaN or infinity where its best token should be."""


def check_finite(value: float) -> None:
    """A NaN or infinity in a logits row is a broken model or kernel: stop, never guess."""
    if not np.isfinite(value):
        raise NotFiniteError("the target produced a row of logits that is not finite")


def log_softmax(row: Row) -> NDArray[np.float64]:
    """`[n_vocab]` natural log-probabilities of the raw row."""
    wide = row.astype(np.float64)
    top = wide.max()
    return np.asarray(wide - (top + np.log(np.exp(wide - top).sum())))


def log_probabilities(row: Row, id: int, n: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """(log-probability of `id`, the `n` most likely (id, log-probability)) under the raw row."""
    values = log_softmax(row)
    best = np.argpartition(values, len(values) - n)[len(values) - n :] if n else np.empty(0, np.intp)
    best = best[np.argsort(-values[best], kind="stable")]
    return float(values[id]), tuple((int(j), float(values[j])) for j in best)
