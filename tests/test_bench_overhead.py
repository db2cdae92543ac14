"""The overhead script subtracts what llama.cpp takes, and nothing else."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import bench_overhead  # noqa: E402

from localspec.engine.backend import batch, library  # noqa: E402
from localspec.engine.sampling import Sampler  # noqa: E402


def test_native_time_is_not_ours_and_python_time_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A decode slowed by 5 ms changes nothing; a sampler slowed by 5 ms a row shows in full."""
    files = bench_overhead.wide_target(tmp_path, 1024)
    before = bench_overhead.measure(files, bench_overhead.GREEDY, 60, "Count.")
    assert before.accepted_per_round == bench_overhead.K and 0 < before.share < 1
    around = bench_overhead.NativeClock.around

    def slow(self: Any, call: Any) -> Any:
        return around(self, lambda *arguments: (time.sleep(0.005), call(*arguments))[1])

    with monkeypatch.context() as patch:
        patch.setattr(bench_overhead.NativeClock, "around", slow)
        slower = bench_overhead.measure(files, bench_overhead.GREEDY, 60, "Count.")
    assert slower.ms_per_round < before.ms_per_round + 5
    best = Sampler.best
    monkeypatch.setattr(Sampler, "best", lambda self, row: (time.sleep(0.005), best(self, row))[1])
    assert bench_overhead.measure(files, bench_overhead.GREEDY, 60, "Count.").ms_per_round >= 6 * 5


def test_the_native_functions_are_given_back() -> None:
    with bench_overhead.native_clock():
        assert batch.__dict__["native"] is not library.native
    assert batch.__dict__["native"] is library.native


def test_missing_the_budget_is_said() -> None:
    found = {f"{kind}_ms_per_round_151k": 0.4 for kind in ("greedy", "sampled")}
    assert bench_overhead.met(found)
    assert not bench_overhead.met(found | {"greedy_ms_per_round_151k": 0.51})
