"""Building blocks of generated GBNF: rules with names, literals, character sets, repetitions.

Expressions are strings of GBNF. Repetitions stay within what llama.cpp unrolls: large ones are composed of
shared chunks. Knows nothing of JSON schemas beyond how JSON spells characters in a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from localspec.errors import UsageError

MAX_RULES = 10_000
_CHUNK = 500
MAX_BOUND = 200_000
"""Repetitions beyond this are not counted: no reply of a local model is that long."""

Ranges = tuple[tuple[int, int], ...]
LAST = 0x10FFFF
NOTHING = "[^\\U00000000-\\U0010FFFF]"
"""An expression that matches no text."""
_SHORT_ESCAPES = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x0C: "\\f", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}
_NOT_PLAIN: Ranges = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF))


class RuleBook:
    """Named rules; equal bodies share a name."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def reserve(self, hint: str) -> str:
        """A free rule name like `hint`; the caller defines it later."""
        stem = re.sub(r"[^a-zA-Z0-9-]+", "-", hint).strip("-")[:40] or "rule"
        name, number = stem, 1
        while name in self._rules:
            number += 1
            name = f"{stem}-{number}"
        if len(self._rules) >= MAX_RULES:
            raise UsageError(f"the schema needs more than {MAX_RULES} grammar rules")
        self._rules[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        self._rules[name] = body

    def add(self, hint: str, body: str) -> str:
        """The name of a rule with this body."""
        if body not in self._names:
            name = self.reserve(hint)
            self._rules[name] = body
            self._names[body] = name
        return self._names[body]

    def text(self, root: str) -> str:
        """The grammar whose start is rule `root`."""
        return "".join(f"{name} ::= {body}\n" for name, body in [("root", root), *self._rules.items()])

    def repeat(self, unit: str, least: int, most: int | None, hint: str) -> str:
        """`unit` from `least` to `most` times; None = without end."""
        if most is not None and most > MAX_BOUND:
            most = None
        if least > MAX_BOUND:
            raise UsageError(
                f"the schema asks for at least {least} repetitions, at most {MAX_BOUND} are possible"
            )
        if most == 0:
            return '""'
        if (least, most) in _TIMES:
            return unit + _TIMES[least, most]
        name = unit if _ATOM.fullmatch(unit) else self.add(hint, unit)
        if max(least, most or 0) <= _CHUNK:
            return f"{name}{_bounds(least, most)}"
        rest = f"{name}*" if most is None else self._at_most(name, most - least)
        return " ".join(filter(None, [self._exactly(name, least), rest]))

    def _exactly(self, name: str, times: int) -> str:
        chunks, rest = divmod(times, _CHUNK)
        many = f"{self._chunk(name)}{{{chunks}}}" if chunks else ""
        return " ".join(filter(None, [many, f"{name}{{{rest}}}" if rest else ""]))

    def _at_most(self, name: str, times: int) -> str:
        """A chain of rules: fewer than a chunk, or a whole chunk and the rest."""
        last = times % _CHUNK
        found = f"{name}{{0,{last}}}" if last else ""
        if times < _CHUNK:
            return found
        short = self.add(f"{name}-short", f"{name}{{0,{_CHUNK - 1}}}")
        for _ in range(times // _CHUNK):
            found = self.add(f"{name}-upto", f"{short} | {self._chunk(name)} {found}".rstrip())
        return found

    def _chunk(self, name: str) -> str:
        return self.add(f"{name}-chunk", f"{name}{{{_CHUNK}}}")


_TIMES: dict[tuple[int, int | None], str] = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
_ATOM = re.compile(r"[a-zA-Z0-9-]+|\[(?:[^\]\\]|\\.)*\]")


def _bounds(least: int, most: int | None) -> str:
    return f"{{{least}}}" if least == most else f"{{{least},{'' if most is None else most}}}"


def either(alternatives: Iterable[str]) -> str:
    """One of several expressions, as one that can be repeated or joined."""
    found = list(dict.fromkeys(alternatives))
    return found[0] if len(found) == 1 else f"({' | '.join(found)})"


def quote(text: str) -> str:
    """A literal."""
    return '"' + "".join(_escape(ord(char), '"\\') for char in text) + '"'


def char_class(ranges: Ranges) -> str:
    """A class of code points."""
    inner = (
        _escape(low, "]\\^-[") + (f"-{_escape(high, ']^-[' + chr(92))}" if high > low else "")
        for low, high in ranges
    )  # fmt: skip
    return f"[{''.join(inner)}]"


def _escape(code: int, special: str) -> str:
    char = chr(code)
    if char in special:
        return "\\" + char if char != "^" else "\\x5E"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02X}"
    return char if code < 0x7F or char.isprintable() else f"\\U{code:08X}"


def normal(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sorted ranges that neither overlap nor touch."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def inverse(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All other code points."""
    found: list[tuple[int, int]] = []
    start = 0
    for low, high in normal(ranges):
        if start < low:
            found.append((start, low - 1))
        start = high + 1
    return (*found, *([(start, LAST)] if start <= LAST else []))


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    return inverse((*inverse(ranges), *others))


def string_char(ranges: Ranges) -> str:
    """One character of the set as JSON writes it inside a string."""
    plain = _without(ranges, _NOT_PLAIN)
    escaped = [
        quote(_SHORT_ESCAPES.get(code, f"\\u{code:04x}"))
        for low, high in ranges
        for code in (*range(low, min(high, 0x1F) + 1), *(c for c in (0x22, 0x5C, 0x7F) if low <= c <= high))
    ]  # fmt: skip
    if len(plain) == 1 and plain[0][0] == plain[0][1] and not escaped:
        return quote(chr(plain[0][0]))
    return either([*([char_class(plain)] if plain else []), *escaped]) if plain or escaped else ""
