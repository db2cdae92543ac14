"""The logic of rounds, counters and events on a scripted target: what is judged, counted, said and timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.control import Control, Options
from localspec.engine.drafters.base import Draft, DraftSampling, History, More
from localspec.engine.events import Done, Event, Notice, Prefill, Round, Token
from localspec.engine.policy import FixedPolicy, Outcome
from localspec.engine.speculative import Loop
from localspec.errors import EngineError
from tests.kit.clock import FakeClock
from tests.kit.fake_backend import GreedyRows, ScriptedDrafter, ScriptedTarget

PROMPT = [1, 2, 3, 4]
EOS = 99


def text(length: int = 200, *, eos_at: int | None = None) -> list[int]:
    """Prompt and reply by position; `eos_at` is a place in the reply."""
    out = [*PROMPT, *(10 + i % 80 for i in range(length))]
    if eos_at is not None:
        out[len(PROMPT) + eos_at] = EOS
    return out


def loop(
    target: ScriptedTarget,
    drafters: Sequence[ScriptedDrafter],
    *,
    k: int = 4,
    max_tokens: int | None = 20,
    require: bool = False,
) -> Loop:
    options = Options(max_tokens, k_max=16, seed=0, eog=frozenset([EOS]), require=require)
    return Loop(
        target, drafters, GreedyRows(), FixedPolicy(k), options, Control(), now=target.clock
    )  # fmt: skip


def run(
    target: ScriptedTarget, drafters: Sequence[ScriptedDrafter], **options: int | bool | None
) -> list[Event]:
    return list(loop(target, drafters, **options).run(np.array(PROMPT, np.int32)))  # type: ignore[arg-type]


def ids(events: Sequence[Event]) -> list[int]:
    return [event.id for event in events if isinstance(event, Token)]


def rounds(events: Sequence[Event]) -> list[Round]:
    return [event for event in events if isinstance(event, Round)]


def done(events: Sequence[Event]) -> Done:
    assert isinstance(events[-1], Done)
    return events[-1]


def test_a_draft_behind_the_first_rejection_is_drafted_but_not_tested() -> None:
    """Known fault 65: of the pattern right, right, wrong, right: drafted 4, tested 3, accepted 2."""
    said = text()
    events = run(ScriptedTarget(said), [ScriptedDrafter(said, (1, 1, 0, 1))], max_tokens=12)
    *whole, last = rounds(events)
    assert {(r.drafted, r.tested, r.accepted, r.committed) for r in whole} == {(4, 3, 2, 3)}
    assert (last.drafted, last.tested, last.accepted, last.committed) == (2, 2, 2, 3), (
        "three tokens were left"
    )
    summary = done(events).summary
    assert summary.tested_at == (4, 4, 3), "position 3 was never tested"
    assert summary.accepted_at == (4, 4)
    assert summary.accepted_lengths[2] == 4
    assert summary.accept_per_tested == 8 / 11
    assert summary.accept_per_drafted == 8 / 14


def test_an_end_token_inside_an_accepted_draft_ends_the_reply_there() -> None:
    """Known faults 34, 35: nothing after it is said, counted or left in the cache."""
    said = text(eos_at=2)
    target, drafter = ScriptedTarget(said), ScriptedDrafter(said)
    events = run(target, [drafter], k=4, max_tokens=None)
    assert ids(events) == said[len(PROMPT) : len(PROMPT) + 2]
    assert done(events).reason == "stop"
    summary = done(events).summary
    assert (summary.completion_tokens, summary.tested, summary.accepted) == (2, 3, 3)
    assert target.n_past == len(PROMPT) + 2, "the cache holds all but the newest token, the end token"


@given(pattern=st.lists(st.booleans(), min_size=1, max_size=12), k=st.integers(0, 16))
def test_every_round_makes_progress_and_every_token_is_the_targets(pattern: list[bool], k: int) -> None:
    """Known fault 70: whatever is accepted, a round commits at least one token and the sums agree."""
    said = text()
    drafter = ScriptedDrafter(said, pattern)
    events = run(ScriptedTarget(said), [drafter], k=k, max_tokens=60)
    assert ids(events) == said[len(PROMPT) : len(PROMPT) + 60]
    assert all(item.committed >= 1 for item in rounds(events))
    summary = done(events).summary
    assert sum(item.committed for item in rounds(events)) == summary.completion_tokens == 60
    assert summary.accepted == sum(drafter.commits) <= summary.tested <= summary.drafted
    assert sum(event.from_draft for event in events if isinstance(event, Token)) == summary.accepted


def test_a_rounds_tokens_come_before_it_and_carry_its_number() -> None:
    said = text()
    events = run(ScriptedTarget(said), [ScriptedDrafter(said, (1, 0))], max_tokens=10)
    assert isinstance(events[0], Prefill) and isinstance(events[-2], Round) and isinstance(events[-1], Done)
    number = said_in_round = 0
    for event in events:
        if isinstance(event, Token):
            assert event.round == number
            assert event.from_draft == (said_in_round == 0)
            said_in_round += 1
        elif isinstance(event, Round):
            assert event.committed == said_in_round
            number, said_in_round = number + 1, 0


def test_time_between_events_is_the_consumers() -> None:
    """Decode and draft time are the engine's own, to the last tick of the clock."""
    said, clock = text(), FakeClock()
    target = ScriptedTarget(said, clock=clock, cost_s=lambda rows: 0.1 + 0.01 * rows)
    drafter = ScriptedDrafter(said, clock=clock, cost_s=0.02)
    events = []
    for event in loop(target, [drafter], k=3, max_tokens=12).run(np.array(PROMPT, np.int32)):
        events.append(event)
        clock.advance(5.0)
    for item in rounds(events):
        assert np.isclose(item.draft_s, 0.02 * item.drafted)
        assert np.isclose(item.verify_s, 0.1 + 0.01 * item.rows)
        assert np.isclose(item.other_s, 0.0)
    summary = done(events).summary
    assert np.isclose(summary.decode_s, summary.draft_s + summary.verify_s)
    assert summary.first_token_s is not None and summary.first_token_s < 1.0


