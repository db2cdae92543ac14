"""The queue and the engine thread, without HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.events import Done, Event, Prefill, Token
from localspec.engine.settings import Request
from localspec.errors import EngineError, LocalspecError, ModelFileError, UsageError
from localspec.server.dispatch import Dispatcher
from localspec.server.fairness import FairQueue
from localspec.server.metrics import Metrics
from localspec.server.settings import READY_TOKENS, Limits
from localspec.server.tickets import NotReadyError, QueueFullError, Ticket, TimeLimitError
from tests.kit.scripted import INFO, ScriptedReply, summary
from tests.kit.toy import ToyReply, ToySession, text_of

WAIT_S = 5.0


class TestFairQueue:
    @given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), max_size=40))
    def test_nobody_waits_for_two_of_another_client(self, arrivals: list[tuple[str, str]]) -> None:
        queue: FairQueue[tuple[str, str, int]] = FairQueue()
        for n, (client, conversation) in enumerate(arrivals):
            queue.push(client, conversation, (client, conversation, n))
        left = Counter(client for client, _ in arrivals)
        served_since: dict[str, Counter[str]] = {client: Counter() for client in left}
        last: dict[tuple[str, str], int] = {}
        for _ in arrivals:
            item = queue.pop()
            assert item is not None
            client, conversation, n = item
            assert last.get((client, conversation), -1) < n, "a conversation keeps its order"
            last[client, conversation] = n
            assert all(count <= 1 for count in served_since[client].values())
            served_since[client] = Counter()
            left[client] -= 1
            for other, since in served_since.items():
                if other != client and left[other]:
                    since[client] += 1
        assert queue.pop() is None and len(queue) == 0

    def test_one_client_with_many_requests_does_not_delay_another(self) -> None:
        queue: FairQueue[str] = FairQueue()
        for i in range(100):
            queue.push("flood", f"c{i}", f"flood-{i}")
        queue.push("other", "c", "other")
        assert [queue.pop(), queue.pop()] == ["flood-0", "other"]

    def test_conversations_of_a_client_take_turns(self) -> None:
        queue: FairQueue[str] = FairQueue()
        for item in ("x1", "x2", "x3", "y1"):
            queue.push("client", item[0], item)
        assert [queue.pop() for _ in range(4)] == ["x1", "y1", "x2", "x3"]

    def test_removal(self) -> None:
        queue: FairQueue[str] = FairQueue()
        queue.push("a", "x", "one")
        assert queue.remove("a", "x", "one")
        assert not queue.remove("a", "x", "one")
        assert queue.pop() is None and queue.items() == []


@contextlib.asynccontextmanager
async def running(
    session: Any,
    limits: Limits | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    ready: bool = True,
) -> AsyncIterator[Dispatcher]:
    dispatcher = Dispatcher(session, limits or Limits(), Metrics(), clock=clock)
    dispatcher.start()
    try:
        if ready:
            await asyncio.to_thread(dispatcher.wait_settled)
        yield dispatcher
    finally:
        await asyncio.to_thread(dispatcher.close)


async def drain(ticket: Ticket) -> list[Event]:
    return [event async for batch in ticket.batches() for event in batch]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def asking(text: str, key: str | None = None) -> Request:
    return Request(prompt=text, cache_key=key)


def text(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, Token))


class TestHealth:
    async def test_ready_only_after_a_real_generation(self) -> None:
        gate = threading.Event()

        class Slow(ToySession):
            def reply(self, request: Request) -> ToyReply:
                gate.wait(WAIT_S)
                return ToySession.reply(self, request)

        session = Slow()
        async with running(session, ready=False) as dispatcher:
            assert dispatcher.health.status == "loading"
            gate.set()
            await until(lambda: dispatcher.health.status == "ready")
            (trial,) = session.requests
            assert (trial.max_tokens, trial.ignore_eog) == (READY_TOKENS, True)

    async def test_a_pair_that_says_nothing_is_not_ready(self) -> None:
        class Mute(ToySession):
            def reply(self, request: Request) -> Any:
                return ScriptedReply([Prefill(1, 1, 0), Done("stop", summary(0))])

        async with running(Mute()) as dispatcher:
            assert dispatcher.health.status == "failed"
            assert "no token" in (dispatcher.health.reason or "")

    async def test_a_failed_load_is_told_with_its_own_error(self) -> None:
        class Broken(ToySession):
            @property
            def info(self) -> Any:
                raise ModelFileError("`x.gguf` is truncated")

        async with running(Broken()) as dispatcher:
            error = dispatcher.wait_settled()
            assert isinstance(error, ModelFileError)
            with pytest.raises(NotReadyError, match="truncated"):
                _ = dispatcher.info


class TestReplies:
    async def test_events_arrive_in_order_and_by_round(self) -> None:
        async with running(ToySession()) as dispatcher:
            ticket = dispatcher.submit(asking("hi"), "client")
            batches = [batch async for batch in ticket.batches()]
        assert isinstance(batches[0][0], Prefill)
        assert [len(batch) for batch in batches[1:-1]] == [4] * 8, "three tokens and their round at a time"
        assert isinstance(batches[-1][-1], Done)

    async def test_refusals_reach_the_request_and_the_next_one_is_served(self) -> None:
        async with running(ToySession()) as dispatcher:
            bad, good = dispatcher.submit(asking("!refuse"), "a"), dispatcher.submit(asking("hi"), "a")
            with pytest.raises(UsageError, match="does not parse"):
                await drain(bad)
            assert text(await drain(good))

    async def test_an_unexpected_exception_fails_one_request_only(self) -> None:
        class Buggy(ToySession):
            def reply(self, request: Request) -> ToyReply:
                if text_of(request) == "bug":
                    raise ZeroDivisionError("in the engine")
                return ToySession.reply(self, request)

        async with running(Buggy()) as dispatcher:
            with pytest.raises(EngineError, match="ZeroDivisionError: in the engine"):
                await drain(dispatcher.submit(asking("bug"), "a"))
            assert text(await drain(dispatcher.submit(asking("hi"), "a")))

    async def test_a_running_reply_ends_within_a_round_of_its_cancel(self) -> None:
        async with running(ToySession()) as dispatcher:
            ticket = dispatcher.submit(asking("!slow"), "a")
            seen: list[Event] = []
            async for batch in ticket.batches():
                seen += batch
                ticket.cancel()
            assert isinstance(seen[-1], Done) and seen[-1].reason == "cancelled"
            assert sum(isinstance(e, Token) for e in seen) <= 6

    async def test_a_waiting_request_that_is_cancelled_leaves_the_queue(self) -> None:
        session = ToySession()
        async with running(session) as dispatcher:
            first = dispatcher.submit(asking("!slow"), "a")
            second = dispatcher.submit(asking("never"), "a")
            await until(lambda: dispatcher.waiting == 1)
            second.cancel()
            assert dispatcher.waiting == 0
            await drain(first)
        assert "never" not in [r.prompt for r in session.requests]

    async def test_the_queue_has_an_end(self) -> None:
        async with running(ToySession(), Limits(queued=2)) as dispatcher:
            running_one = dispatcher.submit(asking("!slow"), "a")
            await until(lambda: dispatcher.busy)
            waiting = [dispatcher.submit(asking("!slow"), "a") for _ in range(2)]
            with pytest.raises(QueueFullError, match="2 requests wait already"):
                dispatcher.submit(asking("hi"), "a")
            for ticket in (running_one, *waiting):
                ticket.cancel()
            await until(lambda: not dispatcher.busy)

    async def test_closing_tells_those_who_wait(self) -> None:
        async with running(ToySession()) as dispatcher:
            dispatcher.submit(asking("!slow"), "a").cancel()
            first = dispatcher.submit(asking("!slow"), "a")
            waiting = dispatcher.submit(asking("hi"), "a")
            await until(lambda: dispatcher.busy)
            first.cancel()
            await asyncio.to_thread(dispatcher.close)
            with contextlib.suppress(LocalspecError):
                await drain(waiting)
            with pytest.raises(NotReadyError, match="stopping"):
                dispatcher.submit(asking("late"), "a")


class Mortal(ToySession):
    """Dies in a reply to `die`, and again in the first `stillborn` attempts to restart it."""

    def __init__(self, stillborn: int = 0) -> None:
        super().__init__()
        self.alive = True
        self.restarts = 0
        self._stillborn = stillborn

    def reply(self, request: Request) -> Any:
        if not self.alive:
            raise EngineError("the model process was killed (SIGKILL)")
        if text_of(request) == "die":
            self.alive = False
            end = Done("error", summary(1), error="the model process was killed (SIGKILL)")
            return ScriptedReply([Prefill(1, 1, 0), end])
        return ToySession.reply(self, request)

    def restart(self) -> None:
        self.restarts += 1
        self.alive = self.restarts > self._stillborn


class TestDeath:
    async def test_only_the_running_request_fails(self) -> None:
        session = Mortal()
        async with running(session) as dispatcher:
            tickets = [dispatcher.submit(asking(t), "a") for t in ("one", "die", "two", "three")]
            one, die, two, three = [await drain(ticket) for ticket in tickets]
            assert isinstance(die[-1], Done) and die[-1].error == "the model process was killed (SIGKILL)"
            assert all(text(events) for events in (one, two, three))
            assert session.restarts == 1
            trials = [r for r in session.requests if r.max_tokens == READY_TOKENS]
            assert len(trials) == 2, "a restarted pair proves itself before it serves"
            assert dispatcher.health.status == "ready"

    async def test_a_death_between_requests_is_noticed(self) -> None:
        session = Mortal()
        async with running(session) as dispatcher:
            session.alive = False
            await until(lambda: session.restarts == 1 and dispatcher.health.status == "ready")

    async def test_waiting_requests_outlive_a_restart_that_fails_once(self) -> None:
        session = Mortal(stillborn=1)
        async with running(session) as dispatcher:
            die, later = dispatcher.submit(asking("die"), "a"), dispatcher.submit(asking("hi"), "a")
            await drain(die)
            assert text(await drain(later))
            assert session.restarts == 2

    async def test_waiting_requests_are_told_when_it_will_not_come_up(self) -> None:
        session = Mortal(stillborn=99)
        async with running(session) as dispatcher:
            die, later = dispatcher.submit(asking("die"), "a"), dispatcher.submit(asking("hi"), "a")
            await drain(die)
            with pytest.raises(EngineError, match=r"could not be started: .*SIGKILL"):
                await drain(later)
            assert dispatcher.health.status == "failed"


class Several(ToySession):
    """Answers three requests at once."""

    def __init__(self) -> None:
        super().__init__()
        self.info = replace(INFO, effective=replace(INFO.effective, slots=3))
        self.together = self.most = 0
        self._lock = threading.Lock()

    def reply(self, request: Request) -> Any:
        events = ToySession.reply(self, request)
        with self._lock:
            self.together += 1
            self.most = max(self.most, self.together)

        def counted() -> Iterator[Event]:
            for event in events:
                if isinstance(event, Done):
                    with self._lock:
                        self.together -= 1
                yield event

        return counted()


class TestSlots:
    async def test_as_many_requests_run_at_once_as_there_are_slots(self) -> None:
        session = Several()
        async with running(session) as dispatcher:
            tickets = [dispatcher.submit(asking(f"!slow {n}"), str(n % 2)) for n in range(8)]
            await until(lambda: dispatcher.waiting == 5)
            alone = [text(list(ToyReply(asking(f"!slow {n}")))) for n in range(8)]
            assert [text(await drain(ticket)) for ticket in tickets] == alone
        assert session.most == 3

    async def test_requests_that_ran_beside_one_that_hangs_are_told_why_they_failed(self) -> None:
        clock, gate = TestTimeLimits.Clock(), threading.Event()

        class Hanging(Several):
            def reply(self, request: Request) -> Any:
                if text_of(request) == "hang":
                    gate.wait(WAIT_S)
                    raise EngineError("the session was restarted")
                return Several.reply(self, request)

            def restart(self) -> None:
                gate.set()

        async with running(Hanging(), Limits(start_s=30), clock=clock) as dispatcher:
            beside = dispatcher.submit(asking("!slow"), "a")
            hanging = dispatcher.submit(asking("hang"), "a")
            await until(lambda: hanging.started_at is not None and beside.reply is not None)
            clock.now = 31
            await asyncio.to_thread(dispatcher.sweep)
            with pytest.raises(TimeLimitError, match="could not be prepared"):
                await drain(hanging)
            with pytest.raises(EngineError, match="because of another request"):
                await drain(beside)
            assert text(await drain(dispatcher.submit(asking("hi"), "a")))

    async def test_the_end_of_a_hanging_worker_starts_one_other(self) -> None:
        """Engine threads notice the end while the one who ended it still waits for the process."""
        clock, gate = TestTimeLimits.Clock(), threading.Event()

        class Dying(Several):
            restarts = 0
            alive = True

            def reply(self, request: Request) -> Any:
                if text_of(request) == "hang":
                    gate.wait(WAIT_S)
                    raise EngineError("the session was restarted")
                return Several.reply(self, request)

            def restart(self) -> None:
                self.restarts += 1
                self.alive = False
                gate.set()
                time.sleep(0.2)
                self.alive = True

        session = Dying()
        async with running(session, Limits(start_s=30), clock=clock) as dispatcher:
            hanging = dispatcher.submit(asking("hang"), "a")
            await until(lambda: hanging.started_at is not None)
            clock.now = 31
            await asyncio.to_thread(dispatcher.sweep)
            assert text(await drain(dispatcher.submit(asking("hi"), "a")))
        assert session.restarts == 1


class TestTimeLimits:
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    async def test_a_reply_that_takes_too_long_is_ended(self) -> None:
        clock = self.Clock()
        async with running(ToySession(), Limits(reply_s=50), clock=clock) as dispatcher:
            ticket = dispatcher.submit(asking("!slow"), "a")
            await until(lambda: ticket.reply is not None)
            dispatcher.sweep()
            clock.now = 51
            dispatcher.sweep()
            with pytest.raises(TimeLimitError, match="longer than 50 s"):
                await drain(ticket)
            await until(lambda: not dispatcher.busy)

    async def test_a_request_does_not_wait_for_ever(self) -> None:
        clock = self.Clock()
        async with running(ToySession(), Limits(queue_s=5, reply_s=500), clock=clock) as dispatcher:
            first = dispatcher.submit(asking("!slow"), "a")
            await until(lambda: dispatcher.busy)
            second = dispatcher.submit(asking("hi"), "a")
            clock.now = 6
            dispatcher.sweep()
            with pytest.raises(QueueFullError, match="waited 5 s"):
                await drain(second)
            assert text(await drain(first))

    async def test_a_preparation_that_hangs_costs_the_worker_not_the_server(self) -> None:
        """A grammar or schema that explodes is compiled in the worker; the server ends it and goes on."""
        clock = self.Clock()
        gate = threading.Event()

        class Hanging(ToySession):
            restarts = 0

            def reply(self, request: Request) -> ToyReply:
                if text_of(request) == "hang":
                    gate.wait(WAIT_S)
                    raise EngineError("the session was restarted")
                return ToySession.reply(self, request)

            def restart(self) -> None:
                self.restarts += 1
                gate.set()

        session = Hanging()
        async with running(session, Limits(start_s=30), clock=clock) as dispatcher:
            hanging = dispatcher.submit(asking("hang"), "a")
            after = dispatcher.submit(asking("hi"), "a")
            await until(lambda: hanging.started_at is not None)
            clock.now = 31
            await asyncio.to_thread(dispatcher.sweep)
            with pytest.raises(TimeLimitError, match="could not be prepared within 30 s"):
                await drain(hanging)
            assert text(await drain(after))
            assert session.restarts == 1
            assert [r.max_tokens for r in session.requests].count(READY_TOKENS) == 2
