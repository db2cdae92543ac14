"""Strings and numbers of a JSON schema as GBNF. Knows nothing of objects, arrays or references."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from math import ceil, floor
from typing import Any

from localspec.engine.text.schema_merge import Contradiction, Schema
from localspec.engine.text.schema_numbers import INTEGER, NUMBER, Bound, integer_between, number_between
from localspec.engine.text.schema_pattern import pattern_to_gbnf
from localspec.engine.text.schema_rules import MAX_BOUND, RuleBook
from localspec.errors import UsageError

MAX_DIGITS = 40
_HEX = "[0-9a-fA-F]"
# No lone surrogates: half a character counts as one here and makes no text.
_ESCAPE = f'"\\\\" (["\\\\/bfnrt] | "u" ([0-9A-CE-Fa-ce-f] {_HEX}{{3}} | [Dd] [0-7] {_HEX}{{2}}))'
PLAIN_CHAR = '[^"\\\\\\x7F\\x00-\\x1F]'
_DAYS = '("0" [1-9] | [1-2] [0-9]'
_DATE = (
    f'[0-9]{{4}} "-" (("0" [13578] | "1" [02]) "-" {_DAYS} | "3" [01]) | '
    f'("0" [469] | "11") "-" {_DAYS} | "30") | "02-" {_DAYS}))'
)
_TIME = (
    '([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] ("." [0-9]{1,6})? '
    '("Z" | [+-] ([01] [0-9] | "2" [0-3]) ":" [0-5] [0-9])'
)
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "uuid": f'{_HEX}{{8}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{4}} "-" {_HEX}{{12}}',
}
NOT_PLAIN = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F))


def is_plain(char: str) -> bool:
    """JSON writes this character as itself."""
    return not any(low <= ord(char) <= high for low, high in NOT_PLAIN)


def char(rules: RuleBook) -> str:
    """The rule for one character inside a JSON string."""
    return rules.add("char", f"{PLAIN_CHAR} | {_ESCAPE}")


def any_string(rules: RuleBook) -> str:
    """The rule for a string."""
    return rules.add("string", f'"\\"" {char(rules)}* "\\""')


def string(flat: Schema, rules: RuleBook, note: Callable[[str], None]) -> str:
    """A string with the schema's pattern, format or length."""
    least, most = flat.get("minLength", 0), flat.get("maxLength")
    if most is not None and most < least:
        raise Contradiction(f"the schema wants at least {least} and at most {most} characters")
    pattern, known = flat.get("pattern"), _FORMATS.get(flat.get("format", ""))
    if "format" in flat and known is None:
        note(f"the format `{flat['format']}`")
    if pattern is not None or known is not None:
        if least or most is not None:
            note("the length of a string with a pattern or format")
        if pattern is not None and known is not None:
            note("the format of a string with a pattern")
    if pattern is not None:
        return f'"\\"" {pattern_to_gbnf(pattern, rules, char(rules))} "\\""'
    if known is not None:
        return f'"\\"" {known} "\\""'
    if not least and most is None:
        return any_string(rules)
    if most is not None and most > MAX_BOUND:
        note(f"`maxLength` {most}")
    return f'"\\"" {rules.repeat(char(rules), least, most, "char")} "\\""'


def number(flat: Schema, kind: str) -> str:
    """A number or integer within the schema's bounds."""
    low = _bound(flat, "minimum", "exclusiveMinimum", max)
    high = _bound(flat, "maximum", "exclusiveMaximum", min)
    if low is None and high is None:
        return INTEGER if kind == "integer" else NUMBER
    if kind == "number":
        found = number_between(low, high)
    else:
        found = integer_between(
            None if low is None else floor(low[0]) + 1 if low[1] else ceil(low[0]),
            None if high is None else ceil(high[0]) - 1 if high[1] else floor(high[0]),
        )
    if found is None:
        raise Contradiction("the schema allows no number between its minimum and maximum")
    return found


def _bound(flat: Schema, closed: str, opened: str, stricter: Callable[..., Any]) -> Bound | None:
    """The stricter of an included and an excluded bound."""
    found = [(_decimal(flat, key), key == opened) for key in (closed, opened) if key in flat]
    if len(found) == 2 and found[0][0] == found[1][0]:
        return found[1]
    return stricter(found, key=lambda bound: bound[0]) if found else None


def _decimal(flat: Schema, key: str) -> Decimal:
    value = flat[key]
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise UsageError(f"the schema's `{key}` is no number")
    exact = Decimal(value)
    if len(f"{exact:f}") > MAX_DIGITS if abs(exact.adjusted()) < MAX_DIGITS else True:
        raise UsageError(f"the schema's `{key}` has more than {MAX_DIGITS} digits")
    return exact
