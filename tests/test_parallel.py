"""Several replies at once in one session: passes are shared, texts are those of solo runs."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from localspec.engine.backend.context import Context, Part
from localspec.engine.backend.passes import SHARED_CHUNK
from localspec.engine.costs import VerifyCosts
from localspec.engine.events import Event, Notice, Prefill, Round, Token
from localspec.engine.settings import Message, Request, SpeculationSettings
from localspec.errors import EngineError
from localspec.interfaces import Companion, DraftKind, PairFiles
from localspec.session import Session, open_session
from localspec.session.loading import gain_of_slots
from tests.engine.harness import patched
from tests.kit.ggufs import syn
from tests.kit.together import (
    EAGLE,
    GREEDY,
    METHODS,
    SAMPLED,
    SLOTS,
    WAIT_S,
    WIDE,
    asking,
    check_mix,
    opened,
    rounds,
    shared,
    solo,
    together,
)
from tests.test_session import DRAFT, EXACT, done, ids_of, text_of


def test_every_reply_of_a_mix_of_methods_equals_its_solo_run() -> None:
    check_mix("syn", (DRAFT,), METHODS)


@pytest.mark.parametrize("target", ["syn-swa", "syn-hyb", "syn-hyb-nosnap"])
def test_every_kind_of_memory_can_be_shared(target: str) -> None:
    itself = Companion("draft", syn(target))
    check_mix(target, (itself,), (("draft", 4), ("off", None), ("ngram", 4), ("draft", None)))


@pytest.mark.parametrize("pause_s", [0.0, 0.006])
@pytest.mark.parametrize("target", ["syn", "syn-swa", "syn-hyb", "syn-hyb-nosnap"])
def test_a_rollback_survives_what_its_neighbours_decode(target: str, pause_s: float) -> None:
    """In the same pass as the verification, or where the reply is slow, between it and the rollback."""
    off = SpeculationSettings("off")
    slow = replace(asking(3, "ngram", k=4, tokens=60), prompt="a b a c a b a d a b " * 3)
    quick = [asking(9 + i, "off", tokens=12 + 5 * (i % 3)) for i in range(24)]
    expected = solo(target, (), [replace(request, speculation=off) for request in [slow, *quick]])
    session = opened(SLOTS, target)
    found: dict[str | None, list[int]] = {}

    def answer(reply: Iterable[Event], requests: list[Request], pause_s: float) -> None:
        for request in requests:
            ids: list[int] = []
            for event in reply or session.reply(request):
                if isinstance(event, Token):
                    ids.append(event.id)
                    time.sleep(pause_s)
            found[request.prompt] = ids
            reply = ()

    work = [(quick[:12], 0.0), ([slow], pause_s), (quick[12:], 0.0)]
    # Started in this order, the slow one has the slot between the others.
    replies = [session.reply(requests[0]) for requests, _ in work]
    threads = [
        threading.Thread(target=answer, args=(reply, requests, pause_s))
        for reply, (requests, pause_s) in zip(replies, work, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    session.close()
    assert [found[request.prompt] for request in [slow, *quick]] == expected


def test_sampled_replies_are_those_of_their_seed_whoever_runs_beside_them() -> None:
    requests = [
        asking(i, "draft", sampling=replace(SAMPLED, seed=100 + i, repeat_penalty=1.1 + 0.1 * (i % 2)))
        for i in range(6)
    ]
    expected = solo("syn", (DRAFT,), requests)
    session = opened(SLOTS, "syn", DRAFT)
    for order in (requests, requests[::-1]):
        replies = together(session, order)
        assert {r.prompt: ids_of(e) for r, e in zip(order, replies, strict=True)} == {
            r.prompt: ids for r, ids in zip(requests, expected, strict=True)
        }
        assert shared(replies) > 0
    session.close()


@pytest.mark.parametrize("target", ["syn", "syn-swa", "syn-hyb", "syn-hyb-nosnap"])
def test_growing_conversations_reuse_what_they_would_alone(target: str) -> None:
    """Whatever runs beside it, each turn reads only what is behind its own conversation's reusable point."""

    def converse(session: Session, topic: str) -> list[tuple[str, int, int]]:
        messages: tuple[Message, ...] = ()
        turns: list[tuple[str, int, int]] = []
        for turn in range(4):
            messages = (*messages, Message("user", f"{turn} more of {topic}."))
            ask = Request(
                messages=messages, sampling=GREEDY, max_tokens=12, ignore_eog=True, cache_key=topic,
                speculation=SpeculationSettings("ngram", k=3),
            )  # fmt: skip
            events = list(session.reply(ask))
            text = text_of(events)
            messages = (*messages, Message("assistant", text))
            summary = done(events).summary
            turns.append((text, summary.prompt_tokens, summary.reused_tokens))
        return turns

    topics = ("apples", "pears", "plums")
    expected = []
    for topic in topics:
        alone = opened(1, target)
        expected.append(converse(alone, topic))
        alone.close()
    assert all(reused > 0 for turns in expected for _, _, reused in turns[1:])
    session = opened(SLOTS, target)
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(converse, itertools.repeat(session), topics)) == expected
    session.close()


