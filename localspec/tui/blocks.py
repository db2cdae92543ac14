"""Cuts a growing Markdown text into parts of bounded size, so that drawing one more token stays cheap.

Only the last part can still change. Where the cuts fall depends on the text alone, never on how it was
fed, so a finished reply needs no redraw. A code fence becomes code parts of at most `MAX_LINES` lines;
the source text is kept by the caller, parts are for drawing only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

MAX_LINES = 60
MAX_CHARS = 4000
SOFT_LINES = 12
SOFT_CHARS = 1000
"""A text part this long ends at the next paragraph."""

_FENCE = re.compile(
    r"^(?P<before>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?)(?P<mark>`{3,}|~{3,})(?P<info>[^`\n]*)$"
)
_ITEM = re.compile(r"^(?:[-*+]|\d{1,9}[.)])[ \t]")


@dataclass(slots=True)
class Part:
    """A run of text, or of code inside one fence."""

    kind: Literal["text", "code"]
    language: str = ""
    indent: int = 0
    """Columns of the fence, which its code lines are relative to."""
    continued: bool = False
    """This part carries on the code of the one before."""
    lines: list[str] = field(default_factory=list)
    tail: str = ""
    """The unfinished last line, of the last part only."""
    chars: int = 0

    @property
    def source(self) -> str:
        return "\n".join([*self.lines, self.tail] if self.tail else self.lines)


class Splitter:
    """Feed text in any pieces; `parts` is the document so far."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._tail = ""
        self._fence = ""
        """The marks that opened the fence we are in; "" outside."""

    def feed(self, text: str) -> int:
        """Add text; returns the index of the first part that changed or is new."""
        first = max(0, len(self.parts) - 1)
        text = self._tail + text
        start = 0
        while True:
            end = text.find("\n", start)
            if end < 0 or end - start > MAX_CHARS:
                if len(text) - start <= MAX_CHARS:
                    break
                cut = text.rfind(" ", start + 1, start + MAX_CHARS) + 1 or start + MAX_CHARS
                self._add(text[start:cut])
                start = cut
                continue
            self._line(text[start:end])
            start = end + 1
        self._tail = text[start:]
        self._show_tail()
        return min(first, max(0, len(self.parts) - 1))

    def finish(self) -> None:
        """The text is complete: what could have become a fence mark is a line like any other."""
        if self._tail:
            self._line(self._tail)
            self._tail = ""
            self._show_tail()

    def _show_tail(self) -> None:
        mark = self._tail.strip()
        # What may become a fence mark is not drawn before it is known.
        tail = "" if mark.startswith(("```", "~~~")) or not mark.strip("`~") else self._tail
        for part in self.parts[-1:]:
            part.tail = ""
        if tail and self._needs_new_part(tail):
            self._open_like_last()
        if tail:
            self.parts[-1].tail = tail

    def _line(self, line: str) -> None:
        if self.parts:
            self.parts[-1].tail = ""
        line = line.removesuffix("\r")
        if self._fence:
            mark = line.strip()
            if len(mark) >= len(self._fence) and not mark.strip(self._fence[0]):
                self._fence = ""
                self.parts.append(Part("text"))
            else:
                self._add(line)
            return
        fence = _FENCE.match(line)
        if fence is None:
            self._add(line)
            return
        before = fence["before"]
        if before.strip():
            self._add(before.rstrip())
        self._fence = fence["mark"]
        self._drop_if_empty()
        language = fence["info"].strip().split(" ")[0]
        self.parts.append(Part("code", language, len(before.expandtabs(4))))

    def _add(self, line: str) -> None:
        if self._needs_new_part(line):
            self._open_like_last()
        part = self.parts[-1]
        if part.kind == "code" and part.indent:
            blank = len(line) - len(line.lstrip(" "))
            line = line[min(part.indent, blank) :]
        elif part.kind == "text" and not part.lines and not line.strip():
            return
        part.lines.append(line)
        part.chars += len(line) + 1

    def _open_like_last(self) -> None:
        last = self.parts[-1] if self.parts else Part("text")
        if last.kind == "code":
            self.parts.append(Part("code", last.language, last.indent, continued=True))
        else:
            self._drop_if_empty()
            self.parts.append(Part("text"))

    def _drop_if_empty(self) -> None:
        if self.parts and self.parts[-1].kind == "text" and not self.parts[-1].lines:
            self.parts.pop()

    def _needs_new_part(self, line: str) -> bool:
        """Whether `line` begins a new part: the open one is full, or long and this is a paragraph's start."""
        if not self.parts:
            return True
        part = self.parts[-1]
        if len(part.lines) >= MAX_LINES or part.chars + len(line) > MAX_CHARS + 200:
            return bool(part.lines)
        if part.kind == "code" or not part.lines or not line.strip():
            return False
        if len(part.lines) < SOFT_LINES and part.chars < SOFT_CHARS:
            return False
        if part.lines[-1].strip():
            return len(part.lines) >= 2 * SOFT_LINES and bool(_ITEM.match(line))
        return not line.startswith((" ", "\t"))
