"""Match or rejection: chosen by the acceptance both would have, from the same distributions."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.rule import ENOUGH, RECHECK, RuleChoice, overlap
from localspec.engine.sampling import Distribution
from localspec.engine.settings import SamplingSettings
from tests.engine.harness import Bench


def of(**p: float) -> Distribution:
    ids = np.array([int(k[1:]) for k in p], np.int32)
    return Distribution(ids, np.array(list(p.values())))


def test_overlap_is_by_id() -> None:
    p, q = of(t1=0.5, t2=0.3, t9=0.2), of(t2=0.6, t7=0.4)
    assert overlap(p, q) == pytest.approx(0.3) == overlap(q, p)
    assert overlap(p, p) == pytest.approx(1.0)


def test_a_sharp_draft_of_a_flat_target_prefers_rejection() -> None:
    flat = of(t1=0.3, t2=0.3, t3=0.4)
    choice = RuleChoice()
    for _ in range(ENOUGH):
        choice.observe(flat, flat)
    assert choice.rejection.value == pytest.approx(1.0) and choice.match.value == pytest.approx(0.4)
    assert choice.rejection_next()


def test_a_flat_draft_of_a_sharp_target_prefers_match_and_looks_again() -> None:
    sharp, flat = of(t1=0.9, t2=0.1), of(t1=0.4, t2=0.3, t3=0.3)
    choice = RuleChoice()
    assert choice.rejection_next(), "nothing is known yet"
    for _ in range(ENOUGH):
        choice.observe(sharp, flat)
    chosen = [choice.rejection_next() for _ in range(2 * RECHECK)]
    assert chosen.count(True) == 2, "match, but for a look now and then"


def test_one_unlikely_guess_does_not_weigh_on_all_later_ones() -> None:
    """p of the drafter's best id is near 0 once, then 0.9: no outlier, as a time would be."""
    draft, target = of(t1=0.6, t2=0.4), of(t1=0.9, t2=0.1)
    choice = RuleChoice()
    choice.observe(of(t1=1e-6, t2=1.0 - 1e-6), draft)
    for _ in range(ENOUGH - 1):
        choice.observe(target, draft)
    assert choice.match.value == pytest.approx(0.9 * (ENOUGH - 1) / ENOUGH, rel=1e-3)
    assert not choice.rejection_next(), "matching accepts 0.87 of its drafts, rejection 0.69"


def test_the_loop_tells_what_it_judged() -> None:
    sampling = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    with Bench().with_draft_model("syn-near") as bench:
        loop = bench.loop(k=4, max_tokens=60, sampling=sampling, seed=3, rejection=True)
        loop._rule = choice = RuleChoice()
        list(loop.run(np.array([5, 9, 20], np.int32)))
        # One position of a round, each in its turn, where the target got that far.
        assert 0 < choice.rejection.count <= loop.stats.rounds
        share = loop.stats.accepted / loop.stats.tested
        assert choice.rejection.value == pytest.approx(share, abs=0.25)
