"""Sessions for a worker child, named by dotted path in tests. Never import this in the parent's hot path.

`LoadSettings.threads` is borrowed as the number a factory needs (a pause in tenths of a second).
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from localspec.engine.events import Done, Event, Loading, Prefill, Token
from localspec.engine.settings import LoadSettings, Request
from localspec.errors import DoesNotFitError, PromptTooLongError
from localspec.interfaces import PairFiles
from tests.kit.scripted import INFO, ScriptedReply, ScriptedSession, summary, words_as_events

Notify = Callable[[Loading], None]
LIBC = ctypes.CDLL(None)


def native_sleep(seconds: int) -> None:
    """Sleep inside a C call, as a decode does: no Python code of this thread runs meanwhile."""
    LIBC.sleep(seconds)


def hold_the_interpreter(seconds: int) -> None:
    """Sleep inside a C call that keeps the interpreter lock: no thread of the process runs."""
    ctypes.PyDLL(None).sleep(seconds)


def words(files: PairFiles, load: LoadSettings, notify: Notify) -> ScriptedSession:
    """Says eight words, with two progress events while loading."""
    notify(Loading("target scripted", 0.5))
    notify(Loading("target scripted", 1.0))
    delay = (load.threads or 0) / 10
    info = replace(INFO, pair=files.name, effective=load)
    return ScriptedSession([words_as_events("one two three four five six seven eight")], delay, info)


def flood(files: PairFiles, load: LoadSettings, notify: Notify) -> ScriptedSession:
    """Says `n_ctx` tokens as fast as Python can."""
    count = load.n_ctx or 1000
    events: list[Event] = [Token(i, "x", "content", False, "off", i) for i in range(count)]
    return ScriptedSession([[Prefill(1, 1, 0), *events, Done("length", summary(count))]])


@dataclass
class StampedReply(ScriptedReply):
    """Puts the system-wide clock into `logprob`, to measure how long an event travels."""

    def __next__(self) -> Event:
        event = ScriptedReply.__next__(self)
        return replace(event, logprob=time.monotonic()) if isinstance(event, Token) else event


class StampedSession(ScriptedSession):
    def reply(self, request: Request) -> ScriptedReply:
        return StampedReply(ScriptedSession.reply(self, request).events, delay_s=0.01)


def stamped(files: PairFiles, load: LoadSettings, notify: Notify) -> StampedSession:
    """Says thirty words, one each 10 ms."""
    return StampedSession([words_as_events(" ".join(["word"] * 30), words_per_round=1)])


@dataclass
class ActingReply(ScriptedReply):
    """Does `act` after `after` events."""

    act: Callable[[], None] = lambda: None
    after: int = 3

    def __next__(self) -> Event:
        if self._at == self.after:
            self.act()
        return ScriptedReply.__next__(self)

    def __iter__(self) -> Iterator[Event]:
        return self


class ActingSession(ScriptedSession):
    """A session whose first reply does something in the middle; later ones are plain."""

    act: Callable[[], None] = staticmethod(lambda: None)

    def reply(self, request: Request) -> ScriptedReply:
        plain = ScriptedSession.reply(self, request)
        if len(self.requests) > 1 and request.prompt != "again":
            return plain
        return ActingReply(plain.events, act=self.act)


def _acting(act: Callable[[], None]) -> ActingSession:
    session = ActingSession([words_as_events("one two three four five six")])
    session.act = act  # type: ignore[method-assign]
    return session


def abort_in_reply(files: PairFiles, load: LoadSettings, notify: Notify) -> ActingSession:
    def act() -> None:
        time.sleep(0.2)
        sys.stderr.write("ggml.c:123: GGML_ASSERT(n_tokens > 0) failed\n")
        sys.stderr.flush()
        LIBC.abort()

    return _acting(act)


def killed_in_reply(files: PairFiles, load: LoadSettings, notify: Notify) -> ActingSession:
    """As the kernel does when memory runs out."""

    def act() -> None:
        time.sleep(0.2)  # lets the sender write what was said so far
        os.kill(os.getpid(), signal.SIGKILL)

    return _acting(act)


def hang_in_reply(files: PairFiles, load: LoadSettings, notify: Notify) -> ActingSession:
    return _acting(lambda: native_sleep(60))


def hang_with_lock_in_reply(files: PairFiles, load: LoadSettings, notify: Notify) -> ActingSession:
    def act() -> None:
        time.sleep(0.2)
        hold_the_interpreter(60)

    return _acting(act)


def raise_in_reply(files: PairFiles, load: LoadSettings, notify: Notify) -> ActingSession:
    def act() -> None:
        raise KeyError("logits")

    return _acting(act)


class RefusingSession(ScriptedSession):
    def reply(self, request: Request) -> ScriptedReply:
        if request.prompt == "long":
            raise PromptTooLongError("the prompt has 9000 tokens, the context 4096", hint="shorten it")
        return ScriptedSession.reply(self, request)


def refuse_long(files: PairFiles, load: LoadSettings, notify: Notify) -> RefusingSession:
    return RefusingSession([words_as_events("one two three")])


def sleep_in_load(files: PairFiles, load: LoadSettings, notify: Notify) -> ScriptedSession:
    notify(Loading("target scripted", 0.1))
    native_sleep(60)
    return words(files, load, notify)


def hold_lock_in_load(files: PairFiles, load: LoadSettings, notify: Notify) -> ScriptedSession:
    notify(Loading("target scripted", 0.1))
    time.sleep(0.2)  # lets the sender write the progress
    hold_the_interpreter(60)
    return words(files, load, notify)


def logs_while_loading(files: PairFiles, load: LoadSettings, notify: Notify) -> ScriptedSession:
    logging.getLogger("localspec.llama").warning("the cache is small")
    return words(files, load, notify)


def abort_in_load(files: PairFiles, load: LoadSettings, notify: Notify) -> ScriptedSession:
    LIBC.abort()
    return words(files, load, notify)


def does_not_fit(files: PairFiles, load: LoadSettings, notify: Notify) -> ScriptedSession:
    raise DoesNotFitError("the pair needs 30.1 GiB, 22.0 GiB are free", hint="a shorter context fits: 4096")


def broken_factory(files: PairFiles, load: LoadSettings, notify: Notify) -> ScriptedSession:
    raise ZeroDivisionError("in the loader")
