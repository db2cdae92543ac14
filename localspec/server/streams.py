"""The two dialects of an answer, as bytes: chunks that end with `[DONE]`, and named events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pydantic import BaseModel

from localspec.api.assemble import Choice, Delta
from localspec.api.faults import Fault
from localspec.api.responses import ResponseEvent, ResponsesWriter
from localspec.api.writers import Chunk, Writer
from localspec.server.wire import DONE, sse


class Dialect(Protocol):
    """How one call is answered. A stream is `opening`, `delta`*, `closing` for each choice, then `end`."""

    def opening(self, index: int) -> bytes: ...

    def delta(self, index: int, delta: Delta) -> bytes: ...

    def closing(self, index: int, choice: Choice) -> bytes: ...

    def end(self, choices: list[Choice]) -> bytes: ...

    def failed(self, fault: Fault) -> bytes:
        """The end of a stream that broke: its status is sent already."""

    def whole(self, choices: list[Choice]) -> BaseModel: ...


class Chunks:
    """Chat and raw completions."""

    def __init__(self, writer: Writer, *, include_usage: bool) -> None:
        """`include_usage`: null usage in every chunk and the counts in one more, as OpenAI does."""
        self._writer = writer
        self._include_usage = include_usage

    def opening(self, index: int) -> bytes:
        return self._encoded(self._writer.opening(index))

    def delta(self, index: int, delta: Delta) -> bytes:
        return self._encoded(self._writer.delta(index, delta))

    def closing(self, index: int, choice: Choice) -> bytes:
        return self._encoded(self._writer.closing(index, choice))

    def end(self, choices: list[Choice]) -> bytes:
        return sse(self._writer.usage(choices)) + DONE if self._include_usage else DONE

    def failed(self, fault: Fault) -> bytes:
        return sse(fault.reply())  # OpenAI's clients raise on an event with `error`

    def whole(self, choices: list[Choice]) -> BaseModel:
        return self._writer.whole(choices)

    def _encoded(self, chunk: Chunk | None) -> bytes:
        if chunk is None:
            return b""
        if self._include_usage:
            chunk.usage = None  # marks the field as set, so that it appears as null
        return sse(chunk)


class Events:
    """Responses."""

    def __init__(self, writer: ResponsesWriter) -> None:
        self._writer = writer

    def opening(self, index: int) -> bytes:
        return self._encoded(self._writer.opening())

    def delta(self, index: int, delta: Delta) -> bytes:
        return self._encoded(self._writer.delta(delta))

    def closing(self, index: int, choice: Choice) -> bytes:
        return self._encoded(self._writer.closing(choice))

    def end(self, choices: list[Choice]) -> bytes:
        return b""

    def failed(self, fault: Fault) -> bytes:
        return self._encoded([self._writer.failed(fault)])

    def whole(self, choices: list[Choice]) -> BaseModel:
        return self._writer.whole(choices[0])

    def _encoded(self, events: Iterable[ResponseEvent]) -> bytes:
        return b"".join(sse(event, event.type) for event in events)
