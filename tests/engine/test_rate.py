"""The speed of drafted rounds: long ones count for what they gave, another process's work does not."""

from __future__ import annotations

import pytest

from localspec.engine.adapt import AdaptivePolicy
from localspec.engine.costs import Rate
from localspec.engine.policy import Outcome


def test_rare_long_drafts_count_for_what_they_gave() -> None:
    """Drafts that are all wrong but every seventh, which is all right: 22 tokens in 7 rounds of 2 units."""
    policy, said = AdaptivePolicy(), []
    rounds = [(1, 0, 1.0)] * 60 + [(1 + 15 * (i % 7 == 0), 15, 2.0) for i in range(1, 141)]
    for i, (tokens, drafted, seconds_) in enumerate(rounds):
        policy.observe(
            Outcome(
                method="ngram" if drafted else "off", confidences=(0.9,) * drafted, tested=drafted,
                accepted=tokens - 1, committed=(7,) * tokens, rows=drafted + 1, n_past=i, draft_s=0.0,
                catchup_s=0.0, catchup_rows=0, verify_s=seconds_, other_s=0.0,
            )
        )  # fmt: skip
        said.append(policy.speedup() or 0.0)
    assert sum(said[-70:]) / 70 == pytest.approx(22 / 14, rel=0.1)


def test_one_hiccup_does_not_move_a_rate() -> None:
    rate = Rate(step=0.05)
    for _ in range(50):
        rate.add(2, 1.0)
    rate.add(2, 100.0)
    assert rate.value > 1.7
    rate.add(16, 8.0)
    assert rate.value > 1.75, "a long round may take long"
