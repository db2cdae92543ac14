"""Splits a reply into what is said and the tools it calls, while it arrives.

Fed only with text of committed tokens: a call seen in a draft that the target then rejects never exists.
Deltas have the shape of OpenAI's streaming API: a call's first delta has its id and name, later ones have
fragments of its arguments, JSON text as the model wrote it. Knows nothing of tokens or channels.
"""

from __future__ import annotations

import itertools
import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.engine.text.matcher import Matcher
from localspec.engine.text.toolformats import ToolFormat, known_names
from localspec.engine.text.toolreaders import Reader


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of one call."""

    index: int
    """0-based number of the call within the reply."""
    id: str | None
    """With the call's first delta only, like the name."""
    name: str | None
    arguments: str
    """A fragment of the JSON text."""


Delta = ContentDelta | CallDelta


@dataclass(slots=True)
class ToolCall:
    """One call as far as it has arrived."""

    id: str
    name: str
    arguments: str
    """JSON text; incomplete when the reply was cut off."""


_ALPHABET = string.ascii_letters + string.digits


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


class ToolParser:
    """The parser of one reply; feed it the text of the content channel."""

    def __init__(
        self, format: ToolFormat, tools: Sequence[Any] = (), *, random: Callable[[int], str] = _random
    ) -> None:
        """
        Args:
            format: notation of the calls.
            tools: OpenAI tool definitions of the request.
            random: letters and digits for the ids of calls.
        """
        self.calls: list[ToolCall] = []
        """All calls so far."""
        self._format = format
        self._random = random
        self._parameters = known_names(tools)
        self._markers = Matcher([*(marker for marker, _ in format.starts), *format.noise])
        self._reader: Reader | None = None
        self._start: str | None = "" if format.bare is not None else None  # undecided start of the reply
        self._space = ""  # at the end of the text so far: dropped when a call follows
        self._deltas: list[Delta] = []

    # --- what a reader reports (`toolreaders.Sink`)

    @property
    def names(self) -> Sequence[str]:
        return list(self._parameters)

    def string_parameter(self, tool: str, parameter: str) -> bool | None:
        declared = self._parameters.get(tool, {}).get(parameter)
        kind = declared.get("type") if isinstance(declared, dict) else None
        return None if kind is None else kind == "string"

    def begin(self, name: str) -> None:
        prefix, index = self._format.call_id, len(self.calls)
        id = (
            self._random(9) if prefix == "9" else
            f"{prefix}{name}:{index}" if prefix == "functions." else prefix + self._random(24)
        )  # fmt: skip
        self.calls.append(ToolCall(id, name, ""))
        self._space = ""
        self._deltas.append(CallDelta(index, id, name, ""))

    def arguments(self, text: str) -> None:
        if text:
            self.calls[-1].arguments += text
            self._deltas.append(CallDelta(len(self.calls) - 1, None, None, text))

    def text(self, text: str) -> None:
        text = self._space + text
        cut = len(text.rstrip())
        self._space = text[cut:]
        if cut:
            self._deltas.append(ContentDelta(text[:cut]))

    # --- what the caller uses

    def feed(self, text: str) -> list[Delta]:
        """What more committed text settles."""
        rest: str | None = text
        while rest:
            rest = self._reader.feed(rest) if self._reader is not None else self._look(rest)
            if rest is not None:
                self._reader = None
        return self._take()

    def _look(self, text: str) -> str | None:
        """Text outside calls: up to the next marker, whose reader then gets it."""
        if self._start is not None:
            text = self._start + text
            body = text.lstrip()
            if not body:
                self._start = text
                return None
            self._start = None
            if body[0] in "{[" and self._format.bare is not None:
                self._reader = self._format.bare(self, "")
                return self._reader.feed(text)
        scan = self._markers.feed(text)
        self.text(scan.clear)
        if scan.hit is None:
            return None
        marker = self._markers.patterns[scan.hit]
        factory = next((factory for start, factory in self._format.starts if start == marker), None)
        if factory is None:  # noise
            return scan.rest
        self._reader = factory(self, marker)
        return self._reader.feed(marker + scan.rest)

    def finish(self) -> list[Delta]:
        """The end of the reply: what is still undecided is text; a call that was cut off stays as it is."""
        if self._reader is not None:
            self._reader.finish()
            self._reader = None
        else:
            self.text((self._start or "") + self._markers.flush())
        self._start = None
        if not self.calls and self._space:
            self._deltas.append(ContentDelta(self._space))
        return self._take()

    def _take(self) -> list[Delta]:
        deltas, self._deltas = self._deltas, []
        return _joined(deltas)


def _joined(deltas: Sequence[Delta]) -> list[Delta]:
    """Neighbouring text deltas as one."""
    joined: list[Delta] = []
    for is_text, group in itertools.groupby(deltas, lambda delta: isinstance(delta, ContentDelta)):
        if is_text:
            joined.append(ContentDelta("".join(d.text for d in group if isinstance(d, ContentDelta))))
        else:
            joined += group
    return joined
