"""The status line fits, and never drops the rate or the state of speculation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from localspec.engine.events import Notice
from localspec.engine.settings import SpeculationSettings
from localspec.tui.speed import SpeedUp
from localspec.tui.status import (
    SpecState,
    Status,
    duration,
    spec_state,
    speedup_text,
    status_line,
    tokens_text,
)
from tests.kit.scripted import INFO

GIB = 1 << 30
FULL = Status(
    spec=SpecState("on"), target="target", draft="draft", context=(3100, 8192), tps=41.24,
    speedup=SpeedUp(2.13, 19.4, 41.3, 1.0), acceptance=0.68, memory=("VRAM", int(17.3 * GIB), 24 * GIB),
)  # fmt: skip


def test_everything_is_said_where_there_is_room() -> None:
    assert status_line(FULL, 110) == (
        "target + draft · ctx 3.1k/8k · 41.2 tok/s · 2.1× plain · acc 68 % tested · "
        "VRAM 17.3/24 GiB · spec on"
    )


def test_parts_are_dropped_in_order() -> None:
    lines = {status_line(FULL, width) for width in range(110, 10, -1)}
    order = sorted(lines, key=len, reverse=True)
    assert order[1:6] == [
        "target + draft · ctx 3.1k/8k · 41.2 tok/s · 2.1× plain · acc 68 % tested · spec on",
        "target + draft · 41.2 tok/s · 2.1× plain · acc 68 % tested · spec on",
        "target · 41.2 tok/s · 2.1× plain · acc 68 % tested · spec on",
        "target · 41.2 tok/s · 2.1× plain · spec on",
        "target · 41.2 tok/s · spec on",
    ]


def test_a_long_name_is_cut_before_it_goes() -> None:
    spec = SpecState("paused", "slower than plain here (0.85×)")
    status = Status(spec=spec, target="Smollm2 135M 8k Lc100K Mix1 Ep2", context=(110, 8192), tps=54.3)
    assert status_line(status, 80) == (
        "Smollm2 135M 8k Lc10… · 54.3 tok/s · spec paused: slower than plain here (0.85×)"
    )
    assert status_line(status, 60).startswith("54.3 tok/s")


@pytest.mark.parametrize("state", ["paused", "off"])
def test_a_plain_rate_has_no_speed_up_beside_it(state: str) -> None:
    """It is that of the drafts, so the rate of the target alone would look like the slower one."""
    status = replace(FULL, spec=SpecState(state, "slower than plain here (0.93×)"), speedup=FULL.speedup)
    assert status_line(status, 130) == (
        "target + draft · ctx 3.1k/8k · 41.2 tok/s · acc 68 % tested · VRAM 17.3/24 GiB · "
        f"spec {state}: slower than plain here (0.93×)"
    )


@given(
    st.integers(25, 200), st.text(max_size=60), st.text(max_size=80),
    st.sampled_from(["on", "paused", "off"]), st.one_of(st.none(), st.floats(0, 1e5)), st.text(max_size=30),
)  # fmt: skip
def test_it_always_fits_and_always_says_rate_and_state(
    width: int, target: str, reason: str, state: str, tps: float | None, activity: str
) -> None:
    status = replace(FULL, target=target, spec=SpecState(state, reason), tps=tps, activity=activity)
    line = status_line(status, width)
    assert cell_len(line) <= width
    assert f"spec {state}" in line
    assert ("– tok/s" if tps is None else f"{tps:.1f} tok/s") in line


@pytest.mark.parametrize(
    ("speedup", "text"),
    [
        (None, "–"),
        (SpeedUp(2.13, 10, 20, 3.0), "2.1×"),
        (SpeedUp(0.934, 10, 20, 3.0), "0.93×"),
        (SpeedUp(2.0, 10, 20, 40.0), "2.0× (40 s old)"),
        (SpeedUp(2.0, 10, 20, 200.0), "2.0× (3 min old)"),
    ],
)
def test_a_speed_up_says_when_it_is_old_and_nothing_when_unknown(speedup: SpeedUp | None, text: str) -> None:
    assert speedup_text(speedup) == text


def test_units() -> None:
    assert [tokens_text(n) for n in (831, 3100, 8192, 12_345, 131_072)] == [
        "831",
        "3.1k",
        "8k",
        "12.3k",
        "128k",
    ]
    assert [duration(s) for s in (5, 120, 8000)] == ["5 s", "2 min", "2 h"]


def test_the_state_says_why_speculation_is_off() -> None:
    """Known fault 105: a draft that fails silently while plain decoding carries on."""
    auto = SpeculationSettings()
    assert str(spec_state(None, auto)) == "spec –"
    assert str(spec_state(INFO, auto)) == "spec on"
    broken = replace(INFO, off_reason="the draft file is truncated")
    assert str(spec_state(broken, auto)) == "spec off: the draft file is truncated"
    off = spec_state(INFO, SpeculationSettings(method="off"))
    assert str(off) == "spec off: switched off (F3 turns it on)"


def test_notices_move_the_state() -> None:
    on = SpecState("on")
    paused = on.noticed(Notice("paused", "slower than plain here (0.93×)"))
    assert str(paused) == "spec paused: slower than plain here (0.93×)"
    assert paused.noticed(Notice("info", "x")) == paused
    assert paused.noticed(Notice("alarm", "x")) == paused
    assert str(paused.noticed(Notice("resumed", "drafts pay again"))) == "spec on"
    assert (
        str(on.noticed(Notice("off", "the draft broke in round 3"))) == "spec off: the draft broke in round 3"
    )
