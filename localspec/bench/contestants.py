"""What a benchmark races: a method of a loaded pair, and how one of its answers is timed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from localspec.engine.events import Event, Notice, Round
from localspec.engine.settings import Message, Method, Request, SpeculationSettings
from localspec.engine.stats import Summary
from localspec.interfaces import SessionInfo, SessionLike
from localspec.measuring import run

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Answer:
    """One timed answer; prefill is not in `seconds`."""

    tokens: int
    seconds: float
    summary: Summary | None = None
    """Counts of our own engine; None of a reference."""
    paused_tokens: int = 0
    """Tokens decoded while speculation was paused."""


class Contestant(Protocol):
    """Anything that answers a prompt and is timed."""

    @property
    def name(self) -> str: ...

    @property
    def k(self) -> int | str:
        """Fixed draft length, or `auto`."""

    def answer(self, prompt: str, max_tokens: int) -> Answer:
        """Answer with empty caches."""


@dataclass(slots=True)
class _Paused:
    """Counts tokens of rounds between a pause and its end."""

    paused: bool = False
    tokens: int = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice) and event.kind in ("paused", "resumed"):
            self.paused = event.kind == "paused"
        elif isinstance(event, Round) and self.paused:
            self.tokens += event.committed


@dataclass(slots=True)
class Speculating:
    """One method of a loaded pair (`off` is plain decoding)."""

    session: SessionLike
    request: Request
    """Sampling and speculation; messages and length are filled in."""
    name: str = field(init=False)
    k: int | str = field(init=False)

    def __post_init__(self) -> None:
        asked = self.request.speculation
        self.name = PLAIN if asked.method == "off" else asked.method
        self.k = 0 if asked.method == "off" else "auto" if asked.k is None else asked.k

    def answer(self, prompt: str, max_tokens: int) -> Answer:
        """Time one reply over the decode clock of its rounds."""
        self._displace()
        watch = _Paused()
        messages = (*self.request.messages, Message("user", prompt))
        done = run(self.session, replace(self.request, messages=messages, max_tokens=max_tokens), watch)
        return Answer(len(done.ids), done.counts.decode_s, done.counts, watch.tokens)

    def _displace(self) -> None:
        """Fill the caches of target and drafters with another text: it shares no more than a first token."""
        run(self.session, replace(self.request, messages=(), prompt=".", max_tokens=1))


def contestants(session: SessionLike, request: Request) -> list[Contestant]:
    """Plain decoding, then the asked method, or `auto` and every method the pair has."""
    asked = request.speculation
    info: SessionInfo = session.info
    every = asked.method in ("auto", "off")
    methods: list[Method] = [m for m in info.methods if m != "off"] if every else [asked.method]
    plain = replace(request, speculation=SpeculationSettings(method="off"))
    return [
        Speculating(session, plain),
        *(
            Speculating(session, replace(request, speculation=replace(asked, method=method)))
            for method in methods
        ),
    ]
