"""Readers of tool calls, fed with text piece by piece from the marker that starts them.

A reader tells its sink a call's name as soon as it is certain and its arguments as they arrive; text that
turns out to be no call it gives back. Four shapes cover the formats in use: JSON objects, a name followed by
its arguments, XML-like parameters, and formats that are read only when they are complete. A reader returns
None while it wants more, and what lies after the calls once they are over. Knows no particular format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from localspec.engine.text.jsonscan import JsonSpan
from localspec.engine.text.matcher import Matcher

MAX_HEAD = 2000
"""Characters in which a call must have said its name."""


class Sink(Protocol):
    """Who is told about calls."""

    @property
    def names(self) -> Collection[str]:
        """Tools that exist."""

    def string_parameter(self, tool: str, parameter: str) -> bool | None:
        """Whether the tool declares this parameter as a string; None when it says nothing."""

    def begin(self, name: str) -> None: ...

    def arguments(self, text: str) -> None: ...

    def text(self, text: str) -> None: ...


class Reader(Protocol):
    def feed(self, text: str) -> str | None:
        """Take more text, the marker first; returns what follows the calls when they are over."""

    def finish(self) -> None:
        """The text ends here."""


_ID = r'"(?:id|tool_call_id|type)"\s*:\s*"[^"]*"\s*,\s*'
_CALL_HEAD = re.compile(
    rf'\{{\s*(?:{_ID})*"(?:name|tool_name)"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*'
    r'"(?:arguments|parameters|args)"\s*:\s*(?=\{)'
)
_FIRST_KEY = re.compile(r'\{\s*"([^"]*)"')
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_KEYS = frozenset({"id", "tool_call_id", "type", "name", "tool_name", "function", *_ARGUMENT_KEYS})


class JsonCalls:
    """`{"name": …, "arguments": {…}}`, one or several, alone, in a list or separated by semicolons."""

    def __init__(self, sink: Sink, *, marker: str, close: str | None, known_only: bool = False) -> None:
        """
        Args:
            sink: is told about the calls.
            marker: what the calls start with, given back when none follows.
            close: the marker that ends them, if the format has one.
            known_only: an object that names no existing tool is text.
        """
        self._sink = sink
        self._marker = marker
        self._close = close
        self._known_only = known_only
        self._raw = ""  # what to give back while there was no call
        self._buffer = ""
        self._call: _JsonCall | None = None
        self._lists = 0
        self._rest: str | None = None

    def feed(self, text: str) -> str | None:
        if self._marker:
            self._raw, text = self._marker, text.removeprefix(self._marker)
            self._marker = ""
        while self._rest is None:
            if self._call is None:
                self._buffer += text
                self._seek()
                if self._call is None:
                    break
                text, self._buffer = self._buffer, ""
            rest = self._call.feed(text)
            if self._call.refused:
                self._sink.text(self._raw + self._call.seen)
                self._rest = rest or ""
            if rest is None:
                break
            self._call, self._raw, text = None, "", rest
        return self._rest

    def _seek(self) -> None:
        """Skip to the next object, or find that the calls are over."""
        body = self._buffer.lstrip(" \t\r\n,;")
        while body[:1] in ("[", "]"):
            self._lists += 1 if body[0] == "[" else -1
            body = body[1:].lstrip(" \t\r\n,;")
            if self._lists <= 0 and self._close is None:
                self._rest = body
                return
        if body.startswith("{"):
            self._raw += self._buffer[: len(self._buffer) - len(body)] if self._raw else ""
            self._buffer, self._call = body, _JsonCall(self._sink, self._known_only)
        elif self._close is not None and body.startswith(self._close):
            self._rest = body[len(self._close) :]
        elif body and not (self._close is not None and self._close.startswith(body)):
            self._sink.text(self._raw)
            self._rest = self._buffer

    def finish(self) -> None:
        if self._call is not None:
            if not self._call.begun:
                self._sink.text(self._raw + self._call.seen)
        elif self._raw:
            self._sink.text(self._raw + self._buffer)


class _JsonCall:
    """One object, from its brace on."""

    def __init__(self, sink: Sink, known_only: bool) -> None:
        self.seen = ""
        """The object so far, while the call has not begun."""
        self.begun = False
        self.refused = False
        """It is no call, `seen` is text."""
        self._sink = sink
        self._known_only = known_only
        self._object = JsonSpan()
        self._arguments: JsonSpan | None = None

    def feed(self, text: str) -> str | None:
        end = self._object.feed(text)
        inside, rest = (text, None) if end is None else (text[:end], text[end:])
        if self.begun:
            self._pass_on(inside)
            return rest
        self.seen += inside
        first = _FIRST_KEY.match(self.seen)
        if self._known_only and first is not None and first[1] not in _KEYS:
            self.refused = True
            return rest
        head = _CALL_HEAD.match(self.seen) if len(self.seen) - len(inside) <= MAX_HEAD else None
        if head is not None:
            self._begin(_loads(head[1]))
            if self.begun:
                self._arguments = JsonSpan()
                self._pass_on(self.seen[head.end() :])
        elif end is not None:
            name, arguments = _call_in(_loads(self.seen))
            self._begin(name)
            if self.begun:
                self._sink.arguments(arguments)
        return rest

    def _begin(self, name: Any) -> None:
        self.begun = isinstance(name, str) and (not self._known_only or name in self._sink.names)
        self.refused = not self.begun
        if self.begun:
            self._sink.begin(name)

    def _pass_on(self, text: str) -> None:
        if self._arguments is None:
            return
        end = self._arguments.feed(text)
        self._sink.arguments(text if end is None else text[:end])
        if end is not None:
            self._arguments = None


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _call_in(value: Any) -> tuple[Any, str]:
    """Name and JSON arguments of a call object, whatever the order of its keys; (None, …) if it is none."""
    if not isinstance(value, dict):
        return None, ""
    inner = value.get("function")
    if isinstance(inner, dict):  # the API's own way to write a call
        value = inner
    elif isinstance(inner, str):
        value = {"name": inner, **value}
    name = value.get("name", value.get("tool_name"))
    arguments: Any = next((value[key] for key in _ARGUMENT_KEYS if value.get(key) is not None), {})
    if isinstance(arguments, str) and isinstance(_loads(arguments), dict):  # JSON in a string once more
        return name, arguments
    return name, json.dumps(arguments, ensure_ascii=False)


class NamedCall:
    """A head that holds the name, then the arguments as they are."""

    def __init__(
        self, sink: Sink, *, head: re.Pattern[str], ends: Sequence[str] = (), free: bool = False
    ) -> None:
        """
        Args:
            sink: is told about the call.
            head: matches from the marker to the arguments; one of its groups is the tool's name.
            ends: markers after the call, which are swallowed.
            free: the arguments are whatever comes before the end marker; else they are one JSON object.
        """
        self._sink = sink
        self._head: re.Pattern[str] | None = head
        self._buffer = ""
        self._object = None if free else JsonSpan()
        self._free = free
        self._ends = Matcher(ends)

    def feed(self, text: str) -> str | None:
        if self._head is not None:
            self._buffer += text
            head = self._head.match(self._buffer)
            if head is None:
                if len(self._buffer) <= MAX_HEAD:
                    return None
                self._sink.text(self._buffer)
                return ""
            self._sink.begin(next(filter(None, head.groups())).strip())
            self._head, text = None, self._buffer[head.end() :]
        if self._object is not None:
            end = self._object.feed(text)
            self._sink.arguments(text if end is None else text[:end])
            if end is None:
                return None
            self._object, text = None, text[end:]
        if not self._ends.patterns:
            return text
        scan = self._ends.feed(text)
        if self._free:
            self._sink.arguments(scan.clear)
        return scan.rest if scan.hit is not None else None

    def finish(self) -> None:
        if self._head is not None:
            self._sink.text(self._buffer)
        elif self._free:
            self._sink.arguments(self._ends.flush())


class XmlSpec:
    """Where name, parameters and values of an XML-like call are."""

    def __init__(self, *, call: str, parameter: str, value_end: str, call_end: str) -> None:
        """
        Args:
            call: pattern from the marker to the end of the opening tag; its group is the name.
            parameter: pattern of a parameter's opening tag; its group is the parameter's name.
            value_end: the tag after a value.
            call_end: the tag after the last parameter.
        """
        self.call = re.compile(call)
        self.parameter = re.compile(rf"\s*{parameter}")
        self.value_end = value_end
        self.call_end = re.compile(rf"\s*{re.escape(call_end)}")


class XmlCall:
    """`<function=name><parameter=key>value</parameter></function>` and its relatives."""

    def __init__(self, sink: Sink, spec: XmlSpec) -> None:
        self._sink = sink
        self._spec = spec
        self._buffer = ""
        self._name: str | None = None
        self._key: str | None = None  # inside its value
        self._value: list[str] = []
        self._value_end = Matcher([spec.value_end])
        self._any = False

    def feed(self, text: str) -> str | None:
        self._buffer += text
        while True:
            step = self._step()
            if step is not None:
                return step[0]

    def _step(self) -> tuple[str | None] | None:
        """One tag or value. None to go on, else a tuple with what `feed` is to return."""
        spec = self._spec
        if self._key is not None:
            scan = self._value_end.feed(self._buffer)
            self._value.append(scan.clear)
            self._buffer = scan.rest
            if scan.hit is None:
                return (None,)
            self._parameter(self._key, "".join(self._value))
            self._key, self._value = None, []
            return None
        if self._name is None:
            if (call := spec.call.match(self._buffer)) is None:
                return self._wait_or_give_up()
            self._name = call[1].strip()
            self._sink.begin(self._name)
            self._buffer = self._buffer[call.end() :]
            return None
        if (end := spec.call_end.match(self._buffer)) is not None:
            self._sink.arguments("}" if self._any else "{}")
            return (self._buffer[end.end() :],)
        if (parameter := spec.parameter.match(self._buffer)) is None:
            return self._wait_or_give_up()
        self._key = parameter[1].strip()
        self._buffer = self._buffer[parameter.end() :]
        return None

    def _wait_or_give_up(self) -> tuple[str | None]:
        if len(self._buffer) <= MAX_HEAD:
            return (None,)
        buffer, self._buffer = self._buffer, ""
        if self._name is not None:
            self._sink.arguments("}" if self._any else "{}")
        self._sink.text(buffer)
        return ("",)

    def _parameter(self, key: str, value: str) -> None:
        value = value.removeprefix("\n").removesuffix("\n")
        assert self._name is not None
        is_string = self._sink.string_parameter(self._name, key)
        parsed = None if is_string else _loads(value)
        plain = is_string or (parsed is None and value.strip() != "null")
        written = json.dumps(value, ensure_ascii=False) if plain else value.strip()
        self._sink.arguments(f"{', ' if self._any else '{'}{json.dumps(key, ensure_ascii=False)}: {written}")
        self._any = True

    def finish(self) -> None:
        if self._name is None:
            self._sink.text(self._buffer)


class WholeCalls:
    """Calls in a notation that is translated once it is complete."""

    def __init__(
        self,
        sink: Sink,
        *,
        marker: str,
        close: str | None,
        translate: Callable[[str], list[tuple[str, Mapping[str, Any]]]],
    ) -> None:
        """
        Args:
            sink: is told about the calls.
            marker: what they start with.
            close: the marker that ends them; None = they go on to the end of the reply.
            translate: text between the two → (name, arguments) of each call; raises ValueError if it is none.
        """
        self._sink = sink
        self._marker = marker
        self._translate = translate
        self._close = Matcher([close] if close else [])
        self._seen: list[str] = []

    def feed(self, text: str) -> str | None:
        scan = self._close.feed(text)
        self._seen.append(scan.clear)
        if scan.hit is None:
            return None
        self._calls(self._close.patterns[0])
        return scan.rest

    def finish(self) -> None:
        self._seen.append(self._close.flush())
        self._calls("")

    def _calls(self, close: str) -> None:
        text = "".join(self._seen)
        try:
            calls = self._translate(text.removeprefix(self._marker))
        except (ValueError, RecursionError):
            self._sink.text(text + close)
            return
        for name, arguments in calls:
            self._sink.begin(name)
            self._sink.arguments(json.dumps(arguments, ensure_ascii=False))
