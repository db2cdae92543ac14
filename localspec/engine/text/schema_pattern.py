"""A regular expression of a JSON schema as GBNF for the inside of a JSON string.

The usual subset of ECMA-262: literals, classes, groups, alternatives, quantifiers, anchors at the ends.
What a grammar cannot express (look-around, back-references, word boundaries) is refused. Characters come out
as JSON spells them, so `\\n` in the text is `\\\\n` in the grammar.
"""

from __future__ import annotations

import re
from typing import NoReturn

from localspec.engine.text.schema_rules import LAST, Ranges, RuleBook, either, inverse, normal, string_char
from localspec.errors import UsageError

MAX_NESTING = 40
_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x2028, 0x2029), (0xFEFF, 0xFEFF))
_DOT = inverse(((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)))
_SETS = {
    "d": _DIGIT, "w": _WORD, "s": _SPACE, "D": inverse(_DIGIT), "W": inverse(_WORD), "S": inverse(_SPACE),
}  # fmt: skip
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_QUANTIFIER = re.compile(r"([*+?])|\{(\d{1,6})(,)?(\d{1,6})?\}")
_HEX = {"x": re.compile("[0-9a-fA-F]{2}"), "u": re.compile("[0-9a-fA-F]{4}")}
_TIMES: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def pattern_to_gbnf(pattern: str, rules: RuleBook, char: str) -> str:
    """An expression for the strings, without quotes, that `pattern` finds itself in.

    Args:
        pattern: as in JSON schema: it may match anywhere unless anchored.
        rules: receives helper rules.
        char: the rule for any character of a JSON string.

    Raises:
        UsageError: the pattern is malformed or beyond a grammar.
    """
    return _Parser(pattern, rules, char).whole()


class _Parser:
    def __init__(self, pattern: str, rules: RuleBook, char: str) -> None:
        self._pattern = pattern
        self._rules = rules
        self._char = char
        self._at = 0

    def whole(self) -> str:
        found = [self._anchored()]
        while self._take("|"):
            found.append(self._anchored())
        if self._at < len(self._pattern):
            self._fail("has a `)` too many")
        return either(found)

    def _anchored(self) -> str:
        before = "" if self._take("^") else f"{self._char}*"
        middle = self._sequence(0)
        after = "" if self._take("$") else f"{self._char}*"
        return " ".join(filter(None, [before, middle, after])) or '""'

    def _alternatives(self, depth: int) -> str:
        if depth > MAX_NESTING:
            self._fail(f"is nested more than {MAX_NESTING} deep")
        found = [self._sequence(depth) or '""']
        while self._take("|"):
            found.append(self._sequence(depth) or '""')
        return f"({' | '.join(found)})"

    def _sequence(self, depth: int) -> str:
        items: list[str] = []
        while (item := self._item(depth)) is not None:
            items.append(self._repeated(item))
        return " ".join(items)

    def _item(self, depth: int) -> str | None:
        char = self._pattern[self._at : self._at + 1]
        if not char or char in "|)" or (char == "$" and not depth and self._ends_after()):
            return None
        if char in "^$":
            self._fail(f"has `{char}` inside, which a grammar cannot express")
        if char in "*+?":
            self._fail(f"has nothing before `{char}`")
        self._at += 1
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._set_text(self._set())
        if char == ".":
            return self._set_text(_DOT)
        return self._set_text(self._escape() if char == "\\" else ((ord(char), ord(char)),))

    def _ends_after(self) -> bool:
        return self._pattern[self._at + 1 : self._at + 2] in ("", "|")

    def _group(self, depth: int) -> str:
        if self._take("?"):
            named = re.compile(r"<[A-Za-z_]\w*>").match(self._pattern, self._at)
            if named is not None:
                self._at = named.end()
            elif not self._take(":"):
                self._fail("uses look-around or a flag, which a grammar cannot express")
        found = self._alternatives(depth + 1)
        if not self._take(")"):
            self._fail("has a `(` that is not closed")
        return found

    def _set_text(self, ranges: Ranges) -> str:
        text = string_char(ranges)
        if not text:
            self._fail("has a class that nothing can match")
        return text

    def _repeated(self, item: str) -> str:
        quantifier = _QUANTIFIER.match(self._pattern, self._at)
        if quantifier is None:
            return item
        self._at = quantifier.end()
        self._take("?")  # a lazy quantifier accepts the same strings
        least, most = _TIMES.get(quantifier[1], (0, None))
        if quantifier[1] is None:
            least = int(quantifier[2])
            most = least if quantifier[3] is None else int(quantifier[4]) if quantifier[4] else None
        if most is not None and most < least:
            self._fail(f"has its bounds swapped in `{quantifier[0]}`")
        return self._rules.repeat(item, least, most, "part")

    def _set(self) -> Ranges:
        negated = self._take("^")
        found: list[tuple[int, int]] = []
        while not self._take("]"):
            item = self._set_item()
            if len(item) == 1 and item[0][0] == item[0][1] and self._is_range():
                self._at += 1
                end = self._set_item()
                if len(end) != 1 or end[0][1] < item[0][0]:
                    self._fail("has a range that is none")
                item = ((item[0][0], end[0][1]),)
            found += item
        return inverse(found) if negated else normal(found)

    def _is_range(self) -> bool:
        return self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at)

    def _set_item(self) -> Ranges:
        char = self._pattern[self._at : self._at + 1]
        if not char:
            self._fail("has a `[` that is not closed")
        self._at += 1
        if char == "\\":
            return ((8, 8),) if self._take("b") else self._escape()
        return ((ord(char), ord(char)),)

    def _escape(self) -> Ranges:
        char = self._pattern[self._at : self._at + 1]
        self._at += 1
        if char in _SETS:
            return _SETS[char]
        if char in _CONTROLS:
            code = _CONTROLS[char]
        elif char in ("x", "u"):
            digits = _HEX[char].match(self._pattern, self._at)
            if digits is None:
                self._fail(f"has an incomplete `\\{char}`")
            self._at = digits.end()
            code = int(digits[0], 16)
        elif not char or char.isalnum():
            self._fail(f"uses `\\{char}`, which a grammar cannot express")
        else:
            code = ord(char)
        return ((code, min(code, LAST)),)

    def _take(self, text: str) -> bool:
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _fail(self, what: str) -> NoReturn:
        raise UsageError(f"the schema's pattern `{self._pattern[:80]}` {what}")
