"""Separates what a model thinks from what it answers, in text that arrives in pieces.

Two families: *tags* (`<think>…</think>`, `[THINK]…[/THINK]`, …) and *headers*, where every message of the
reply names its channel or recipient before `<|message|>` (gpt-oss harmony, Muse). Which one a model uses is
read from its chat template. Markers never reach the reader. Knows nothing of tokens or templates' engines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from localspec.engine.events import Channel
from localspec.engine.text.matcher import Matcher

Span = tuple[str, Channel]


class Splitter(Protocol):
    """Assigns text to channels; what may still be a marker is held back."""

    channel: Channel

    def feed(self, text: str) -> list[Span]: ...

    def flush(self) -> list[Span]: ...


class ReasoningFormat(Protocol):
    """How one family of models marks its reasoning."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Every marker; those that are control tokens must reach the splitter as text."""

    def splitter(self, lead: str, *, tools: bool) -> Splitter:
        """A splitter for a reply that follows `lead`, the prompt's own start of the assistant's turn.

        `tools`: keep what names the recipient of a tool call, for the tool parser.
        """


@dataclass(frozen=True, slots=True)
class Tags:
    """Reasoning between two markers."""

    open: str
    close: str
    anywhere: bool = False
    """The opening marker is a control token, so it means reasoning wherever it appears."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.open, self.close)

    def splitter(self, lead: str, *, tools: bool) -> Splitter:
        return TagSplitter(self, opened=lead.rfind(self.open) > lead.rfind(self.close))


@dataclass(frozen=True, slots=True)
class Headers:
    """`<|start|>assistant` + channel or ` to=recipient` + `<|message|>` + text + an end marker."""

    ends: tuple[str, ...] = ("<|end|>", "<|return|>", "<|call|>")

    @property
    def markers(self) -> tuple[str, ...]:
        return ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", *self.ends)

    def splitter(self, lead: str, *, tools: bool) -> Splitter:
        splitter = HeaderSplitter(self, tools=tools)
        splitter.feed(lead[max(0, lead.rfind("<|start|>")) :])
        return splitter


_TAGS = (
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]", anywhere=True),
    Tags("<|channel>thought", "<channel|>", anywhere=True),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>", anywhere=True),
    Tags("<|inner_prefix|>", "<|inner_suffix|>", anywhere=True),
    Tags("◁think▷", "◁/think▷"),
    Tags("<reasoning>", "</reasoning>"),
    Tags("<thinking>", "</thinking>"),
    Tags("<thought>", "</thought>"),
)


def detect_reasoning(template: str) -> ReasoningFormat | None:
    """The format that a chat template writes or strips, or None."""
    if "<|message|>" in template and "<|start|>" in template:
        if "<|channel|>" in template:
            return Headers()
        if "to=self" in template:
            return Headers(("<|eom|>", "<|eot|>"))
    return next((tags for tags in _TAGS if tags.close in template), None)


class TagSplitter:
    """Newlines around the reasoning belong to the markers, not to either text."""

    def __init__(self, tags: Tags, *, opened: bool) -> None:
        self.channel: Channel = "reasoning" if opened else "content"
        self._tags = tags
        self._close = Matcher([tags.close])
        self._open = Matcher([tags.open]) if tags.anywhere else None
        self._start: str | None = None if opened else ""  # text before the first word, while undecided
        self._trim = opened  # drop newlines until the next character
        self._newlines = ""  # of the reasoning, held: they may precede the closing marker

    def feed(self, text: str) -> list[Span]:
        if self._open is None and self._start is None and not self._trim and self.channel == "content":
            return [(text, "content")] if text else []  # what is left can hold no marker
        spans: list[Span] = []
        while text:
            if self.channel == "reasoning":
                text = self._reason(text, spans)
            elif self._start is not None:
                text = self._decide(self._start + text, spans)
            else:
                text = self._answer(text, spans)
        return spans

    def _decide(self, text: str, spans: list[Span]) -> str:
        """At the start of the reply: is this the opening marker?"""
        body = text.lstrip()
        if body.startswith(self._tags.open):
            self._start, self._trim, self.channel = None, True, "reasoning"
            return body[len(self._tags.open) :]
        if self._tags.open.startswith(body):
            self._start = text
            return ""
        self._start = None
        return text

    def _reason(self, text: str, spans: list[Span]) -> str:
        scan = self._close.feed(text)
        self._emit(scan.clear, spans)
        if scan.hit is not None:
            self._newlines, self._trim, self.channel = "", True, "content"
        return scan.rest

    def _answer(self, text: str, spans: list[Span]) -> str:
        rest = ""
        if self._open is not None:
            scan = self._open.feed(text)
            text, rest = scan.clear, scan.rest
            self._emit(text, spans)
            if scan.hit is not None:
                self._trim, self.channel = True, "reasoning"
        else:
            self._emit(text, spans)
        return rest

    def _emit(self, text: str, spans: list[Span]) -> None:
        if self._trim:
            text = text.lstrip("\n")
            self._trim = not text
        if self.channel == "reasoning":
            text = self._newlines + text
            cut = len(text.rstrip("\n"))
            text, self._newlines = text[:cut], text[cut:]
        if text:
            spans.append((text, self.channel))

    def flush(self) -> list[Span]:
        """The end: an unfinished marker was text after all."""
        spans: list[Span] = []
        if self.channel == "reasoning":
            self._emit(self._close.flush(), spans)
        else:
            held = self._start or (self._open.flush() if self._open is not None else "")
            self._start = None
            self._emit(held, spans)
        return spans


_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>(\w+)")
_READERS = ("user", "assistant", "all")
_LONGEST_HEADER = 512


class HeaderSplitter:
    """Reads headers, shows bodies. A message to a tool is shown with its header when tools are wanted."""

    def __init__(self, headers: Headers, *, tools: bool) -> None:
        self.channel: Channel = "content"
        self._tools = tools
        self._ends = headers.ends
        self._body_marks = Matcher(("<|start|>", "<|channel|>", *headers.ends))
        self._header_end = Matcher(("<|message|>",))
        self._header: str | None = ""  # None inside a body
        self._to_tool = False
        self._between = False  # after an end marker nothing is text

    def feed(self, text: str) -> list[Span]:
        spans: list[Span] = []
        while text:
            text = self._read_body(text, spans) if self._header is None else self._read_header(text, spans)
        return spans

    def _read_header(self, text: str, spans: list[Span]) -> str:
        assert self._header is not None
        scan = self._header_end.feed(text)
        self._header += scan.clear
        if scan.hit is not None:
            self._open(self._header, spans)
            return scan.rest
        if len(self._header) > _LONGEST_HEADER:  # no header at all: the model just talks
            spans += self._surrender()
        return ""

    def _open(self, header: str, spans: list[Span]) -> None:
        header = _body_of(header)
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.findall(header)
        to = recipient[1] if recipient and recipient[1] not in _READERS else None
        self._to_tool = to is not None and to != "self"
        thinking = to == "self" or (channel[-1:] == ["analysis"] and not self._to_tool)
        self.channel = "reasoning" if thinking else "content"
        self._header = None
        if self._to_tool and self._tools:
            spans.append((f"<|start|>assistant{header}<|message|>", "content"))

    def _read_body(self, text: str, spans: list[Span]) -> str:
        scan = self._body_marks.feed(text)
        if scan.clear and not self._between:
            spans.append((scan.clear, self.channel))
        if scan.hit is None:
            return ""
        mark = self._body_marks.patterns[scan.hit]
        if mark in self._ends:
            if self._to_tool and self._tools and not self._between:
                spans.append((self._ends[0], "content"))
            self._between = True
        else:
            self._header, self._between = ("" if mark == "<|start|>" else mark), False
        return scan.rest

    def _surrender(self) -> list[Span]:
        header = (self._header or "") + self._header_end.flush()
        self._header, self.channel, self._to_tool = None, "content", False
        text = _body_of(header)
        return [(text, "content")] if text else []

    def flush(self) -> list[Span]:
        """The end. A header without its message is dropped; plain text in its place is shown."""
        if self._header is None:
            held = self._body_marks.flush()
            return [(held, self.channel)] if held and not self._between else []
        spans = self._surrender()
        return [] if any("<|" in text or "to=" in text for text, _ in spans) else spans


def _body_of(header: str) -> str:
    return header.removeprefix("<|start|>").removeprefix("assistant")
