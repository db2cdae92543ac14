"""A toy engine that answers from the request alone: the same request always gets the same words.

For servers and batches: its replies are deterministic, depend on prompt and seed, and obey `max_tokens`,
`stop`, `logprobs` and `prediction`, so that mixed-up replies and wrong counts show. Words in the prompt
make it misbehave: `!abort`, `!error`, `!refuse`, `!long`, `!slow`, `!say TEXT`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from localspec.engine.events import Done, DoneReason, Event, Loading, Prefill, Round, Token
from localspec.engine.settings import LoadSettings, Request
from localspec.errors import EngineError, PromptTooLongError, UsageError
from localspec.interfaces import PairFiles
from tests.kit.scripted import INFO, ScriptedReply, summary

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "juniper")
LENGTH = 24
SLOW_S = 0.02


def text_of(request: Request) -> str:
    """What the request says last."""
    return request.prompt if request.prompt is not None else request.messages[-1].content


def words_for(request: Request) -> list[str]:
    """The reply's words, each with its leading space."""
    text = text_of(request)
    if "!say " in text:
        return [" " * (i > 0) + word for i, word in enumerate(text.partition("!say ")[2].split(" "))]
    if request.prediction is not None:
        return [" " * (i > 0) + word for i, word in enumerate(request.prediction.split(" "))]
    # The whole conversation counts, as it does for a model.
    seen = "\0".join(m.role + m.content for m in request.messages) + (request.prompt or "")
    digest = hashlib.sha256(f"{seen}|{request.sampling.seed}".encode()).digest()
    return [" " * (i > 0) + WORDS[digest[i % 32] % len(WORDS)] for i in range(LENGTH)]


@dataclass
class ToyReply:
    """Rounds of three words."""

    request: Request
    delay_s: float = 0.0
    cancelled: bool = False
    _events: Iterator[Event] = field(init=False)

    def __post_init__(self) -> None:
        self._events = self._generate()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return next(self._events)

    def cancel(self) -> None:
        self.cancelled = True

    def close(self) -> None:
        self._events = iter(())

    def _generate(self) -> Iterator[Event]:
        text = text_of(self.request)
        prompt = len(text.split()) + sum(len(m.content.split()) for m in self.request.messages[:-1])
        yield Prefill(prompt, prompt, 0)
        method = "ngram" if self.request.prediction is not None else "draft"
        said = ""
        drafted = count = rounds = 0
        words = words_for(self.request)
        reason: DoneReason = "stop"
        while count < len(words) and reason == "stop":
            if self.cancelled:
                reason = "cancelled"
                break
            time.sleep(SLOW_S if "!slow" in text else self.delay_s)
            if "!abort" in text and rounds == 1:
                os.abort()
            if "!error" in text and rounds == 1:
                yield Done("error", summary(count), error="a row was not finite")
                return
            committed = 0
            for word in words[count : count + 3]:
                said += word
                stopped = any(stop in said for stop in self.request.stop)
                yield self._token(count, "" if stopped else word, committed > 0, method, rounds)
                count += 1
                committed += 1
                if stopped:
                    words = words[:count]
                    break
                if count == self.request.max_tokens:
                    reason = "length"
                    break
            drafted += committed - 1
            yield Round(
                method,
                committed - 1,
                committed - 1,
                committed - 1,
                committed,
                prompt + count,
                0.0,
                0.0,
                0.0,
                committed,
            )
            rounds += 1
        done = summary(count, prompt=prompt, drafted=drafted, accepted=drafted, rounds=rounds)
        yield Done(reason, replace(done, methods=(method,), tested_at=(drafted,), accepted_at=(drafted,)))

    def _token(self, index: int, word: str, from_draft: bool, method: str, number: int) -> Token:
        wanted = self.request.logprobs
        if wanted is None:
            return Token(index, word, "content", from_draft, method, number)
        ids = range(wanted)
        return Token(
            index,
            word,
            "content",
            from_draft,
            method,
            number,
            logprob=-0.25 * (index + 1),
            top=tuple((i, -0.25 * (index + 1) - i) for i in ids),
            piece=word.encode(),
            top_pieces=tuple(word.encode() if i == 0 else f"t{i}".encode() for i in ids),
        )


@dataclass
class ToySession:
    """A `SessionLike` without a model."""

    delay_s: float = 0.0
    closed: bool = False
    requests: list[Request] = field(default_factory=list)
    info = INFO
    alive = True

    def reply(self, request: Request) -> ToyReply:
        if self.closed:
            raise EngineError("the session is closed")
        text = text_of(request)
        if "!refuse" in text:
            raise UsageError("the grammar does not parse at line 1", hint="see the GBNF guide")
        if "!long" in text:
            raise PromptTooLongError("the prompt has 9000 tokens, the context 4096")
        self.requests.append(request)
        return ToyReply(request, self.delay_s)

    def restart(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def open_toy(files: PairFiles, load: LoadSettings, notify: Callable[[Loading], None]) -> ToySession:
    """Factory for a worker."""
    session = ToySession()
    session.info = replace(INFO, effective=replace(INFO.effective, slots=load.slots))
    return session


@dataclass
class Metronome(ToySession):
    """Says `max_tokens` words as fast as Python can, one a round: what plain decoding costs a server most."""

    def reply(self, request: Request) -> ScriptedReply:  # type: ignore[override]
        events: list[Event] = [Prefill(1, 1, 0)]
        count = request.max_tokens or 1
        for n in range(count):
            events += [Token(n, " word", "content", False, "off", n), Round("off", 0, 0, 0, 1, n, 0, 0, 0, 1)]
        return ScriptedReply([*events, Done("length", summary(count, rounds=count))])


def open_metronome(files: PairFiles, load: LoadSettings, notify: Callable[[Loading], None]) -> Metronome:
    """Factory for a worker."""
    return Metronome()
