"""Reads a GBNF grammar by the rules of `llama-grammar.cpp`. Knows no vocabulary and judges no grammar."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from localspec.errors import UsageError

MAX_CHARS = 1 << 19
MAX_NESTING = 50
MAX_STACKED = 2
"""Repetitions of a repetition, like `x{2}*`."""
MAX_REPEAT = 2000
"""llama.cpp's own limit; above it an upper bound is ignored and a lower one refused."""


@dataclass(frozen=True, slots=True)
class Literal:
    text: str


@dataclass(frozen=True, slots=True)
class CharClass:
    """Code points in, or with `negated` not in, inclusive ranges."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False

    def __contains__(self, char: str) -> bool:
        return any(low <= ord(char) <= high for low, high in self.ranges) != self.negated


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the vocabulary, by spelling or `[id]`."""

    text: str
    negated: bool


@dataclass(frozen=True, slots=True)
class Group:
    alternatives: tuple[Sequence, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Item
    least: int
    most: int | None


Item = Literal | CharClass | Ref | Token | Group | Repeat
Sequence = tuple[Item, ...]
Rules = dict[str, tuple[Sequence, ...]]

ANY = CharClass((), negated=True)
_NOTHING = (Literal(""), CharClass(()))


def parse_grammar(text: str) -> Rules:
    """The rules of a grammar; a rule that is defined twice counts as its last definition, as in llama.cpp.

    Raises:
        UsageError: a syntax error, with its line, or a limit of this module.
    """
    if len(text) > MAX_CHARS:
        raise UsageError(f"the grammar has {len(text)} characters, at most {MAX_CHARS} are possible")
    if "\0" in text or re.search(r"[\ud800-\udfff]", text):
        raise UsageError("the grammar contains a character that is no text")
    return _Parser(text).rules()


_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_BOUNDS = re.compile(r"\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
_TOKEN = re.compile(r"(!?)<([^>]*)>")
_HEX = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", **{char: char for char in '\\"[]-'}}
_TIMES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class _Parser:
    """Recursive descent over the text, nested groups only."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def rules(self) -> Rules:
        rules: Rules = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._match(_NAME, "a rule name")[0]
            self._skip(_SPACE)
            self._expect("::=")
            self._skip(_SPACE_AND_LINES)
            rules[name] = self._alternatives(0)
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                self._fail("expected the end of the rule")
            self._skip(_SPACE_AND_LINES)
        return rules

    def _alternatives(self, depth: int) -> tuple[Sequence, ...]:
        if depth > MAX_NESTING:
            self._fail(f"groups are nested more than {MAX_NESTING} deep")
        found = [self._sequence(depth)]
        while self._text.startswith("|", self._at):
            self._at += 1
            self._skip(_SPACE_AND_LINES)
            found.append(self._sequence(depth))
        return tuple(found)

    def _sequence(self, depth: int) -> Sequence:
        space = _SPACE_AND_LINES if depth else _SPACE
        items: list[Item] = []
        while (item := self._item(depth)) is not None:
            self._skip(space)
            for bounds in self._repetitions(space):
                if item in _NOTHING or (isinstance(item, Repeat) and item.most == 0):
                    self._fail("repeats nothing")
                item = Repeat(item, *bounds)
            items.append(item)
        return tuple(items)

    def _item(self, depth: int) -> Item | None:
        char = self._text[self._at : self._at + 1]
        if char == '"':
            return self._literal()
        if char == "[":
            return self._char_class()
        if char == "(":
            self._at += 1
            self._skip(_SPACE_AND_LINES)
            group = Group(self._alternatives(depth + 1))
            self._expect(")")
            return group
        if char == ".":
            self._at += 1
            return ANY
        if char in ("<", "!"):
            token = self._match(_TOKEN, "a token like `<name>`")
            return Token(token[2], bool(token[1]))
        if _NAME.match(char):
            return Ref(self._match(_NAME, "a rule name")[0])
        if char and char in "*+?{":
            self._fail(f"nothing stands before `{char}`")
        return None

    def _repetitions(self, space: re.Pattern[str]) -> Iterator[tuple[int, int | None]]:
        for _ in range(MAX_STACKED + 1):
            if (bounds := self._repetition()) is None:
                return
            self._skip(space)
            yield bounds
        self._fail("too many repetitions in a row")

    def _repetition(self) -> tuple[int, int | None] | None:
        char = self._text[self._at : self._at + 1]
        if char in _TIMES:
            self._at += 1
            return _TIMES[char]
        if char != "{":
            return None
        bounds = self._match(_BOUNDS, "a repetition like `{1,3}`")
        least = int(bounds[1])
        most = least if bounds[2] is None else int(bounds[3]) if bounds[3] is not None else None
        if most is not None and most < least:
            self._fail(f"`{bounds[0]}` has its bounds swapped")
        if max(least, most or 0) > MAX_REPEAT:
            self._fail(f"`{bounds[0]}` repeats more than {MAX_REPEAT} times")
        return least, most

    def _literal(self) -> Literal:
        self._at += 1
        chars: list[str] = []
        while not self._text.startswith('"', self._at):
            chars.append(self._char())
        self._at += 1
        return Literal("".join(chars))

    def _char_class(self) -> CharClass:
        self._at += 1
        negated = self._text.startswith("^", self._at)
        self._at += negated
        ranges: list[tuple[int, int]] = []
        while not self._text.startswith("]", self._at):
            low = high = ord(self._char())
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                high = ord(self._char())
            ranges.append((low, high))
        self._at += 1
        return CharClass(tuple(ranges), negated)

    def _char(self) -> str:
        char = self._text[self._at : self._at + 1]
        if not char:
            self._fail("a string or class is not closed")
        if char != "\\":
            self._at += 1
            return char
        kind = self._text[self._at + 1 : self._at + 2]
        if kind in _ESCAPES:
            self._at += 2
            return _ESCAPES[kind]
        size = _HEX.get(kind, 0)
        digits = self._text[self._at + 2 : self._at + 2 + size]
        if not size or not re.fullmatch(rf"[0-9a-fA-F]{{{size}}}", digits) or int(digits, 16) > 0x10FFFF:
            self._fail(f"unknown escape `{self._text[self._at : self._at + 2 + size]}`")
        self._at += 2 + size
        return chr(int(digits, 16))

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            self._fail(f"expected {what}")
        self._at = match.end()
        return match

    def _expect(self, text: str) -> None:
        if not self._text.startswith(text, self._at):
            self._fail(f"expected `{text}`")
        self._at += len(text)

    def _skip(self, space: re.Pattern[str]) -> None:
        match = space.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _fail(self, what: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        near = self._text[self._at : self._at + 20].split("\n")[0]
        raise UsageError(f"grammar line {line}: {what}" + (f", near `{near}`" if near else ""))
