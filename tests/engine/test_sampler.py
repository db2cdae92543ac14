"""The sampler's short ways over a whole vocabulary end where llama.cpp's chain over every id does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.backend.samplers import Candidates, history_chain, native_samplers, truncation_chain
from localspec.engine.leaders import LARGE, Row
from localspec.engine.sampling import Distribution, Sampler, Touched
from localspec.engine.settings import SamplingSettings
from tests.engine.harness import ids, model

PENALTIES = {
    "repeat": SamplingSettings(repeat_penalty=1.3),
    "all": SamplingSettings(
        repeat_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, repeat_last_n=-1
    ),
    "short": SamplingSettings(frequency_penalty=0.7, repeat_last_n=3),
    "dry": SamplingSettings(dry_multiplier=0.8, dry_allowed_length=1),
    "bias": SamplingSettings(logit_bias=((3, 1.5), (70, float("-inf")), (3, -0.25))),
    "all of it": SamplingSettings(repeat_penalty=1.1, dry_multiplier=1.0, logit_bias=((5, 2.0), (99, -1.0))),
}
TRUNCATIONS = {
    "usual": SamplingSettings(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "narrow": SamplingSettings(temperature=1.3, top_k=3, top_p=0.9, min_p=0.0),
    "no top-k": SamplingSettings(temperature=0.7, top_k=0, top_p=0.8, min_p=0.02),
    "everything": SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
    "typical": SamplingSettings(temperature=0.9, top_k=20, top_p=1.0, min_p=0.0, typical_p=0.6),
}


def row_of(length: int, seed: int) -> Row:
    """Without ties, among which llama.cpp's choice depends on the order of its candidates."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.linspace(-12, 14, length)).astype(np.float32)


@pytest.mark.parametrize("name", PENALTIES)
def test_bias_and_penalties_reach_the_ids_they_would_of_all(name: str) -> None:
    """Bit by bit, token after token."""
    settings = replace(PENALTIES[name], temperature=0.0)
    vocabulary, text = model("syn").vocabulary, [5, 9, 5, 9, 5, 20, 99, 5, 9, 5]
    whole = Candidates(vocabulary.n_vocab)
    chain = history_chain(settings, vocabulary, 64)
    native = native_samplers(settings, vocabulary, 64, 0, Candidates(vocabulary.n_vocab))
    sampler = Sampler(settings, native, ids(text[:4]))
    for id in text[:4]:
        chain.accept(id)
    for at, id in enumerate(text[4:]):
        row = row_of(vocabulary.n_vocab, at)
        found, logits = chain.apply(whole, np.arange(len(row)), row)
        expected = np.empty_like(row)
        expected[found] = logits
        assert np.array_equal(sampler._with_history(row), expected)
        assert sampler.best(row) == int(expected.argmax())
        chain.accept(id)
        sampler.accept(id)
    chain.close()
    sampler.close()


def over_all_ids(settings: SamplingSettings, row: Row) -> Distribution:
    """llama.cpp's chain over the whole row, and the softmax of what it leaves."""
    chain = truncation_chain(settings, 0)
    kept, logits = chain.apply(Candidates(len(row)), np.arange(len(row)), row)
    order = kept.argsort()
    wide = logits[order].astype(np.float64)
    p = np.exp(wide - wide.max())
    found = Distribution(kept[order], p / p.sum())
    chain.close()
    return found


@pytest.mark.parametrize("name", TRUNCATIONS)
@given(st.sampled_from([8, 500, LARGE, 50_003]), st.integers(0, 10_000))
def test_the_distribution_is_that_of_the_chain_over_all_ids(name: str, length: int, seed: int) -> None:
    settings, row = TRUNCATIONS[name], row_of(length, seed)
    vocabulary = model("syn").vocabulary
    native = native_samplers(settings, vocabulary, 64, 0, Candidates(length))
    sampler = Sampler(settings, native)
    found, expected = sampler.distribution(row), over_all_ids(settings, row)
    sampler.close()
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.p, expected.p)


@given(st.lists(st.integers(0, 300), max_size=400))
def test_touched_ids_are_kept_once(values: list[int]) -> None:
    touched = Touched(values)
    assert touched.ids.tolist() == list(dict.fromkeys(values))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10_000))
def test_probabilities_by_id(n: int, m: int, seed: int) -> None:
    """Looked up one by one or together, an id that a distribution lacks has none."""
    rng = np.random.default_rng(seed)

    def some(n: int) -> Distribution:
        return Distribution(np.sort(rng.choice(60, n, replace=False)).astype(np.int32), np.full(n, 1 / n))

    p, q = some(n), some(m)
    assert q.at(p.ids).tolist() == [q.of(id) for id in p.ids.tolist()]
    assert sum(q.of(id) for id in range(60)) == pytest.approx(1.0)
    assert q.best == (int(q.ids[0]), q.of(int(q.ids[0])))
