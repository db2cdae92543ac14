"""Finds where JSON values end in text that arrives in pieces, looking at every character once.

It does not validate: a tool call's arguments are passed on as the model wrote them.
"""

from __future__ import annotations

import re

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[,}\]\s]")


class JsonSpan:
    """The end of one value whose first character comes first."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._kind = ""

    def feed(self, text: str) -> int | None:
        """Index just after the value within `text`, or None when the value goes on."""
        at = 0
        if not self._kind and text:
            self._kind = text[0]
        if self._kind and self._kind not in '{["':
            end = _SCALAR_END.search(text)
            return end.start() if end else None
        while at < len(text):
            at = self._string(text, at) if self._in_string else self._structure(text, at)
            if not self._depth and not self._in_string and not self._escaped and at > 0:
                return at
        return None

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.search(text, at)
        if found is None:
            return len(text)
        if found[0] == '"':
            self._in_string = False
        else:
            self._escaped = True
        return found.end()

    def _structure(self, text: str, at: int) -> int:
        found = _STRUCTURE.search(text, at)
        if found is None:
            return len(text)
        if found[0] == '"':
            self._in_string = True
        else:
            self._depth += 1 if found[0] in "{[" else -1
        return found.end()
