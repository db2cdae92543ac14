"""The speed-up shown is measured, recent and of this context, or it is not shown."""

from __future__ import annotations

import pytest

from localspec.engine.events import Round
from localspec.tui.speed import MIN_PLAIN_TOKENS, WINDOW, SpeedModel
from tests.tui.kit import Clock


def plain(n_past: int, verify_s: float = 0.02, draft_s: float = 0.0) -> Round:
    return Round("off", 0, 0, 0, 1, n_past, draft_s, verify_s, 0.0, 1)


def speculative(n_past: int, committed: int = 3, verify_s: float = 0.025, draft_s: float = 0.005) -> Round:
    return Round("draft", 3, 3, committed - 1, 4, n_past, draft_s, verify_s, 0.0, committed)


def feed(model: SpeedModel, rounds: list[Round]) -> None:
    for event in rounds:
        model.observe(event)


def test_nothing_is_shown_before_32_plain_tokens() -> None:
    model = SpeedModel(Clock())
    feed(model, [speculative(100)] * 10)
    assert model.current() is None
    feed(model, [plain(100)] * MIN_PLAIN_TOKENS)  # the first of the run does not count
    assert model.current() is None
    feed(model, [plain(100)])
    found = model.current()
    assert found is not None
    assert found.plain_tps == pytest.approx(50.0)
    assert found.ratio == pytest.approx(3 / 0.030 / 50.0)


def test_nothing_is_shown_without_a_speculative_round() -> None:
    model = SpeedModel(Clock())
    feed(model, [plain(100)] * 100)
    assert model.current() is None


def test_it_moves_when_plain_decoding_gets_dearer_with_the_context() -> None:
    """It follows measurements at this context; one taken at load would stay at its value."""
    model = SpeedModel(Clock())
    shown = []
    for n_past in range(0, 12_000, 1000):
        cost = 0.010 + n_past * 1e-5  # the verify of a few rows costs the same as one row here
        feed(model, [plain(n_past, verify_s=cost)] * 40)
        feed(model, [speculative(n_past, verify_s=0.060, draft_s=0.0)] * 40)
        current = model.current()
        assert current is not None
        shown.append(current.ratio)
    assert shown[0] == pytest.approx(3 / 0.060 * 0.010)
    assert shown == sorted(shown) and shown[-1] > 5 * shown[0]


def test_old_context_does_not_count() -> None:
    model = SpeedModel(Clock())
    feed(model, [plain(100)] * 40)
    feed(model, [speculative(100 + WINDOW)])
    assert model.current() is not None
    feed(model, [speculative(101 + WINDOW)])
    assert model.current() is None
    feed(model, [speculative(50)])  # a new chat: back at a short context
    assert model.current() is not None


def test_an_isolated_plain_round_is_no_baseline_but_costs_the_drafter() -> None:
    """After a change of shape one round is slow; counting it as plain would flatter the speed-up."""
    model = SpeedModel(Clock())
    feed(model, [plain(10)] * 40)
    feed(model, [speculative(10)])
    before = model.current()
    assert before is not None
    for _ in range(30):
        feed(model, [plain(10, verify_s=0.2), plain(10, verify_s=0.2), speculative(10)])
    after = model.current()
    assert after is not None
    assert after.plain_tps == before.plain_tps
    assert after.ratio < before.ratio / 4


def test_searching_for_a_draft_does_not_slow_the_baseline() -> None:
    model = SpeedModel(Clock())
    feed(model, [speculative(10)])
    feed(model, [plain(10, draft_s=0.5)] * 40)
    found = model.current()
    assert found is not None and found.plain_tps == pytest.approx(50.0)


def test_a_run_does_not_reach_over_a_prefill() -> None:
    model = SpeedModel(Clock())
    feed(model, [speculative(10)])
    for _ in range(20):
        feed(model, [plain(10)] * 3)
        model.begin_reply()
    assert model.current() is None


def test_the_age_is_that_of_the_newest_plain_round() -> None:
    clock = Clock()
    model = SpeedModel(clock)
    feed(model, [plain(10)] * 40)
    clock.now += 25
    feed(model, [speculative(12)] * 5)
    found = model.current()
    assert found is not None and found.age_s == 25.0


def test_rounds_without_time_do_not_divide_by_zero() -> None:
    model = SpeedModel(Clock())
    feed(model, [plain(10, verify_s=0.0)] * 40 + [speculative(10, verify_s=0.0, draft_s=0.0)])
    assert model.current() is None