class Watched:
    """A reply that runs in a thread of its own and is looked at meanwhile."""

    def __init__(self, session: Session, request: Request) -> None:
        self.events: list[Event] = []
        self._reply = session.reply(request)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for event in self._reply:
            self.events.append(event)

    def cancel(self) -> None:
        self._reply.cancel()

    def until(self, condition: Callable[[list[Event]], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition(self.events):
            assert time.monotonic() < deadline
            time.sleep(0.0005)

    def end(self) -> list[Event]:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return self.events


def tokens(n: int) -> Callable[[list[Event]], bool]:
    return lambda events: len(ids_of(events)) >= n


def test_a_reply_joins_and_leaves_while_another_goes_on() -> None:
    long, short = asking(1, "off", tokens=300), asking(2, "off", tokens=12)
    expected = solo("syn", (), [long, short])
    session = opened(2)
    first = Watched(session, long)
    first.until(tokens(20))
    second = Watched(session, short)
    assert ids_of(second.end()) == expected[1]
    assert ids_of(first.end()) == expected[0]
    session.close()
    company = [r.sequences for r in rounds(first.events)]
    assert company[0] == company[-1] == 1 and 2 in company
    beside = [r.sequences for r in rounds(second.events)]
    assert beside.count(2) > len(beside) / 2


def test_a_cancelled_reply_leaves_within_a_round_and_its_slot_is_clean() -> None:
    keeps, leaves, after = asking(1, "draft", tokens=200), asking(2, "draft", tokens=400), asking(3, "draft")
    expected = solo("syn", (DRAFT,), [keeps, leaves, after])
    session = opened(2, "syn", DRAFT)
    first, second = Watched(session, keeps), Watched(session, leaves)
    second.until(tokens(10))
    second.cancel()
    said = len(second.events)
    ended = second.end()
    assert done(ended).reason == "cancelled" and sum(isinstance(e, Round) for e in ended[said:]) <= 2
    assert ids_of(ended) == expected[1][: len(ids_of(ended))]
    third = Watched(session, after)
    assert ids_of(third.end()) == expected[2]
    assert ids_of(first.end()) == expected[0]
    session.close()


@pytest.mark.parametrize("slots", [1, 2])
def test_a_cancel_that_comes_too_late_leaves_the_next_reply_alone(slots: int) -> None:
    first, second = (replace(asking(n, "off"), cache_key="same slot") for n in (1, 2))
    session = opened(slots)
    over = session.reply(first)
    for _ in over:
        pass
    events: list[Event] = []
    for event in session.reply(second):
        events.append(event)
        over.cancel()
    session.close()
    assert ids_of(events) == solo("syn", (), [second])[0]


def test_a_consumer_that_stops_reading_holds_nobody_up() -> None:
    request = asking(4, "off", tokens=30)
    expected = solo("syn", (), [request])
    session = opened(2)
    idle = session.reply(asking(1, "off"))
    while not isinstance(next(idle), Token):
        pass
    assert ids_of(Watched(session, request).end()) == expected[0]
    with pytest.raises(EngineError, match="already producing 2 replies"):
        busy = session.reply(request)
        session.reply(request)
    busy.close()
    idle.close()
    assert ids_of(list(session.reply(request))) == expected[0]
    session.close()


def test_a_long_prompt_is_read_between_the_rounds_of_others() -> None:
    session = opened(2)
    first = Watched(session, asking(1, "off", tokens=200))
    first.until(tokens(5))
    before = len(ids_of(first.events))
    second = Watched(session, Request(prompt="x " * 220, sampling=GREEDY, max_tokens=1, ignore_eog=True))
    second.until(tokens(1))
    meanwhile = len(ids_of(first.events)) - before
    read = [event.done for event in second.end() if isinstance(event, Prefill)]
    session.close()
    assert max(b - a for a, b in pairwise(read)) <= SHARED_CHUNK
    assert meanwhile >= (read[-1] - read[0]) // SHARED_CHUNK - 1
    first.end()


def test_rows_that_are_refused_fail_their_own_reply_only() -> None:
    good, bad = asking(1, "off", tokens=80), asking(2, "off", tokens=80)
    expected = solo("syn", (), [good, bad])
    session = opened(2)
    original = Context.run_parts

    def run_parts(self: Context, parts: list[Part]) -> Any:
        if any(part.seq_id == 1 and part.start > 60 for part in parts):
            raise EngineError("llama.cpp could not decode (code -3): simulated")
        return original(self, parts)

    with patched(Context, "run_parts", run_parts):
        replies = together(session, [good, bad])
    ends = [done(events) for events in replies]
    assert sorted(end.reason for end in ends) == ["error", "length"]
    (whole,) = [ids for ids, end in zip(map(ids_of, replies), ends, strict=True) if end.reason == "length"]
    assert whole in expected
    assert [ids_of(events) for events in together(session, [good, bad])] == expected, "slots are usable again"
    session.close()


@pytest.mark.parametrize(
    ("target", "companion"),
    [
        ("syn", EAGLE),
        ("syn", Companion("medusa", syn("medusa"))),
        ("syn", Companion("dflash", syn("dflash"))),
        ("syn-mtp", Companion("mtp", syn("syn-mtp"))),
        ("syn-hyb-few", Companion("eagle3", syn("eagle3-few"))),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_a_drafter_that_follows_one_conversation_serves_one_reply_at_a_time(
    target: str, companion: Companion
) -> None:
    requests = [asking(i, companion.kind, k=3) for i in range(3)] + [asking(9, "off")]
    expected = solo(target, (companion,), requests)
    session = opened(2, target, companion)
    replies = together(session, requests)
    assert [ids_of(events) for events in replies] == expected
    told = [any(isinstance(e, Notice) and "follows another request" in e.reason for e in r) for r in replies]
    used = [companion.kind in done(events).summary.methods for events in replies]
    if target == "syn":  # a recurrent one computes rows in another order, so that they get their own passes
        assert all(done(events).summary.shared_rounds for events in replies[:2])
    assert any(used) and not any(a and b for a, b in zip(told, used, strict=True))
    owner = session.reply(requests[0])
    next(owner)
    with pytest.raises(EngineError, match="follows another request"):
        session.reply(replace(requests[1], speculation=replace(requests[1].speculation, require=True)))
    owner.close()
    again = list(session.reply(requests[1]))
    assert companion.kind in done(again).summary.methods and ids_of(again) == expected[1]
    session.close()


def proposals(session: Session, kind: str) -> dict[int, list[int]]:
    """What the drafter proposes from now on, by the length of the history."""
    pair: Any = session._pair
    (drafter,) = pair.drafters[kind]
    found: dict[int, list[int]] = {}
    original = drafter.propose

    def propose(history: Any, k: int, more: Any, sampling: Any) -> Any:
        draft = original(history, k, more, sampling)
        if len(draft):
            found[len(history)] = list(draft.tokens)
        return draft

    drafter.propose = propose
    return found


@pytest.mark.parametrize(
    ("target", "kind", "companion"),
    [("syn", "eagle3", "eagle3"), ("syn", "medusa", "medusa"), ("syn", "dflash", "dflash"),
     ("syn-mtp", "mtp", "syn-mtp"), ("syn-hyb-few", "eagle3", "eagle3-few")],
)  # fmt: skip
def test_hidden_states_of_a_shared_pass_are_those_of_the_drafters_own_reply(
    target: str, kind: DraftKind, companion: str
) -> None:
    request = asking(3, kind, k=3, tokens=60)
    alone, beside = (opened(slots, target, Companion(kind, syn(companion))) for slots in (1, 2))
    expected = proposals(alone, kind)
    list(alone.reply(request))
    found = proposals(beside, kind)
    neighbour = Watched(beside, asking(1, "off", tokens=200))
    neighbour.until(tokens(5))
    reply = list(beside.reply(request))
    neighbour.end()
    alone.close()
    beside.close()
    common = found.keys() & expected.keys()
    assert len(common) > 10 and {n: found[n] for n in common} == {n: expected[n] for n in common}
    assert done(reply).summary.shared_rounds > 10 or target != "syn"


def test_drafts_of_those_who_share_a_pass_share_its_rows() -> None:
    passes: list[list[int]] = []
    original = Context.run_parts

    def run_parts(self: Context, parts: list[Part]) -> Any:
        passes.append([part.outputs for part in parts])
        return original(self, parts)

    session = opened(SLOTS, "syn", DRAFT)
    with patched(Context, "run_parts", run_parts):
        replies = together(session, [asking(i, "draft", k=8, tokens=80) for i in range(SLOTS)])
    session.close()
    reserved = EXACT.k_max + 1
    assert all(sum(outputs) <= reserved for outputs in passes)
    # Before all run, and after one has ended, the others may draft more.
    steady = [r for events in replies for r in rounds(events)[3:12] if r.sequences == SLOTS]
    assert steady and {r.rows for r in steady} == {reserved // SLOTS}


def test_closing_a_session_ends_replies_that_wait() -> None:
    session = opened(2)
    running = Watched(session, asking(1, "off", tokens=400))
    running.until(tokens(5))
    session.close()
    assert done(running.end()).reason == "error"


def test_the_load_says_what_requests_at_once_gain() -> None:
    costs = VerifyCosts()
    costs.observe(1, 0, 0.010)
    costs.observe(4, 0, 0.016)
    assert gain_of_slots(costs, 4) == (
        "a pass with a row of each of 4 requests takes 1.6× that of one row, so together they get 2.5× "
        "the tokens per second of one after another"
    )
    told: list[Event] = []
    open_session(PairFiles("syn", syn("syn")), replace(WIDE, slots=2), told.append).close()
    assert sum(isinstance(e, Notice) and "of each of 2 requests" in e.reason for e in told) == 1
