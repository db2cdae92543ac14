"""The short ways over a large vocabulary find what the long ones do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine import sampling
from localspec.engine.sampling import best_guess, likeliest


def row_of(length: int, seed: int, *, ties: bool = False) -> sampling.Row:
    values = np.random.default_rng(seed).normal(size=length).astype(np.float32) * 3
    return np.round(values) if ties else values


@given(
    st.sampled_from([10, 1000, sampling._LARGE, sampling._LARGE + 1, 49_152, 50_003]),
    st.integers(1, 400),
    st.integers(0, 10_000),
    st.booleans(),
)
def test_the_likeliest_are_the_largest_with_their_ties(length: int, n: int, seed: int, ties: bool) -> None:
    row = row_of(length, seed, ties=ties)
    bound = np.sort(row)[-min(n, length)]
    found = likeliest(row, n)
    assert found.dtype == np.int32 and (np.diff(found) > 0).all()
    assert found.tolist() == np.flatnonzero(row >= bound).tolist()


@given(st.sampled_from([10, sampling._LARGE, 50_003]), st.integers(0, 10_000))
def test_the_best_guess_is_the_argmax(length: int, seed: int) -> None:
    row = row_of(length, seed)
    id, confidence = best_guess(row)
    assert id == int(row.argmax())
    exact = 1.0 / float(np.exp(row - row.max()).sum())
    assert exact * 0.999 <= confidence <= 1.0


@pytest.mark.parametrize("at", [0, 17_000, 50_002])
def test_a_sure_guess_is_as_sure_by_either_way(at: int) -> None:
    """Against leaders only, a peaked row's probability is that of the whole softmax, also in the tail."""
    row = row_of(50_003, 1)
    row[at] = 30.0
    id, confidence = best_guess(row)
    assert id == at
    assert confidence == pytest.approx(1.0 / float(np.exp(row - 30.0).sum()), abs=1e-3)
