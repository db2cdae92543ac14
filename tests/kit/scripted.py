"""A session that replays a script: for screens, servers and workers, never for proofs about caches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from localspec.engine.events import Done, Event, Prefill, Round, Token
from localspec.engine.settings import LoadSettings, Request
from localspec.engine.stats import Summary
from localspec.errors import EngineError
from localspec.interfaces import SessionInfo

INFO = SessionInfo(
    pair="scripted",
    target="scripted-target",
    drafts=("scripted-draft",),
    methods=("auto", "off", "ngram", "draft"),
    n_ctx=4096,
    n_vocab=1000,
    architecture="llama",
    effective=LoadSettings(n_ctx=4096),
    memory=(),
    devices=(),
    build="scripted",
)


def summary(
    tokens: int, *, prompt: int = 10, drafted: int = 0, accepted: int = 0, rounds: int = 1
) -> Summary:
    """A plausible summary with one 10 ms round per token."""
    return Summary(
        prompt_tokens=prompt, reused_tokens=0, completion_tokens=tokens, rounds=rounds, drafted=drafted,
        tested=drafted, accepted=accepted, prefill_s=0.1, decode_s=0.01 * max(rounds, 1), draft_s=0.0,
        verify_s=0.01 * max(rounds, 1), first_token_s=0.11, rows=rounds, tested_at=(), accepted_at=(),
        accepted_lengths=(),
    )  # fmt: skip


def words_as_events(text: str, *, words_per_round: int = 3) -> list[Event]:
    """The events of a reply that says `text`: the first word of a round is the target's own."""
    words = text.split(" ")
    pieces = [w if i == 0 else " " + w for i, w in enumerate(words)]
    events: list[Event] = [Prefill(10, 10, 0)]
    rounds = 0
    for start in range(0, len(pieces), words_per_round):
        chunk = pieces[start : start + words_per_round]
        events += [
            Token(start + i, piece, "content", i > 0, "ngram", rounds) for i, piece in enumerate(chunk)
        ]
        n = len(chunk) - 1
        events.append(
            Round("ngram", n, n, n, n + 1, 10 + start + len(chunk), 0.001, 0.01, 0.0005, len(chunk))
        )
        rounds += 1
    events.append(Done("stop", summary(len(pieces), rounds=rounds)))
    return events


@dataclass
class ScriptedReply:
    """Yields a list of events; `delay_s` passes before each; cancel ends with `Done(cancelled)`."""

    events: Sequence[Event]
    delay_s: float = 0.0
    _at: int = 0
    _cancelled: bool = False
    _ended: bool = False

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._ended or self._at >= len(self.events):
            raise StopIteration
        if self.delay_s:
            time.sleep(self.delay_s)
        if self._cancelled:
            self._ended = True
            return Done("cancelled", summary(self._at))
        event = self.events[self._at]
        self._at += 1
        self._ended = isinstance(event, Done)
        return event

    def cancel(self) -> None:
        self._cancelled = True

    def close(self) -> None:
        self._ended = True


@dataclass
class ScriptedSession:
    """Answers each request with the next script; the last one repeats. `requests` records them."""

    scripts: list[Sequence[Event]]
    delay_s: float = 0.0
    info: SessionInfo = INFO
    requests: list[Request] = field(default_factory=list)
    closed: bool = False

    def reply(self, request: Request) -> ScriptedReply:
        if self.closed:
            raise EngineError("the session is closed")
        self.requests.append(request)
        script = self.scripts[min(len(self.requests) - 1, len(self.scripts) - 1)]
        return ScriptedReply(script, self.delay_s)

    def close(self) -> None:
        self.closed = True


def crash(_: Request) -> NoReturn:
    """Die as a native abort does."""
    import os

    os.abort()
