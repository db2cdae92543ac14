"""Known fault 67: acceptance that falls after an update is noticed, for earlier sessions are remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from localspec.engine.alarms import ENOUGH, Alarms
from localspec.engine.events import Notice
from localspec.engine.settings import Request, SamplingSettings, SpeculationSettings
from localspec.interfaces import Companion, PairFiles
from localspec.locations import locations
from localspec.planning.acceptance import MOST, expected_acceptance, remember_acceptance
from localspec.session import Session, open_session
from tests.engine.learned import EXACT
from tests.kit.ggufs import syn

FILES = PairFiles("syn", syn("syn"), (Companion("draft", syn("syn-near")),))


def raised(alarms: Alarms, drafts: int) -> list[str]:
    """Alarms of single drafts of which every fourth is accepted."""
    return [alarm.text for i in range(drafts) for alarm in alarms.observe("draft", 1, i % 4 == 0)]


def test_a_drop_below_half_of_what_was_usual_is_an_alarm() -> None:
    alarms = Alarms(expected={"draft": (5000, 3200)})
    assert raised(alarms, ENOUGH - 1) == []
    (text,) = raised(alarms, 1)
    assert "is 25 % of tested, in earlier sessions of this pair it was 64 %" in text
    assert raised(alarms, 200) == [], "once is enough"


@pytest.mark.parametrize(
    "expected", [{}, {"draft": (ENOUGH - 1, 400)}, {"mtp": (5000, 4000)}, {"draft": (5000, 2000)}]
)
def test_little_history_or_a_weaker_text_is_none(expected: dict[str, tuple[int, int]]) -> None:
    assert raised(Alarms(expected=expected), 2 * ENOUGH) == []


def reply(session: Session) -> tuple[int, int]:
    request = Request(
        prompt="hello", sampling=SamplingSettings(temperature=0.0), max_tokens=60, ignore_eog=True,
        speculation=SpeculationSettings(method="draft", k=4),
    )  # fmt: skip
    done = list(session.reply(request))[-1]
    return done.summary.tested, done.summary.accepted  # type: ignore[union-attr]


def test_sessions_add_to_the_history_of_their_pair_whatever_the_build_and_threads() -> None:
    session = open_session(FILES, EXACT)
    info, one = session.info, reply(session)
    session.close()
    assert expected_acceptance(FILES, info) == {"draft": one}
    older = replace(info, build="an older one", effective=replace(info.effective, threads=7))
    remember_acceptance(FILES, older, {"draft": (4000, 3900)})
    other = replace(info, effective=replace(info.effective, draft_kv=("q8_0", "q8_0")))
    remember_acceptance(FILES, other, {"draft": (9, 9)})
    assert expected_acceptance(FILES, info) == {"draft": (one[0] + 4000, one[1] + 3900)}
    for _ in range(3):
        remember_acceptance(FILES, info, {"draft": (MOST, 0)})
    assert expected_acceptance(FILES, info)["draft"][0] <= 2 * MOST + 4000, "old sessions fade"


def test_a_session_tells_of_a_drop() -> None:
    """With a fake history of near perfect drafts, a draft that is right about every second time is told."""
    session = open_session(FILES, EXACT)
    info = session.info
    session.close()
    assert not locations().measurements_db.exists(), "nothing was drafted"
    remember_acceptance(FILES, info, {"draft": (100_000, 100_000)})
    told: list[str] = []
    session = open_session(FILES, EXACT)
    (place,) = session._places.values()
    assert place.alarms.expected["draft"] == (100_000, 100_000)
    place.alarms._counts["draft"] = (ENOUGH, ENOUGH // 5)
    request = Request(
        prompt="hello", sampling=SamplingSettings(temperature=0.0), max_tokens=20, ignore_eog=True,
        speculation=SpeculationSettings(method="draft", k=4),
    )  # fmt: skip
    told += [e.reason for e in session.reply(request) if isinstance(e, Notice) and e.kind == "alarm"]
    session.close()
    assert len(told) == 1 and "in earlier sessions of this pair it was 100 %" in told[0]
