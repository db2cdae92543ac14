"""Runs replies of one session at once, and the same ones alone, in the EXACT profile."""

from __future__ import annotations

import threading
from dataclasses import replace

from localspec.engine.events import Event, Round
from localspec.engine.settings import Method, Request, SamplingSettings, SpeculationSettings
from localspec.interfaces import Companion, PairFiles
from localspec.session import Session, open_session
from tests.kit.ggufs import syn
from tests.test_session import EXACT, done, ids_of

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
    """Replies with these (method, k), twice each, equal their solo runs, and passes were really shared."""
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