def test_a_drafter_that_fails_is_dropped_aloud_or_ends_the_reply() -> None:
    """Known fault 105: never a silent plain reply."""
    said = text()
    events = run(ScriptedTarget(said), [ScriptedDrafter(said, fails_at=3)], max_tokens=30)
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert notice.kind == "off" and "the scripted drafter failed" in notice.reason
    assert ids(events) == said[len(PROMPT) : len(PROMPT) + 30]
    events = run(ScriptedTarget(said), [ScriptedDrafter(said, fails_at=3)], max_tokens=30, require=True)
    assert done(events).reason == "error"
    assert "the scripted drafter failed" in (done(events).error or "")
    assert len(ids(events)) == 15, "the text so far stays"


def test_a_failing_decode_ends_the_reply_with_the_text_so_far() -> None:
    """Known fault 31: decode errors stop cleanly."""
    said = text()
    events = run(ScriptedTarget(said, fails_at=4), [ScriptedDrafter(said)], max_tokens=50)
    assert done(events).reason == "error"
    assert done(events).error == "the scripted decode failed"
    assert ids(events) == said[len(PROMPT) : len(PROMPT) + 15]


def test_drafts_stay_within_what_can_be_undone() -> None:
    said = text()
    target = ScriptedTarget(said, undo_limit=3)
    events = run(target, [ScriptedDrafter(said, (0,))], k=16, max_tokens=30)
    assert max(item.drafted for item in rounds(events)) == 3
    assert done(events).reason == "length"


