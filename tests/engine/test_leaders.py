"""The short ways over a row of logits find what the plain formulas do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.leaders import GROUP, LARGE, Row, best, best_guess, likeliest
from localspec.engine.sampling import log_probabilities
from localspec.errors import EngineError

LENGTHS = st.sampled_from([1, 2, 10, 1000, LARGE - 1, LARGE, LARGE + 1, 49_152, 50_003])
SEEDS = st.integers(0, 10_000)
EXACT_SUM = 1e-5
"""float32 sums of up to 50 000 weights, against the same in float64."""


@st.composite
def rows(draw: st.DrawFn, lengths: st.SearchStrategy[int] = LENGTHS) -> Row:
    """Flat and peaked rows, with ties, with ids that are ruled out, and at the ends of what float32 holds."""
    length, rng = draw(lengths), np.random.default_rng(draw(SEEDS))
    row = (rng.normal(size=length) * draw(st.sampled_from([0.0, 0.01, 3.0, 30.0, 1e30]))).astype(np.float32)
    if draw(st.booleans()):
        row = np.round(row)
    if draw(st.booleans()):
        row[rng.random(length) < draw(st.sampled_from([0.1, 0.999]))] = -np.inf
    if draw(st.booleans()) or row.max() == -np.inf:
        row[rng.integers(length)] = row[np.isfinite(row)].max(initial=-5.0) + np.float32(20.0)
    return row


def softmax(row: Row) -> np.ndarray:
    wide = row.astype(np.float64)
    weights = np.exp(wide - wide.max())
    return np.asarray(weights / weights.sum())


@given(rows(), st.integers(0, 400))
def test_the_likeliest_are_the_top_without_a_gap(row: Row, n: int) -> None:
    """At least n of them, every one as large as all that are left out, ties at the bound included."""
    found = likeliest(row, n)
    ids = found.ids.tolist()
    assert ids == sorted(set(ids)) and len(ids) >= min(n or len(row), len(row))
    assert np.array_equal(found.logits, row[ids])
    assert ids == np.flatnonzero(row >= found.logits.min()).tolist()


@given(rows(), st.integers(1, 64))
def test_no_more_are_looked_at_than_the_leaders_need(row: Row, n: int) -> None:
    """The n-th largest leader bounds them; in small rows it is the n-th largest logit itself."""
    width = len(row) // GROUP
    if len(row) < LARGE:
        bound = np.sort(row)[-min(n, len(row))]
    else:
        bound = np.sort(row[: width * GROUP].reshape(GROUP, width).max(axis=0))[-n]
    assert likeliest(row, n).ids.tolist() == np.flatnonzero(row >= bound).tolist()


@given(rows())
def test_the_best_guess_is_the_argmax_and_no_less_sure_than_the_softmax(row: Row) -> None:
    """Of equal logits the first, and a probability that leaves out only what is no leader."""
    id, confidence = best_guess(row)
    assert id == best(row) == int(row.argmax())
    p = softmax(row)
    assert p[id] * (1 - EXACT_SUM) <= confidence <= 1.0
    if len(row) < LARGE:
        assert confidence == pytest.approx(p[id], rel=EXACT_SUM)
        return
    whole = len(row) // GROUP * GROUP
    leaders = [*p[:whole].reshape(GROUP, -1).max(axis=0), p[whole:].max(initial=0.0)]
    assert confidence == pytest.approx(p[id] / math.fsum(leaders), rel=EXACT_SUM)


@pytest.mark.parametrize("at", [0, 17_000, 50_002])
def test_a_sure_guess_is_as_sure_by_either_way(at: int) -> None:
    """Of a peaked row the leaders' probability is that of the whole softmax, also in the tail."""
    row = (np.random.default_rng(1).normal(size=50_003) * 3).astype(np.float32)
    row[at] = 30.0
    id, confidence = best_guess(row)
    assert id == at
    assert confidence == pytest.approx(softmax(row)[at], abs=1e-3)


@pytest.mark.parametrize("length", [5, LARGE, LARGE + 7])
@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_that_is_not_finite_is_refused(length: int, at: int, value: float) -> None:
    row = np.zeros(length, np.float32)
    row[at] = value
    for look in (best, best_guess, lambda row: likeliest(row, 3), lambda row: log_probabilities(row, 0, 2)):
        with pytest.raises(EngineError, match="not finite"):
            look(row)


@pytest.mark.parametrize("banned", [slice(0, LARGE), slice(LARGE, None)])
def test_ids_that_are_ruled_out_are_no_fault(banned: slice) -> None:
    """A mask may cover all whole groups, or all of what is left over."""
    row = np.arange(LARGE + 7, dtype=np.float32)
    row[banned] = -np.inf
    assert best_guess(row)[0] == best(row) == likeliest(row, 1).ids[-1] == int(row.argmax())


@pytest.mark.parametrize("length", [5, LARGE])
def test_a_row_without_any_candidate_is_refused(length: int) -> None:
    row = np.full(length, -np.inf, np.float32)
    for look in (best, best_guess, lambda row: likeliest(row, 3)):
        with pytest.raises(EngineError, match="not finite"):
            look(row)


@given(rows(st.sampled_from([2, 1000, 50_003])), st.integers(0, 20), SEEDS)
def test_log_probabilities_are_those_of_the_softmax(row: Row, n: int, seed: int) -> None:
    id = seed % len(row)
    wide = row.astype(np.float64)
    expected = wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())
    logprob, top = log_probabilities(row, id, n)
    # A logit of 1e30 has no digits left for a logarithm.
    assert logprob == pytest.approx(expected[id], rel=1e-6, abs=1e-5)
    n = min(n, len(row))
    assert len(top) == n and len({j for j, _ in top}) == n
    assert [p for _, p in top] == pytest.approx(np.sort(expected)[::-1][:n].tolist(), rel=1e-6, abs=1e-5)
    assert all(p == pytest.approx(expected[j], rel=1e-6, abs=1e-5) for j, p in top)
