"""A drafter whose state is spoiled is reset once and rebuilt from the text; if that is no help, it is off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from localspec.engine.adapt import AdaptivePolicy
from localspec.engine.alarms import COLLAPSED, MANY, Alarms
from localspec.engine.drafters.base import Draft, DraftSampling, History, More
from localspec.engine.events import Event, Notice
from localspec.engine.policy import Outcome
from localspec.engine.recovery import DraftFaultError, Health
from localspec.engine.speculative import Loop
from localspec.errors import EngineError
from tests.engine.harness import Bench, Result, TableDrafter, ids, patched, plain, random_prompt
from tests.engine.learned import BY_KIND, Learned

PROMPT = random_prompt(3, 20)
LENGTH = 220


class FreeRows(AdaptivePolicy):
    """As on a machine where rows and drafting cost nothing: it always drafts."""

    def observe(self, outcome: Outcome) -> list[Notice]:
        return super().observe(replace(outcome, draft_s=0.0, catchup_s=0.0, verify_s=1.0, other_s=0.0))


class Spoiled(TableDrafter):
    """Right until it has drafted `good` times, then wrong; a reset helps `cures` times."""

    def __init__(self, text: tuple[int, ...], n_vocab: int, good: int, cures: int) -> None:
        super().__init__(len(PROMPT), text, self._said)
        self._n_vocab, self._good, self._cures, self._drafts = n_vocab, good, cures, 0

    def _said(self, _: int, right: int) -> int:
        return right if self._drafts <= self._good else (right + 1) % self._n_vocab

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        self._drafts += 1
        draft = super().propose(history, min(k, 3), more, sampling)
        for i, confidence in enumerate(draft.confidences):
            more(i, confidence)
        return draft

    def reset(self) -> None:
        super().reset()
        if self.resets <= self._cures:
            self._drafts, self._good = 0, 10**6


def kinds(events: list[Event]) -> list[str]:
    return [e.kind for e in events if isinstance(e, Notice) and e.kind in ("alarm", "reset", "off")]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(n_ctx=512, policy=FreeRows()) as bench:
        yield bench


@pytest.mark.parametrize("good", [0, 12])
def test_a_drafter_that_goes_bad_once_is_reset_and_drafts_on(bench: Bench, good: int) -> None:
    """Mutation: without the reset it stays wrong for ever; with it, nearly all later drafts are right."""
    text = plain("syn", tuple(PROMPT), LENGTH + 40)
    drafter = Spoiled(text, bench.context.n_vocab, good, cures=1)
    result = bench.with_drafter(drafter).reply(PROMPT, max_tokens=LENGTH)
    assert tuple(result.ids) == text[:LENGTH]
    assert kinds(result.events) == ["alarm", "reset"] and drafter.resets == 1
    summary = result.done.summary
    assert summary.resets == ("draft",) and summary.given_up == ()
    told = next(i for i, e in enumerate(result.events) if isinstance(e, Notice) and e.kind == "reset")
    later = Result(result.events[told:]).rounds
    assert sum(r.accepted for r in later) > 0.9 * sum(r.tested for r in later) > 20


@pytest.mark.parametrize("good", [0, 12])
def test_a_drafter_that_stays_bad_is_off_for_the_conversation(bench: Bench, good: int) -> None:
    text = plain("syn", tuple(PROMPT), LENGTH + 40)
    drafter = Spoiled(text, bench.context.n_vocab, good, cures=0)
    health = Health()
    bench.with_drafter(drafter).health = health
    health.begin("chat-1", continued=False)
    result = bench.reply(PROMPT, max_tokens=LENGTH)
    assert tuple(result.ids) == text[:LENGTH]
    assert kinds(result.events) == ["alarm", "reset", "alarm", "off"] and drafter.resets == 1
    summary = result.done.summary
    assert summary.resets == ("draft",) and summary.given_up == ("draft",)
    off = next(n for n in result.notices if n.kind == "off")
    assert "`draft` drafter had all its drafts rejected again, also after a reset" in off.reason
    assert not any(r.drafted for r in result.rounds[-10:])

    health.begin("chat-1", continued=False)
    again = bench.reply([*PROMPT, *result.ids[:5]], max_tokens=10)
    assert kinds(again.events) == ["off"] and not again.done.summary.drafted, "said in every reply"
    health.begin("chat-2", continued=True)
    fresh = bench.reply(PROMPT, max_tokens=10)
    assert kinds(fresh.events) == [] and fresh.done.summary.drafted, "another conversation, another chance"


def test_conversations_without_a_name_are_told_by_their_text() -> None:
    health = Health()
    health.begin(None, continued=False)
    health.off["draft"] = "why"
    health.begin(None, continued=True)
    assert health.off
    health.begin(None, continued=False)
    assert not health.off


def test_a_fixed_length_drafts_on(bench: Bench) -> None:
    bench.policy = None
    drafter = Spoiled(plain("syn", tuple(PROMPT), 100), bench.context.n_vocab, 0, cures=0)
    result = bench.with_drafter(drafter).reply(PROMPT, k=2, max_tokens=60)
    assert kinds(result.events) == ["alarm"] and drafter.resets == 0
    assert all(r.drafted for r in result.rounds[:-2])


def test_who_requires_speculation_gets_no_reply_without_it(bench: Bench) -> None:
    drafter = Spoiled(plain("syn", tuple(PROMPT), LENGTH), bench.context.n_vocab, 0, cures=0)
    result = bench.with_drafter(drafter).reply(PROMPT, max_tokens=LENGTH, require=True)
    assert result.done.reason == "error" and "had all its drafts rejected" in (result.done.error or "")


def test_an_alarm_at_the_end_of_a_reply_is_answered_in_the_next(bench: Bench) -> None:
    text = plain("syn", tuple(PROMPT), LENGTH)
    drafter = Spoiled(text, bench.context.n_vocab, 0, cures=1)
    bench.with_drafter(drafter)
    bench.health = Health()
    first = bench.reply(PROMPT, max_tokens=MANY)  # one token and one tested draft a round, the last has none
    second = bench.reply(PROMPT, max_tokens=30)
    assert (kinds(first.events), kinds(second.events)) in (
        ([], ["alarm", "reset"]), (["alarm"], ["reset"]),
    )  # fmt: skip


def test_a_fault_waits_for_a_reply_that_its_drafter_has_a_part_in(bench: Bench) -> None:
    """Other methods, a fixed length and a new conversation leave it open: the drafter is still spoiled."""
    drafter = Spoiled(plain("syn", tuple(PROMPT), 100), bench.context.n_vocab, 0, cures=1)
    bench.health.begin("chat-1", continued=False)
    bench.health.fault = DraftFaultError("draft", "was spoiled by a test")
    assert kinds(bench.reply(PROMPT, max_tokens=4).events) == [], "nobody drafts"
    adaptive, bench.policy = bench.policy, None
    assert kinds(bench.with_drafter(drafter).reply(PROMPT, k=2, max_tokens=4).events) == []
    bench.policy = adaptive
    bench.health.begin("chat-2", continued=False)
    assert kinds(bench.reply(PROMPT, max_tokens=4).events) == ["reset"] and drafter.resets == 1
    assert kinds(bench.reply(PROMPT, max_tokens=4).events) == []


def test_rebuilding_takes_the_replys_time_but_is_no_price_of_a_round(bench: Bench) -> None:
    class Slow(TableDrafter):
        def reset(self) -> None:
            time.sleep(0.3)

    class Watching(FreeRows):
        dearest = 0.0

        def observe(self, outcome: Outcome) -> list[Notice]:
            self.dearest = max(self.dearest, outcome.other_s)
            return super().observe(outcome)

    bench.policy = policy = Watching()
    bench.with_drafter(Slow(len(PROMPT), (), lambda _, id: id))
    bench.health.fault = DraftFaultError("draft", "was spoiled by a test")
    result = bench.reply(PROMPT, max_tokens=4)
    assert result.rounds[0].other_s > 0.3 > policy.dearest


def nan_rows(method: Callable[..., Any], times: list[int]) -> Callable[..., Any]:
    """A method whose rows are NaN as long as `times` holds something."""

    def spoiled(*args: Any, **kwargs: Any) -> Any:
        found = method(*args, **kwargs)
        if times:
            times.pop()
            rows = [found] if isinstance(found, np.ndarray) else [found[0]]
            for row in rows:
                row[:] = np.nan
        return found

    return spoiled


@pytest.mark.parametrize("adaptive", [True, False])
def test_probabilities_that_are_no_numbers_are_a_fault_not_a_crash(adaptive: bool) -> None:
    """Once: reset and on. A fixed length has no policy to do without the drafter, so it is off, loudly."""
    policy = FreeRows() if adaptive else None
    with Bench(n_ctx=256, policy=policy).with_draft_model("syn-near") as bench:
        cache: Any = bench.drafters[0]._cache  # type: ignore[attr-defined]
        with patched(cache, "decode", nan_rows(cache.decode, [1])):
            result = bench.reply(PROMPT, k=3, max_tokens=40)
        assert tuple(result.ids) == plain("syn", tuple(PROMPT), 40)
        assert kinds(result.events) == (["reset"] if adaptive else ["off"])
        assert "not finite" in result.notices[0].reason
        assert bool(result.done.summary.drafted) is adaptive


def test_probabilities_that_stay_no_numbers_end_in_off() -> None:
    with Bench(n_ctx=256, policy=FreeRows()).with_draft_model("syn-near") as bench:
        cache: Any = bench.drafters[0]._cache  # type: ignore[attr-defined]
        with patched(cache, "decode", nan_rows(cache.decode, [1] * 99)):
            result = bench.reply(PROMPT, max_tokens=40)
        assert tuple(result.ids) == plain("syn", tuple(PROMPT), 40)
        assert kinds(result.events) == ["reset", "off"] and not result.done.summary.drafted


@pytest.mark.parametrize("kind", BY_KIND)
def test_every_learned_drafter_is_rebuilt_from_the_text_so_far(kind: str) -> None:
    """After a reset in the middle of a reply it says what it says without one."""
    pair = BY_KIND[kind]
    prompt = random_prompt(12, 40, pair.target)

    def said(spoil: bool) -> tuple[list[int], dict[int, list[int]]]:
        with Learned(pair) as bench:
            bench.policy = FreeRows()
            events: list[Event] = []
            loop: Loop = bench.loop(prompt=prompt, max_tokens=40)
            for event in loop.run(ids(prompt)):
                events.append(event)
                if spoil and len(Result(events).rounds) == 6 and not loop.stats.resets:
                    bench.health.fault = DraftFaultError(pair.kind, "was spoiled by a test")
            result = Result(events)
            assert kinds(events) == (["reset"] if spoil else [])
            return result.ids, {len(p.ids): p.tokens for p in bench.record.proposals if p.tokens}

    expected, proposals = said(spoil=False)
    text, rebuilt = said(spoil=True)
    assert text == expected
    common = {n for n in set(proposals) & set(rebuilt) if n > len(prompt) + 20}
    assert len(common) > 3
    for n in common:  # lengths are the policy's choice
        k = min(len(proposals[n]), len(rebuilt[n]))
        assert rebuilt[n][:k] == proposals[n][:k]


def test_a_collapse_is_an_alarm_and_weakness_is_none() -> None:
    def found(rounds: list[tuple[int, int]]) -> list[str]:
        alarms = Alarms()
        return [
            alarm.text
            for tested, accepted in rounds
            for alarm in alarms.observe("draft", tested, accepted)
            if alarm.broken
        ]

    good, bad = [(4, 3)] * 20, [(1, 0)] * COLLAPSED
    (text,) = found(good + bad)
    assert f"none of the last {COLLAPSED}" in text and "76 %" in text
    assert found(good + bad[2:]) == [] and found([(1, 0), (4, 1)] * 20 + bad) == []
    assert len(found(good + bad + good + bad)) == 2, "and once more when it happens once more"


def test_what_cannot_go_on_is_off_at_once(bench: Bench) -> None:
    """A drafter that raises is not spoiled but broken; others go on."""

    class Raising(TableDrafter):
        def propose(self, *_: Any) -> Draft:
            raise EngineError("out of memory")

    bench.with_drafter(Raising(len(PROMPT), (), lambda _, id: id))
    result = bench.reply(PROMPT, max_tokens=10)
    assert kinds(result.events) == ["off"]
