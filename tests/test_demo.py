"""The demo's numbers come from the runs, and its verdict says what they say."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace

import pytest

from localspec.demo import (
    WORKLOADS,
    Comparison,
    DemoWorkload,
    compare,
    human_report,
    report_of,
    run_demo,
    verdict,
    winner,
)
from localspec.engine.events import Notice
from localspec.engine.settings import LoadSettings, Method, SpeculationSettings
from localspec.interfaces import Companion, PairFiles
from localspec.measuring import Run
from localspec.output import Output
from localspec.session import Session, open_session
from tests.kit.ggufs import syn
from tests.kit.scripted import INFO, summary

EXACT = LoadSettings(n_ctx=512, threads=1, kv=("f32", "f32"), draft_kv=("f32", "f32"), flash_attn="off")


@pytest.fixture
def session() -> Session:
    return open_session(PairFiles("syn", syn("syn"), (Companion("draft", syn("syn-near")),)), EXACT)


def silent() -> Output:
    return Output(io.StringIO(), io.StringIO(), quiet=True)


def test_a_comparison_reports_its_runs(session: Session) -> None:
    workload = DemoWorkload("edit", "shows", "Say a word.", 40, to_the_end=True)
    methods = [("auto", SpeculationSettings()), ("draft k=4", SpeculationSettings(method="draft", k=4))]
    comparisons = compare(session, workload, methods, 3, silent())
    report = report_of(session.info, comparisons)
    session.close()
    assert [w["method"] for w in report["workloads"]] == ["auto", "draft k=4"]
    forced = report["workloads"][1]
    assert forced["repeats"] == 3 and forced["tokens"] == 40 and forced["text_equal"] is True
    assert forced["drafted"] >= forced["tested"] >= forced["accepted"] > 0
    assert forced["rounds"] < 40 and not forced["paused"]
    low, high = forced["speedup_range"]
    assert 0 < low <= forced["speedup"] <= high
    assert forced["tokens_per_round"] == pytest.approx(40 / forced["rounds"])
    text = human_report(report, session.info, comparisons)
    assert "accepted/tested" in text and "same text" in text


def test_the_verdict_is_in_words() -> None:
    row = {
        "name": "story",
        "method": "auto",
        "speedup": 0.99,
        "speedup_after_64": 1.0,
        "text_equal": True,
        "logit_gap": None,
        "paused_at_token": 32,
        "paused_reason": "slower than plain here (0.80×)",
    }
    assert verdict(row) == (
        "story: as fast as plain decoding (0.99×); speculation paused itself after 32 tokens "
        "(slower than plain here (0.80×)); same text"
    )
    assert "1.40× faster" in verdict({**row, "speedup": 1.4, "paused_at_token": None})
    assert "0.90× of plain decoding" in verdict({**row, "speedup": 0.9})


def test_the_reason_of_a_pause_is_its_own_notice() -> None:
    """Others may come first: of a reset, or of an alarm."""
    told = [Notice("reset", "it starts over"), Notice("paused", "slower than plain here (0.80×)")]
    counts = replace(summary(4), paused_at_token=32)
    one = Run(ids=[1, 2, 3, 4], token_s=[1.0, 2.0, 3.0, 4.0], summary=counts, notices=told)
    report = report_of(INFO, [Comparison(WORKLOADS[0], "auto", (one,), (one,), None)])
    assert "after 32 tokens (slower than plain here (0.80×))" in verdict(report["workloads"][0])


def test_a_rate_from_a_token_on_counts_whole_rounds() -> None:
    """Two tokens in one second, six in the next, two in the last: the time of six is not that of three."""
    one = Run(token_s=[1.0] * 2 + [2.0] * 6 + [3.0] * 2)
    assert one.tps() == pytest.approx(10 / 3)
    assert one.tps(2) == pytest.approx(8 / 2)
    assert one.tps(5) == one.tps(8) == pytest.approx(2.0)
    assert one.tps(9) == one.tps(10) == one.tps(11) == 0.0


def test_the_winner_is_named_with_its_cost() -> None:
    auto = {"name": "edit", "method": "auto", "speedup": 1.2, "tokens_per_round": 2.0, "round_cost": 1.67}
    ngram = {**auto, "method": "ngram k=4", "speedup": 1.5, "tokens_per_round": 3.0, "round_cost": 2.0}
    assert winner([auto, ngram]) == (
        "edit: `ngram k=4` wins here, a round gives 3.00 tokens for the time of 2.00"
    )
    slow = {**auto, "speedup": 1.0, "tokens_per_round": 1.5, "round_cost": 1.5}
    assert winner([slow, {**ngram, "speedup": 0.7}]) == (
        "edit: nothing beats plain decoding here; "
        "at best (`auto`) a round gives 1.50 tokens for the time of 1.50"
    )


@pytest.mark.parametrize(
    ("method", "expected"), [(None, ["auto", "ngram k=4", "draft k=4"]), ("draft", ["draft k=4"])]
)
def test_all_methods_of_the_pair_run_or_the_one_asked_for(
    session: Session, method: Method | None, expected: list[str]
) -> None:
    out = io.StringIO()
    run_demo(session, Output(out, io.StringIO(), json=True, quiet=True), method=method, quick=True)
    session.close()
    rows = json.loads(out.getvalue())["workloads"]
    assert [row["method"] for row in rows] == expected * len(WORKLOADS)
    for row in rows:
        assert row["round_cost"] == pytest.approx(row["tokens_per_round"] / row["speedup"])


@pytest.mark.real_model
def test_the_real_demo_prints_one_json_object() -> None:
    out = io.StringIO()
    from localspec.pairs import resolve

    session = open_session(resolve("demo"), LoadSettings(n_ctx=1024, threads=1))
    code = run_demo(session, Output(out, io.StringIO(), json=True, quiet=True), quick=True)
    session.close()
    report = json.loads(out.getvalue())
    assert code == 0 and report["pair"] == "demo" and report["target"]["name"]
    assert {w["name"] for w in report["workloads"]} == {w.name for w in WORKLOADS}
    edit = next(w for w in report["workloads"] if w["name"] == "edit" and w["method"] == "auto")
    story = next(w for w in report["workloads"] if w["name"] == "story" and w["method"] == "auto")
    assert edit["accepted"] > 20 and edit["tokens_per_round"] > 1.3
    assert story["tokens"] == 96
    for workload in report["workloads"]:
        assert workload["text_equal"] or "apart" in workload["logit_gap"]
    assert os.environ["OMP_NUM_THREADS"] == "1"
