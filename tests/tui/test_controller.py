"""The controller never waits for the model, and tells the screen what happened."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from textual.message import Message

from localspec.engine.events import Done, Event, Loading, Prefill
from localspec.engine.settings import Request
from localspec.errors import EngineError, LocalspecError, UsageError
from localspec.tui.controller import Controller, Wish
from localspec.tui.messages import EventsArrived, Loaded, LoadFailed, LoadProgress, ReplyRefused
from tests.kit.scripted import INFO, ScriptedSession, words_as_events
from tests.tui.kit import MortalSession, SteppedSession

ASK = Request(prompt="x")


def until(condition: Callable[[], object], within_s: float = 3.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Rig:
    """A controller, what it posted, and the sessions it opened."""

    def __init__(self, make: Callable[[Wish, Callable[[Loading], None]], Any]) -> None:
        self.posted: list[Message] = []
        self.controller = Controller(make, self.posted.append)

    def has(self, kind: type[Message]) -> bool:
        return any(isinstance(message, kind) for message in self.posted)

    def events(self) -> list[Event]:
        return self.controller.take(10_000)

    def loaded(self) -> Rig:
        self.controller.load(Wish())
        until(lambda: self.controller.state == "ready")
        return self


def test_load_reports_progress_and_facts() -> None:
    def make(wish: Wish, notify: Callable[[Loading], None]) -> Any:
        notify(Loading("target x", 0.5))
        return ScriptedSession([words_as_events("a b")])

    rig = Rig(make).loaded()
    until(lambda: rig.has(Loaded))
    assert rig.has(LoadProgress) and rig.controller.info is INFO


def test_a_reply_comes_through_the_inbox_in_order() -> None:
    rig = Rig(lambda wish, notify: ScriptedSession([words_as_events("a b c d")])).loaded()
    rig.controller.ask(ASK)
    until(lambda: rig.controller.state == "ready")
    until(lambda: len(rig.controller.inbox) == len(words_as_events("a b c d")))
    assert sum(isinstance(message, EventsArrived) for message in rig.posted) == 1
    assert [*rig.controller.take(2), *rig.events()] == words_as_events("a b c d")


def test_nothing_is_lost_between_taking_and_arriving() -> None:
    events = words_as_events(" ".join(["w"] * 3000))
    rig = Rig(lambda wish, notify: ScriptedSession([events])).loaded()
    taken: list[Event] = []
    rig.controller.ask(ASK)
    told = 0
    deadline = time.monotonic() + 5
    while len(taken) < len(events) and time.monotonic() < deadline:
        if len(rig.posted) > told:  # a screen looks only when it was told
            told = len(rig.posted)
            taken += rig.events()
    assert taken == events


def test_stop_cancels_a_reply_in_prefill_at_once() -> None:
    session = SteppedSession([[Prefill(0, 100, 0), Done("stop", words_as_events("a")[-1].summary)]])  # type: ignore[union-attr]
    rig = Rig(lambda wish, notify: session).loaded()
    rig.controller.ask(ASK)
    until(lambda: session.replies)
    start = time.monotonic()
    assert rig.controller.stop()
    assert time.monotonic() - start < 0.02
    assert rig.controller.state == "stopping"
    until(lambda: rig.controller.state == "ready")
    last = rig.events()[-1]
    assert isinstance(last, Done) and last.reason == "cancelled"


def test_a_stop_before_the_session_answered_is_kept() -> None:
    gate = threading.Event()

    class Slow(SteppedSession):
        def reply(self, request: Request) -> Any:
            gate.wait(5)
            return super().reply(request)

    rig = Rig(lambda wish, notify: Slow([words_as_events("a b")])).loaded()
    rig.controller.ask(ASK)
    rig.controller.stop()
    gate.set()
    until(lambda: rig.controller.state == "ready")
    last = rig.events()[-1]
    assert isinstance(last, Done) and last.reason == "cancelled"


def test_there_is_nothing_to_stop_when_idle() -> None:
    rig = Rig(lambda wish, notify: ScriptedSession([[]])).loaded()
    assert not rig.controller.stop()
    assert rig.controller.state == "ready"


def test_a_load_can_be_stopped_and_its_session_is_closed_when_it_comes() -> None:
    gate = threading.Event()
    made: list[SteppedSession] = []

    def make(wish: Wish, notify: Callable[[Loading], None]) -> Any:
        gate.wait(5)
        made.append(SteppedSession([[]]))
        return made[-1]

    rig = Rig(make)
    rig.controller.load(Wish())
    assert rig.controller.stop()
    failure = rig.posted[-1]
    assert isinstance(failure, LoadFailed) and failure.stopped
    gate.set()
    until(lambda: made and made[0].closed)
    assert rig.controller.state == "failed" and not rig.has(Loaded)


def test_a_session_that_comes_after_the_stop_is_closed_without_waiting_for_its_load() -> None:
    gate = threading.Event()

    class NeverReady(SteppedSession):
        @property
        def info(self) -> Any:
            raise AssertionError("nobody needs this load")

        @info.setter
        def info(self, value: Any) -> None: ...

    made: list[NeverReady] = []

    def make(wish: Wish, notify: Callable[[Loading], None]) -> Any:
        gate.wait(5)
        made.append(NeverReady([[]]))
        return made[-1]

    rig = Rig(make)
    rig.controller.load(Wish())
    rig.controller.stop()
    gate.set()
    until(lambda: made and made[0].closed)


@pytest.mark.parametrize("when", ["making", "loading"])
def test_a_failed_load_is_told(when: str) -> None:
    class Broken(SteppedSession):
        @property
        def info(self) -> Any:
            raise EngineError("no such tensor")

        @info.setter
        def info(self, value: Any) -> None: ...

    made: list[Broken] = []

    def make(wish: Wish, notify: Callable[[Loading], None]) -> Any:
        if when == "making":
            raise UsageError("unknown pair `x`")
        made.append(Broken([[]]))
        return made[-1]

    rig = Rig(make)
    rig.controller.load(Wish("x"))
    until(lambda: rig.has(LoadFailed))
    failure = rig.posted[-1]
    assert isinstance(failure, LoadFailed) and not failure.stopped
    assert failure.error.message == ("unknown pair `x`" if when == "making" else "no such tensor")
    assert rig.controller.state == "failed"
    assert all(session.closed for session in made)


def test_loading_another_model_closes_the_first_one_first() -> None:
    order: list[str] = []

    class Recording(ScriptedSession):
        def close(self) -> None:
            order.append("close")
            ScriptedSession.close(self)

    def make(wish: Wish, notify: Callable[[Loading], None]) -> Any:
        order.append("make")
        return Recording([words_as_events("a")])

    rig = Rig(make).loaded()
    rig.controller.load(Wish("other"))
    until(lambda: rig.controller.state == "ready")
    assert order == ["make", "close", "make"]


def test_a_refused_request_is_told_and_the_model_stays() -> None:
    session = SteppedSession([UsageError("the prompt is too long"), words_as_events("a")])
    rig = Rig(lambda wish, notify: session).loaded()
    rig.controller.ask(ASK)
    until(lambda: rig.has(ReplyRefused))
    assert rig.controller.state == "ready"


def test_a_dead_session_is_no_longer_ready() -> None:
    class Dies(MortalSession):
        def reply(self, request: Request) -> Any:
            self.dead = True
            return iter([Done("error", words_as_events("a")[-1].summary, "killed")])  # type: ignore[union-attr]

    rig = Rig(lambda wish, notify: Dies([[]])).loaded()
    rig.controller.ask(ASK)
    until(lambda: rig.controller.state == "failed")
    assert rig.controller.death() is None, "the reply told it"


def test_a_death_while_nothing_is_asked_is_told_once() -> None:
    session = MortalSession([[]])
    rig = Rig(lambda wish, notify: session)
    assert rig.controller.death() is None
    rig.loaded()
    assert rig.controller.death() is None
    session.dead = True
    error = rig.controller.death()
    assert error is not None and error.message == "the model process was killed"
    assert rig.controller.state == "failed"
    assert rig.controller.death() is None


def test_asking_without_a_model_is_told() -> None:
    rig = Rig(lambda wish, notify: ScriptedSession([[]]))
    rig.controller.ask(ASK)
    until(lambda: rig.has(ReplyRefused))
    refusal = rig.posted[-1]
    assert isinstance(refusal, ReplyRefused) and isinstance(refusal.error, LocalspecError)


def test_close_ends_the_session_once() -> None:
    session = SteppedSession([[]])
    rig = Rig(lambda wish, notify: session).loaded()
    rig.controller.close()
    rig.controller.close()
    assert session.closed and rig.controller.state == "empty"
