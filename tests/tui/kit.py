"""What the screen tests share: a chat on a scripted session, a clock, and waiting for what must happen."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from localspec.config import Config
from localspec.engine.events import Done, Event, Loading, Prefill, Round, Token
from localspec.engine.settings import Request
from localspec.errors import EngineError, LocalspecError
from localspec.interfaces import DeviceMemory, MemoryItem, SessionInfo
from localspec.store import ChatStore
from localspec.tui.app import LocalspecApp, make_app
from localspec.tui.controller import Wish
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.setup import ChatSetup
from tests.kit.scripted import INFO, ScriptedSession, summary, words_as_events

GIB = 1 << 30
RICH_INFO = replace(
    INFO,
    memory=(
        MemoryItem("target weights", "CUDA0", 14 * GIB),
        MemoryItem("draft weights", "CUDA0", GIB),
        MemoryItem("target KV", "CUDA0", 2 * GIB),
        MemoryItem("target compute", "CUDA0", GIB // 2),
    ),
    devices=(DeviceMemory("CUDA0", "a card", "gpu", 6 * GIB, 24 * GIB),),
)


@dataclass
class SteppedReply:
    """A reply that moves when the test lets it: `let(n)` frees n events, `cancel` ends it."""

    events: Sequence[Event]
    _allowed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _at: int = 0
    _cancelled: bool = False
    cancelled_at: float | None = None

    def let(self, count: int) -> None:
        for _ in range(count):
            self._allowed.release()

    def let_all(self) -> None:
        self.let(len(self.events))

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._at >= len(self.events):
            raise StopIteration
        self._allowed.acquire()
        if self._cancelled:
            self._at = len(self.events)
            return Done("cancelled", summary(3))
        event = self.events[self._at]
        self._at += 1
        return event

    def cancel(self) -> None:
        self._cancelled = True
        self.cancelled_at = time.monotonic()
        self._allowed.release()

    def close(self) -> None:
        self.cancel()


@dataclass
class SteppedSession:
    """A session whose replies the test drives; `replies` and `requests` record them."""

    scripts: Sequence[Sequence[Event] | LocalspecError]
    info: SessionInfo = INFO
    requests: list[Request] = field(default_factory=list)
    replies: list[SteppedReply] = field(default_factory=list)
    closed: bool = False

    def reply(self, request: Request) -> SteppedReply:
        self.requests.append(request)
        script = self.scripts[min(len(self.requests), len(self.scripts)) - 1]
        if isinstance(script, LocalspecError):
            raise script
        self.replies.append(SteppedReply(script))
        return self.replies[-1]

    def close(self) -> None:
        self.closed = True
        for reply in self.replies:
            reply.close()


class MortalSession(SteppedSession):
    """A session that is gone once the test says so."""

    dead = False

    @property
    def info(self) -> SessionInfo:
        if self.dead:
            raise EngineError("the model process was killed", hint="load the model again")
        return INFO

    @info.setter
    def info(self, value: SessionInfo) -> None: ...


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Chat:
    """A running chat under test."""

    def __init__(
        self, app: LocalspecApp, pilot: Pilot[None], sessions: list[Any], wishes: list[Wish]
    ) -> None:
        self.app = app
        self.pilot = pilot
        self.sessions = sessions
        self.wishes = wishes

    @property
    def screen(self) -> ChatScreen:
        return self.app.chat

    @property
    def session(self) -> Any:
        return self.sessions[-1]

    async def wait(self, condition: Callable[[], object], what: str = "", within_s: float = 5.0) -> None:
        """Poll until something is true; the screen's text goes into the failure."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"never happened: {what}\n{self.text()}")
            await self.pilot.pause(0.01)

    async def wait_text(self, text: str, within_s: float = 5.0) -> None:
        """Wait for a text on the screen, or in a toast, which wraps it."""
        await self.wait(
            lambda: text in self.text() or text in self.toasts(), f"`{text}` on the screen", within_s
        )

    async def ready(self) -> None:
        await self.wait(lambda: self.screen.controller.state == "ready", "ready")
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        """Put a text into the prompt as a paste would, and press Enter."""
        self.screen.prompt.insert(text)
        await self.pilot.press("enter")
        await self.pilot.pause()

    async def begin(self, text: str) -> SteppedReply:
        """Send a message to a `SteppedSession`; returns its reply once it is asked for."""
        before = len(self.session.replies)
        await self.type(text)
        await self.wait(lambda: len(self.session.replies) > before, "the reply")
        reply: SteppedReply = self.session.replies[-1]
        return reply

    async def ask(self, text: str) -> None:
        """Send a message and wait until the reply has ended."""
        await self.type(text)
        await self.finished()

    async def finished(self) -> None:
        await self.wait(lambda: not self.screen.writer.busy and not self.screen.controller.busy, "finished")
        await self.pilot.pause()

    def toasts(self) -> str:
        """What is said in passing now."""
        return "\n".join(notification.message for notification in self.app._notifications)

    def text(self) -> str:
        """What is on the screen, as text."""
        return screen_text(self.app)


def screen_text(app: LocalspecApp) -> str:
    """The whole terminal as lines of text, dialogs and toasts included."""
    return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips(app.screen.size))


def config(folder: Path, **values: Any) -> Config:
    return Config(file=folder / "config.toml", models_dir=folder / "models", **values)


def make_setup(folder: Path, make_session: Any, **values: Any) -> ChatSetup:
    defaults: dict[str, Any] = {
        "config": config(folder),
        "store": ChatStore(folder / "chats.db"),
        "log": folder / "localspec.log",
    }
    return ChatSetup(make_session=make_session, **(defaults | values))


@asynccontextmanager
async def chatting(
    folder: Path,
    session: Callable[[], Any] | None = None,
    *,
    make_session: Any = None,
    size: tuple[int, int] = (100, 30),
    wait_ready: bool = True,
    **values: Any,
) -> AsyncIterator[Chat]:
    """A chat on a scripted session; `values` go into the `ChatSetup`."""
    sessions: list[Any] = []
    wishes: list[Wish] = []
    opened = session or (lambda: ScriptedSession([words_as_events("one two three four five six seven")]))

    def make(wish: Wish, notify: Callable[[Loading], None]) -> Any:
        wishes.append(wish)
        made = make_session(wish, notify) if make_session else opened()
        sessions.append(made)
        return made

    app = make_app(make_setup(folder, make, **values))
    async with app.run_test(size=size, notifications=True, tooltips=False) as pilot:
        chat = Chat(app, pilot, sessions, wishes)
        if wait_ready:
            await chat.ready()
        try:
            yield chat
        finally:
            app.chat.writer.settle()
            app.chat.controller.close()
    app.chat.setup.store.close()


def run(work: Any) -> None:
    """Run a test's coroutine; the suite needs no plug-in for it."""
    asyncio.run(work)


def reply_of(*words: str, drafted: Sequence[bool] = (), done: Done | None = None) -> list[Event]:
    """One round per word; `drafted[i]` marks word i as an accepted draft of the round before it."""
    events: list[Event] = [Prefill(4, 4, 0)]
    for i, word in enumerate(words):
        from_draft = i < len(drafted) and drafted[i]
        events.append(Token(i, word, "content", from_draft, "ngram", i))
        events.append(Round("ngram", 1, 1, int(from_draft), 2, 4 + i, 0.001, 0.01, 0.0, 1))
    return [*events, done or Done("stop", summary(len(words)))]
