"""Alarms: patterns of acceptance that only a broken drafter, or none at all, produces."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.alarms import MANY, PERFECT, Alarms, repeats_itself
from localspec.engine.events import Notice
from localspec.engine.settings import Request, SamplingSettings, SpeculationSettings
from localspec.interfaces import Companion, PairFiles
from localspec.session import open_session
from tests.engine.harness import Bench, TableDrafter, alien, plain, random_prompt
from tests.engine.learned import EXACT
from tests.kit.ggufs import syn


def fed(alarms: Alarms, rounds: list[tuple[int, int]], method: str = "draft") -> list[str]:
    return [a.text for tested, accepted in rounds for a in alarms.observe(method, tested, accepted)]


def test_nothing_accepted_of_many_is_a_fault_and_one_accepted_is_not() -> None:
    alarms = Alarms()
    assert fed(alarms, [(1, 0)] * (MANY - 1)) == []
    assert fed(alarms, [(1, 0)]) == [
        f"none of {MANY} tested draft tokens was accepted: the `draft` drafter looks broken"
    ]
    assert fed(alarms, [(1, 0)] * 50) == [], "once is enough"
    assert fed(Alarms(), [(1, 0)] * 12 + [(2, 1)] + [(1, 0)] * 50) == []


def test_a_cliff_to_exactly_nothing_is_a_fault_and_a_slope_is_not() -> None:
    """Known fault 69: acceptance that falls to 0 at one position is no low acceptance."""
    steep = [(3, 2)] * (MANY - 1)
    assert fed(Alarms(), steep) == []
    (found,) = fed(Alarms(), [*steep, (3, 2)])
    assert "exactly 0 at draft position 3" in found and f"({MANY} tested)" in found
    assert fed(Alarms(), [*steep, (4, 3), *steep]) == [], "one accepted there is a slope"
    (only,) = fed(Alarms(), [(1, 0)] * 75 + [(2, 1)] * 30)
    assert "exactly 0" not in only, "below 30 % at the position before"
    assert len(fed(Alarms(), [(1, 0)] * 65 + [(2, 1)] * 30)) == 2, "nothing at first, then a cliff"


def test_always_right_is_suspicious_of_another_model_on_text_that_is_no_copy() -> None:
    right = [(4, 4)] * (PERFECT // 4)
    (found,) = fed(Alarms(), right)
    assert f"all of {PERFECT} tested" in found and "the target itself" in found
    assert fed(Alarms(), right[1:]) == []
    assert fed(Alarms(), [(4, 3), *right]) == []
    assert fed(Alarms(frozenset(["draft"])), right) == []
    asked = []

    def copied() -> bool:
        asked.append(1)
        return True

    alarms = Alarms()
    assert not [text for _ in range(PERFECT) for text in alarms.observe("draft", 4, 4, copied)]
    assert len(asked) < 20, "the text is read rarely"


def test_methods_do_not_hide_each_others_faults() -> None:
    alarms = Alarms()
    found = [
        alarm.text
        for _ in range(MANY)
        for alarm in (*alarms.observe("mtp", 3, 3), *alarms.observe("draft", 1, 0))
    ]
    assert len(found) == 1 and "`draft`" in found[0]


@pytest.mark.parametrize(
    ("text", "copy"),
    [
        ([], False),
        ([1, 2, 3], False),
        (list(range(600)), False),
        (list(range(100)) * 8, True),
        ([7] * 50, True),
        (list(range(1000)) + list(range(200)), False),
        (list(range(400)) * 2, True),
    ],
)
def test_text_that_repeats_itself(text: list[int], copy: bool) -> None:
    assert repeats_itself(np.array(text, np.int32)) is copy


def test_a_wrong_drafter_is_told_over_several_replies() -> None:
    """The session's counts, for a reply may be too short to tell."""
    prompt = random_prompt(3, 20)
    text = plain("syn", tuple(prompt), 40)
    notices: list[list[str]] = []
    with Bench() as bench:
        bench.with_drafter(TableDrafter(len(prompt), text, alien(bench.context.n_vocab)))
        for length in (12, 12, 12):
            result = bench.reply(prompt, k=2, max_tokens=length)
            notices.append([n.reason for n in result.notices if n.kind == "alarm"])
    assert [len(each) for each in notices] == [0, 0, 1]


def test_an_ngram_copier_has_nothing_that_could_be_broken() -> None:
    class Copier(TableDrafter):
        name = "ngram"
        free = True

    prompt = random_prompt(3, 20)
    with Bench() as bench:
        wrong = Copier(len(prompt), plain("syn", tuple(prompt), 60), alien(bench.context.n_vocab))
        result = bench.with_drafter(wrong).reply(prompt, k=2, max_tokens=60)
        assert result.done.summary.accepted == 0 and not result.notices


@pytest.mark.parametrize(("draft", "told"), [("syn", 0), ("syn-label", 1)])
def test_a_copy_of_the_target_is_told_and_the_target_itself_is_not(draft: str, told: int) -> None:
    files = PairFiles("pair", syn("syn"), (Companion("draft", syn(draft)),))
    opened = open_session(files, EXACT)
    found = []
    for letter in "abcdefghijkl":
        request = Request(
            prompt=f"{letter} self", sampling=SamplingSettings(temperature=0.0), max_tokens=55,
            speculation=SpeculationSettings(method="draft", k=8), ignore_eog=True,
        )  # fmt: skip
        found += [e.reason for e in opened.reply(request) if isinstance(e, Notice) and e.kind == "alarm"]
    opened.close()
    assert len(found) == told
    assert all("is the `draft` drafter the target itself?" in reason for reason in found)
