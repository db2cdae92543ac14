"""The comparison of `scripts/bench_policy`: the best length is never judged on what it was chosen by."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

import bench_policy

from localspec.bench.contestants import Answer
from localspec.bench.race import Lane


@dataclass
class Racer:
    """Answers are given; only the name counts."""

    name: str
    k: int | str

    def answer(self, prompt: str, max_tokens: int) -> Answer:
        raise NotImplementedError


def lane(name: str, k: int | str, *rates: float) -> Lane:
    return Lane(Racer(name, k), [[Answer(100, 100 / rate)] for rate in rates])


def test_a_length_that_was_lucky_once_wins_nothing() -> None:
    """k = 8 is fast in the even repeats only: there it is chosen, in the odd ones it is compared."""
    plain = lane("plain", 0, 50, 50, 50, 50)
    policy = lane("ngram", "auto", 90, 90, 90, 90)
    lucky, steady = lane("ngram", 8, 200, 60, 200, 60), lane("ngram", 2, 100, 100, 100, 100)
    row = bench_policy.judge("edit", [plain, policy, lucky, steady])
    assert row["best_fixed"] == ["ngram 8", "ngram 2"]
    assert row["ratio_range"] == [0.9, 1.5] and row["ratio"] == 1.2
    assert row["of_plain"] == 1.8


def test_a_policy_below_the_best_length_is_below_the_bar() -> None:
    plain, policy = lane("plain", 0, 50, 51), lane("ngram", "auto", 60, 61)
    row = bench_policy.judge("code", [plain, policy, lane("ngram", 1, 80, 80), lane("ngram", 4, 70, 70)])
    assert row["ratio"] < bench_policy.BAR and row["best_fixed"] == ["ngram 1"]
