"""Several replies at once in one session: passes are shared, texts are those of solo runs.

In the EXACT profile texts are compared token by token; each mutation at the end mixes replies up in one way,
and the comparison must notice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest

from localspec.engine.backend.context import Context, Part
from localspec.engine.backend.passes import SHARED_CHUNK, Passes, PassFacts, SharedSequence
from localspec.engine.costs import VerifyCosts
from localspec.engine.events import Event, Notice, Prefill, Round, Token
from localspec.engine.sampling import Sampler
from localspec.engine.settings import Method, Request, SamplingSettings, SpeculationSettings
from localspec.engine.shared_costs import SharedCosts
from localspec.errors import EngineError
from localspec.interfaces import Companion, PairFiles
from localspec.session import Session, open_session
from localspec.session.loading import gain_of_slots
from tests.engine.harness import patched
from tests.kit.ggufs import syn
from tests.test_session import DRAFT, EXACT, done, ids_of

SLOTS = 3
WIDE = replace(EXACT, n_ctx=512)
WAIT_S = 60.0
SAMPLED = SamplingSettings(temperature=1.0, top_k=20, seed=5)
GREEDY = SamplingSettings(temperature=0.0)
EAGLE = Companion("eagle3", syn("eagle3"))


def opened(slots: int, target: str = "syn", *companions: Companion) -> Session:
    return open_session(PairFiles(target, syn(target), companions), replace(WIDE, slots=slots))


def asking(
    number: int,
    method: Method = "auto",
    *,
    sampling: SamplingSettings = GREEDY,
    k: int | None = None,
    tokens: int = 40,
) -> Request:
    text = f"Reply {number} tells of {number * 7}. " * (1 + number % 4)
    speculation = SpeculationSettings(method=method, k=k)
    return Request(
        prompt=text, sampling=sampling, speculation=speculation, max_tokens=tokens, ignore_eog=True
    )


def together(session: Session, requests: list[Request]) -> list[list[Event]]:
    """All replies, as many at once as the session has slots."""
    gate = threading.Semaphore(session.info.effective.slots)
    replies: list[list[Event]] = [[] for _ in requests]

    def answer(i: int) -> None:
        with gate:
            replies[i] = list(session.reply(requests[i]))

    threads = [threading.Thread(target=answer, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "a reply never ended"
    return replies


def solo(target: str, companions: tuple[Companion, ...], requests: list[Request]) -> list[list[int]]:
    session = opened(1, target, *companions)
    try:
        return [ids_of(list(session.reply(request))) for request in requests]
    finally:
        session.close()


def shared(replies: list[list[Event]]) -> int:
    return sum(done(events).summary.shared_rounds for events in replies)


def rounds(events: list[Event]) -> list[Round]:
    return [event for event in events if isinstance(event, Round)]


METHODS: tuple[tuple[Method, int | None], ...] = (
    ("auto", None), ("off", None), ("ngram", 4), ("draft", 3), ("draft", None), ("ngram", None),
)  # fmt: skip


def check_mix(
    target: str, companions: tuple[Companion, ...], methods: tuple[tuple[Method, int | None], ...]
) -> None:
    requests = [asking(i, method, k=k) for i, (method, k) in enumerate(methods * 2)]
    expected = solo(target, companions, requests)
    session = opened(SLOTS, target, *companions)
    try:
        replies = together(session, requests)
    finally:
        session.close()
    assert [ids_of(events) for events in replies] == expected
    assert shared(replies) > 0.5 * sum(len(rounds(events)) for events in replies), "passes were not shared"
    assert max(r.sequences for events in replies for r in rounds(events)) == SLOTS
    assert sum(done(events).summary.accepted for events in replies) > 0


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
    assert all(r.sequences == 2 for r in rounds(second.events)[:-1])


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
    assert any(used) and not any(a and b for a, b in zip(told, used, strict=True))
    owner = session.reply(requests[0])
    next(owner)
    with pytest.raises(EngineError, match="follows another request"):
        session.reply(replace(requests[1], speculation=replace(requests[1].speculation, require=True)))
    owner.close()
    again = list(session.reply(requests[1]))
    assert companion.kind in done(again).summary.methods and ids_of(again) == expected[1]
    session.close()


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


class TestSharedCosts:
    """What a draft costs a reply depends on who else is in its pass."""

    @dataclass
    class Beside:
        other_rows: int
        facts: PassFacts
        last_rows: int = 1

    def view(self, seconds: Callable[[int], float], others: int, sequences: int) -> SharedCosts:
        table = VerifyCosts()
        for rows in (1, 2, 4, 8, 16):
            table.observe(rows, 0, seconds(rows))
        return SharedCosts(
            table, threading.Lock(), self.Beside(others, PassFacts(sequences, others + 1, others + 1))
        )

    def test_alone_it_is_the_table(self) -> None:
        costs = self.view(lambda rows: 0.01 * rows, 0, 1)
        assert [costs.seconds(rows, 0) for rows in (1, 2, 4)] == pytest.approx([0.01, 0.02, 0.04])

    def test_a_row_is_paid_for_everybody_in_the_pass(self) -> None:
        costs = self.view(lambda rows: 0.01 * rows, 3, 4)
        assert costs.seconds(1, 0) == pytest.approx(0.04)
        assert costs.seconds(2, 0) == pytest.approx(0.04 + 4 * 0.01)

    def test_rows_that_cost_nothing_cost_nothing_in_company(self) -> None:
        costs = self.view(lambda rows: 0.01 if rows <= 8 else 0.02, 3, 4)
        assert costs.seconds(5, 0) == pytest.approx(costs.seconds(1, 0)) == pytest.approx(0.01)
        assert costs.seconds(13, 0) > 0.03

    def test_the_table_learns_whole_passes_and_none_in_which_a_prompt_is_read(self) -> None:
        table = VerifyCosts()
        verifying, reading = PassFacts(3, 7, 7), PassFacts(3, 70, 7)
        SharedCosts(table, threading.Lock(), self.Beside(5, verifying)).observe(2, 0, 0.03)
        SharedCosts(table, threading.Lock(), self.Beside(5, reading)).observe(2, 0, 0.9)
        assert table.known(7) and table.seconds(7, 0) == pytest.approx(0.03)
        assert not table.known(2)


# -- mutations: each mixes replies up in one way -------------------------------------------------------


@contextmanager
def rows_of_the_neighbour() -> Iterator[None]:
    """Each reply of a shared pass gets the logits of the next one."""
    original = Passes._pass

    def mixed(self: Passes, group: list[Any]) -> None:
        original(self, group)
        same = [ask for ask in group if ask.part.outputs == 1]
        logits = [ask.logits for ask in same]
        for ask, rows in zip(same, logits[1:] + logits[:1], strict=True):
            ask.logits = rows

    with patched(Passes, "_pass", mixed):
        yield


@contextmanager
def parts_changed(change: Callable[[Part, Part], Part]) -> Iterator[None]:
    """Every part of a shared pass but the first is `change(part, first)`."""
    original = Context.run_parts

    def run_parts(self: Context, parts: list[Part]) -> Any:
        return original(self, [parts[0], *(change(part, parts[0]) for part in parts[1:])])

    with patched(Context, "run_parts", run_parts):
        yield


def another_sequence(part: Part, first: Part) -> Part:
    return replace(part, seq_id=first.seq_id)


def next_position(part: Part, first: Part) -> Part:
    return replace(part, start=part.start + 1)


def another_token(part: Part, first: Part) -> Part:
    return replace(part, tokens=np.full_like(part.tokens, first.tokens[0]))


@contextmanager
def borrowed_rows() -> Iterator[None]:
    """Replies read llama.cpp's buffer itself, which the next pass fills anew while one of them is slow."""

    class Lent(np.ndarray):  # type: ignore[type-arg]
        def copy(self, order: Any = "C") -> Any:
            return self

    original = Context.logits

    def lent(self: Context, count: int) -> Any:
        return original(self, count).view(Lent)

    best, calls = Sampler.best, count()

    def slow(self: Sampler, row: Any) -> int:
        if next(calls) % 3 == 0:
            time.sleep(0.005)
        return best(self, row)

    with patched(Context, "logits", lent), patched(Sampler, "best", slow):
        yield


@contextmanager
def cells_of_all_dropped() -> Iterator[None]:
    """A rollback in one sequence drops cells of another."""
    original = SharedSequence.truncate

    def truncate(self: SharedSequence, n: int) -> int:
        if n < self.n_past:
            self.context.remove((self.seq_id + 1) % self.context.settings.n_seq_max, n)
        return original(self, n)

    with patched(SharedSequence, "truncate", truncate):
        yield


MUTATIONS = {
    "the neighbour's logits": rows_of_the_neighbour,
    "the neighbour's cells": lambda: parts_changed(another_sequence),
    "positions + 1": lambda: parts_changed(next_position),
    "the neighbour's tokens": lambda: parts_changed(another_token),
    "rows that the next pass overwrites": borrowed_rows,
    "a rollback in the neighbour": cells_of_all_dropped,
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_the_comparison_notices_replies_that_are_mixed_up(mutation: Any) -> None:
    """Known fault 107: parallel requests are never mixed up, and if they were, these tests would tell."""
    with mutation(), pytest.raises((AssertionError, EngineError)):
        check_mix("syn", (DRAFT,), METHODS)
