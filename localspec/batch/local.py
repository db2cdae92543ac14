"""Answers items with a loaded pair, one after another or as many at once as it has slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Protocol

from pydantic import ValidationError

from localspec.api.assemble import Choice
from localspec.api.bodies import ChatBody, CompletionBody
from localspec.api.faults import fault_of, validation_fault
from localspec.api.requests import Ground, chat_requests, completion_requests
from localspec.api.writers import ChatWriter, CompletionWriter, Writer
from localspec.batch.lines import CHAT_URL, Item
from localspec.batch.results import Result, failed
from localspec.engine.settings import Request
from localspec.errors import EngineError, LocalspecError
from localspec.interfaces import SessionLike

DEATHS_IN_A_ROW = 3
"""After so many deaths of the model process without an answer between them, the rest would die too."""


class RestartableSession(SessionLike, Protocol):
    """A session in another process; `WorkerSession` is one."""

    @property
    def alive(self) -> bool: ...

    def restart(self) -> None: ...


def answers(
    session: RestartableSession,
    items: list[Item],
    base: Request,
    tell: Callable[[str], None] = lambda text: None,
) -> Iterator[Result]:
    """The result of each item as it is there, as many asked at once as the session has slots.

    A request that kills the model process costs only itself: those that ran beside it are asked again, one
    at a time, which also shows who it was.

    Args:
        tell: gets a sentence for people when that happens, since no result may show it.

    Raises:
        EngineError: the process dies again and again.
    """
    ground = Ground(session.info, base)
    waiting, suspects = deque(items), deque[Item]()
    deaths = 0
    while waiting or suspects:
        alone = bool(suspects) or session.info.effective.slots == 1
        for item, result in _until_death(session, suspects or waiting, ground, alone=alone):
            if not (alone or result.ok or session.alive):
                if not suspects:
                    tell(f"{_reason(result)}; what ran then is asked again, one at a time")
                suspects.append(item)
                continue
            deaths = deaths + 1 if alone and not session.alive else 0
            yield result
            if deaths == DEATHS_IN_A_ROW:
                raise EngineError(f"the model process died in {deaths} requests in a row: {_reason(result)}")
        if not session.alive:
            session.restart()


def _until_death(
    session: RestartableSession, waiting: deque[Item], ground: Ground, *, alone: bool
) -> Iterator[tuple[Item, Result]]:
    """Take items off `waiting` and answer them until none is left or the session dies."""
    if alone:
        while waiting:
            item = waiting.popleft()
            yield item, answer(session, item, ground)
            if not session.alive:
                return
        return
    found: SimpleQueue[tuple[Item, Result] | BaseException | None] = SimpleQueue()
    lock = Lock()

    def take() -> Item | None:
        with lock:
            return waiting.popleft() if waiting else None

    def work() -> None:
        try:
            while (item := take()) is not None:
                found.put((item, answer(session, item, ground)))
                if not session.alive:
                    break
        except BaseException as error:  # noqa: BLE001 (raised again below)
            found.put(error)
        found.put(None)

    working = session.info.effective.slots
    for _ in range(working):
        # A daemon: an interrupt ends the session first, and with it what still runs here.
        Thread(target=work, name="batch", daemon=True).start()
    while working:
        each = found.get()
        if isinstance(each, BaseException):
            raise each
        working -= each is None
        if each is not None:
            yield each


def answer(session: SessionLike, item: Item, ground: Ground) -> Result:
    """Ask one item; whatever is wrong with it is its result."""
    if item.fault is not None:
        return failed(item, item.fault)
    try:
        requests, writer = _asked(item, session.info.pair, ground)
        choices = [Choice(request, session.info) for request in requests]
        for choice in choices:
            choice.absorb(session.reply(choice.request))
        return Result(item, 200, writer.whole(choices).model_dump(mode="json", exclude_unset=True))
    except ValidationError as error:
        return failed(item, validation_fault(error.errors()))
    except LocalspecError as error:
        return failed(item, fault_of(error))


def _asked(item: Item, model: str, ground: Ground) -> tuple[list[Request], Writer]:
    if item.url == CHAT_URL:
        chat = ChatBody.model_validate(item.body)
        return chat_requests(chat, ground), ChatWriter(model, chat.n or 1)
    raw = CompletionBody.model_validate(item.body)
    requests = completion_requests(raw, ground)
    echoes = [request.prompt or "" if raw.echo else "" for request in requests]
    return requests, CompletionWriter(model, raw.n or 1, echoes)


def _reason(result: Result) -> str:
    error = result.body.get("error")
    return str(error.get("message")) if isinstance(error, dict) else "no reason given"
