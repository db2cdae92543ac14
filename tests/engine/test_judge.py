"""The verdict, enumerated: no randomness, every emitted token has exactly the target's probability."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.sampling import Distribution, judge, point, uniform

N = 8
Judge = Callable[[Distribution, int, Distribution | None, float, float], tuple[bool, int]]


def distribution(weights: list[int]) -> Distribution:
    ids = np.flatnonzero(weights).astype(np.int32)
    p = np.array(weights, np.float64)[ids]
    return Distribution(ids, p / p.sum())


def emitted(p: Distribution, q: Distribution | None, verdict: Judge = judge) -> np.ndarray:
    """Probability of each emitted id, by summing the areas of u and v on which the verdict is constant.

    Drafts are drawn from q (rejection), or are each id with weight 1/N (match, where the draft must not
    matter).
    """
    total = np.zeros(N)
    proposals = q if q is not None else Distribution(np.arange(N, dtype=np.int32), np.full(N, 1 / N))
    for x, weight in zip(proposals.ids.tolist(), proposals.p.tolist(), strict=True):
        us = breaks(np.cumsum(p.p)) if q is None else breaks(np.array([p.of(x) / q.of(x)]))
        rest = p.minus(q) if q is not None else None
        vs = breaks(np.cumsum((rest or p).p))
        for u0, u1 in itertools.pairwise(us):
            for v0, v1 in itertools.pairwise(vs):
                _, id = verdict(p, x, q, (u0 + u1) / 2, (v0 + v1) / 2)
                total[id] += weight * (u1 - u0) * (v1 - v0)
    return total


def breaks(points: np.ndarray) -> np.ndarray:
    """Edges of [0, 1) cut at `points` and at a grid, so that a shifted threshold cannot hide."""
    edges = np.concatenate([[0.0, 1.0], np.linspace(0, 1, 8), points])
    return np.unique(np.clip(edges, 0.0, 1.0))


def dense(p: Distribution) -> np.ndarray:
    full = np.zeros(N)
    full[p.ids] = p.p
    return full


weights = st.lists(st.integers(0, 9), min_size=N, max_size=N).filter(any)


@given(p=weights, q=weights)
def test_rejection_emits_the_target(p: list[int], q: list[int]) -> None:
    """Known fault 45: also where p forbids the draft, where q misses candidates and where p = q."""
    target = distribution(p)
    assert np.abs(emitted(target, distribution(q)) - dense(target)).max() < 1e-12


@given(p=weights)
def test_match_emits_the_target_whatever_was_drafted(p: list[int]) -> None:
    target = distribution(p)
    assert np.abs(emitted(target, None) - dense(target)).max() < 1e-12


@given(p=weights, q=weights)
def test_acceptance_is_the_overlap(p: list[int], q: list[int]) -> None:
    """Rejection accepts with probability Σ min(p, q), match with p(draft)."""
    target, draft = distribution(p), distribution(q)
    overlap = 0.0
    for x in draft.ids.tolist():
        edges = breaks(np.array([target.of(x) / draft.of(x)]))
        for low, high in itertools.pairwise(edges):
            accepted, _ = judge(target, x, draft, (low + high) / 2, 0.5)
            overlap += draft.of(x) * (high - low) * accepted
    assert overlap == pytest.approx(np.minimum(dense(target), dense(draft)).sum(), abs=1e-12)


def test_greedy_is_a_point() -> None:
    assert judge(point(3), 3, None, 0.7, 0.1) == (True, 3)
    assert judge(point(3), 5, None, 0.7, 0.1) == (False, 3)


def _wrong_residual(p: Distribution, x: int, q: Distribution | None, u: float, v: float) -> tuple[bool, int]:
    if q is not None and u * q.of(x) >= p.of(x):
        return False, p.draw(v)  # samples p instead of what q left over
    return judge(p, x, q, u, v)


def _subtract_by_index(
    p: Distribution, x: int, q: Distribution | None, u: float, v: float
) -> tuple[bool, int]:
    if q is not None and u * q.of(x) >= p.of(x):
        n = min(len(p.p), len(q.p))
        rest = p.p.copy()
        rest[:n] = np.maximum(rest[:n] - q.p[:n], 0)  # by position in the list, not by id
        return False, Distribution(p.ids, rest / rest.sum()).draw(v)
    return judge(p, x, q, u, v)


def _always_strict(p: Distribution, x: int, q: Distribution | None, u: float, v: float) -> tuple[bool, int]:
    if q is not None and p.of(x) >= q.of(x) and u > 0.9:
        return False, p.draw(v)  # rejects what has to be accepted
    return judge(p, x, q, u, v)


@pytest.mark.parametrize("wrong", [_wrong_residual, _subtract_by_index, _always_strict])
def test_the_enumeration_notices_wrong_formulas(wrong: Judge) -> None:
    p, q = distribution([1, 2, 0, 4, 3, 0, 1, 1]), distribution([0, 5, 2, 1, 1, 1, 3, 0])
    assert np.abs(emitted(p, q) - dense(p)).max() < 1e-12
    assert np.abs(emitted(p, q, wrong) - dense(p)).max() > 1e-3


def test_uniforms_depend_on_their_key_only() -> None:
    """Known fault 43: draws are keyed by position, so they do not depend on how many were made."""
    assert uniform(7, 3, 0) == uniform(7, 3, 0)
    values = np.array(
        [uniform(seed, at, lane) for seed in range(20) for at in range(50) for lane in range(3)]
    )
    assert len(np.unique(values)) == len(values)
    assert (values >= 0).all() and (values < 1).all()
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert ((counts - 150) ** 2 / 150).sum() < 50, "far from uniform (chi-square, 19 degrees)"
