"""Finds any of several strings in a text that arrives in pieces, and holds back what may become one.

Algorithm: Aho & Corasick 1975, "Efficient string matching". One pass, O(1) amortised per character,
whatever the pieces are. Knows nothing of tokens or channels.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Scan(NamedTuple):
    """What a piece of text settled."""

    clear: str
    """Text that is now certain not to be part of a match, what was held before included."""
    hit: int | None
    """Index of the pattern that was completed, or None."""
    rest: str
    """Text after the match, not yet looked at; empty without a hit."""


class Matcher:
    """Streaming search for `patterns`, none of them empty.

    The pattern that is *completed* first wins; of those completed by the same character the longest.
    That rule needs no look-ahead, so the result does not depend on how the text was cut.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self._out = [-1]
        for index, pattern in enumerate(self.patterns):
            self._add(index, pattern)
        self._link()
        firsts = "".join(map(re.escape, self._next[0]))
        self._first = re.compile(f"[{firsts}]" if firsts else "(?!)")
        self._state = 0
        self._held = ""

    def _add(self, index: int, pattern: str) -> None:
        if not pattern:
            raise ValueError("an empty pattern matches everywhere")
        node = 0
        for char in pattern:
            if char not in self._next[node]:
                self._next[node][char] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self._depth.append(self._depth[node] + 1)
                self._out.append(-1)
            node = self._next[node][char]
        if self._out[node] < 0:
            self._out[node] = index

    def _link(self) -> None:
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for char, child in self._next[node].items():
                fail = self._fail[node]
                while fail and char not in self._next[fail]:
                    fail = self._fail[fail]
                self._fail[child] = self._next[fail].get(char, 0)
                if self._out[child] < 0:
                    self._out[child] = self._out[self._fail[child]]
                queue.append(child)

    def feed(self, text: str) -> Scan:
        """Look at the next piece; stops at the first match and forgets everything before it."""
        state = self._state
        start = 0
        if not state:
            first = self._first.search(text)
            if first is None:
                return Scan(text, None, "")
            start = first.start()
        step, fail, out = self._next, self._fail, self._out
        for at in range(start, len(text)):
            char = text[at]
            while state and char not in step[state]:
                state = fail[state]
            state = step[state].get(char, 0)
            hit = out[state]
            if hit >= 0:
                seen = self._held + text[: at + 1]
                self._state, self._held = 0, ""
                return Scan(seen[: len(seen) - len(self.patterns[hit])], hit, text[at + 1 :])
        seen = self._held + text
        cut = len(seen) - self._depth[state]
        self._state, self._held = state, seen[cut:]
        return Scan(seen[:cut], None, "")

    def flush(self) -> str:
        """End of the text: what was held is no match after all."""
        held = self._held
        self._state, self._held = 0, ""
        return held