@pytest.mark.parametrize(
    "spoil",
    {
        "a negative id": lambda draft: draft.tokens.__setitem__(-1, -1),
        "an id behind the vocabulary": lambda draft: draft.tokens.__setitem__(0, 100),
        "more tokens than asked for": lambda draft: draft.tokens.extend([5] * 20),
        "too few confidences": lambda draft: draft.confidences.pop(),
        "another number of distributions": lambda draft: setattr(draft, "q", []),
    }.items(),
    ids=lambda item: item[0],
)
def test_a_broken_draft_never_reaches_the_target(spoil: tuple[str, Callable[[Draft], object]]) -> None:
    """Known fault 15: the drafter is dropped aloud, the target reads none of it, the text is right."""
    said = text()

    class Broken(ScriptedDrafter):
        def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
            draft = super().propose(history, k, more, sampling)
            if self.proposals == 3:
                spoil[1](draft)
            return draft

    target = ScriptedTarget(said)  # asserts that every id it reads is in its vocabulary
    events = run(target, [Broken(said)], max_tokens=30)
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert notice.kind == "off" and "the drafter" in notice.reason
    assert ids(events) == said[len(PROMPT) : len(PROMPT) + 30]
    assert [r.drafted for r in rounds(events)][:4] == [4, 4, 0, 0]
    assert rounds(events)[2].method == "off"
    events = run(ScriptedTarget(said), [Broken(said)], max_tokens=30, require=True)
    assert done(events).reason == "error" and "the drafter" in (done(events).error or "")


@given(
    tokens=st.lists(st.integers(-3, 103), max_size=20), limit=st.integers(0, 17), missing=st.integers(-1, 1)
)
def test_a_draft_is_accepted_only_when_it_can_be_decoded(tokens: list[int], limit: int, missing: int) -> None:
    draft = Draft(list(tokens), [0.5] * max(0, len(tokens) + missing))
    sound = len(tokens) <= limit and len(draft.confidences) == len(tokens) and set(tokens) <= set(range(100))
    if sound:
        draft.check(limit, 100)
    else:
        with pytest.raises(EngineError):
            draft.check(limit, 100)


@pytest.mark.parametrize("stage", ["begin", "observe", "commit"])
def test_a_drafter_that_cannot_follow_is_dropped_aloud(stage: str) -> None:
    """Known fault 105: also outside of its proposals a failure costs the drafts, not the reply."""
    said = text()

    def fail(*_: object) -> None:
        raise EngineError("the scripted drafter lost its place")

    drafter = ScriptedDrafter(said)
    setattr(drafter, stage, fail)
    events = run(ScriptedTarget(said), [drafter], max_tokens=30)
    assert [e.reason for e in events if isinstance(e, Notice)] == [
        "draft failed: the scripted drafter lost its place"
    ]
    assert ids(events) == said[len(PROMPT) : len(PROMPT) + 30]
    assert done(events).reason == "length"


@pytest.mark.parametrize("stage", ["propose", "commit"])
def test_a_failing_drafter_does_not_take_the_copier_with_it(stage: str) -> None:
    said = text()

    def fail(*_: object) -> None:
        raise EngineError("the scripted drafter lost its place")

    copier = ScriptedDrafter(said, name="ngram", free=True)
    broken = ScriptedDrafter(said)
    setattr(broken, stage, fail)
    events = run(ScriptedTarget(said), [broken, copier], max_tokens=30)
    assert [e.reason for e in events if isinstance(e, Notice)] == [
        "draft failed: the scripted drafter lost its place"
    ]
    assert ids(events) == said[len(PROMPT) : len(PROMPT) + 30]
    assert rounds(events)[-1].method == "ngram"
    assert len(copier.commits) == len(rounds(events)), "it was told of every round"


def test_every_second_of_work_belongs_to_a_round_and_none_of_the_consumers() -> None:
    """What follows a round's own measurement, learning from it, is the next round's."""
    said, learning, reading = text(), 0.5, 100.0
    target = ScriptedTarget(said)

    class Slow(FixedPolicy):
        def observe(self, outcome: Outcome) -> list[Notice]:
            target.clock.advance(learning)
            return super().observe(outcome)

    options = Options(20, k_max=16, seed=0, eog=frozenset([EOS]))
    reply = Loop(
        target, [ScriptedDrafter(said)], GreedyRows(), Slow(4), options, Control(), now=target.clock
    )  # fmt: skip
    found, began = [], 0.0
    for event in reply.run(np.array(PROMPT, np.int32)):
        if isinstance(event, Prefill):
            began = target.clock()
        if isinstance(event, Round):
            found.append(event)
        if isinstance(event, Token | Round):
            target.clock.advance(reading)
    read = reading * (20 + len(found))
    assert sum(r.wall_s for r in found) + learning == pytest.approx(target.clock() - began - read)
    assert [r.other_s for r in found[1:]] == pytest.approx([found[0].other_s + learning] * (len(found) - 1))
