"""GBNF for integers and decimals within bounds, digit by digit.

Bounded decimals are written without an exponent. Every expression is finite: at most `DIGITS` digits follow
where nothing bounds them.
"""

from __future__ import annotations

from decimal import Decimal
from itertools import groupby

from localspec.engine.text.schema_rules import either

DIGITS = 16
INTEGER = f'"-"? ("0" | [1-9] [0-9]{{0,{DIGITS - 1}}})'
NUMBER = f'{INTEGER} ("." [0-9]{{1,{DIGITS}}})? ([eE] [-+]? [0-9]{{1,3}})?'


def integer_between(low: int | None, high: int | None) -> str | None:
    """Integers from `low` to `high`, both included; None as a bound = none, as a result = there are none."""
    parts: list[str] = []
    if low is None or low < 0:
        most = None if low is None else -low
        parts += [f'"-" {p}' for p in _naturals(max(1, -high) if high is not None else 1, most)]
    if high is None or high >= 0:
        parts += _naturals(max(0, low or 0), high)
    return either(parts) if parts else None


def _naturals(low: int, high: int | None) -> list[str]:
    """Alternatives for low…high, one per number of digits."""
    if high is not None and high < low:
        return []
    longest = max(DIGITS, len(str(low))) if high is None else len(str(high))
    parts: list[str] = []
    for digits in range(len(str(low)), longest + 1):
        start = max(low, 10 ** (digits - 1) if digits > 1 else 0)
        end = 10**digits - 1 if high is None else min(high, 10**digits - 1)
        if start <= end:
            parts.append(_same_length(str(start), str(end)))
    return parts


def _same_length(low: str, high: str) -> str:
    """Digit strings from `low` to `high`, all of their length."""
    if set(low) <= {"0"} and set(high) <= {"9"}:
        return f"[0-9]{{{len(low)}}}" if low else '""'
    if low[0] == high[0]:
        return f'"{low[0]}" {_same_length(low[1:], high[1:])}' if len(low) > 1 else f'"{low[0]}"'
    if len(low) == 1:
        return f"[{low}-{high}]"
    rest, first, last = len(low) - 1, int(low[0]), int(high[0])
    parts: list[str] = []
    if set(low[1:]) != {"0"}:
        parts.append(f'"{first}" {_same_length(low[1:], "9" * rest)}')
        first += 1
    if set(high[1:]) != {"9"}:
        parts.append(f'"{last}" {_same_length("0" * rest, high[1:])}')
        last -= 1
    if first <= last:
        parts.insert(0, f"[{first}-{last}] [0-9]{{{rest}}}")
    return either(parts)


Bound = tuple[Decimal, bool]
"""(value, open): an open bound is not part of the range."""


def number_between(low: Bound | None, high: Bound | None) -> str | None:
    """Decimals within the bounds; None as a result = there are none."""
    parts: list[str] = []
    if low is None or low[0] < 0:
        least = (-high[0], high[1]) if high is not None and high[0] < 0 else (Decimal(0), True)
        most = None if low is None else (-low[0], low[1])
        parts += [f'"-" {p}' for p in _positives(least, most)]
    if high is None or high[0] >= 0:
        parts += _positives(low if low is not None and low[0] >= 0 else (Decimal(0), False), high)
    return either(parts) if parts else None


def _split(bound: Bound) -> tuple[int, str]:
    """Integer part and the digits after the point, without trailing zeros."""
    whole, _, fraction = f"{bound[0]:f}".partition(".")
    return int(whole), fraction.rstrip("0")


def _positives(low: Bound, high: Bound | None) -> list[str]:
    first, after_first = _split(low)
    if high is None:
        return [
            *_with_fraction([str(first)], _Digits(after_first, low[1], None, False)),
            *_with_fraction(_naturals(first + 1, None), _ANY),
        ]
    last, after_last = _split(high)
    if first > last:
        return []
    if first == last:
        return _with_fraction([str(first)], _Digits(after_first, low[1], after_last, high[1]))
    return [
        *_with_fraction([str(first)], _Digits(after_first, low[1], None, False)),
        *_with_fraction(_naturals(first + 1, last - 1), _ANY),
        *_with_fraction([str(last)], _Digits(None, False, after_last, high[1])),
    ]


class _Digits:
    """Digits after the point such that what they make lies between two digit strings; None = no bound."""

    def __init__(self, low: str | None, low_open: bool, high: str | None, high_open: bool) -> None:
        self.low, self.low_open, self.high, self.high_open = low, low_open, high, high_open

    def may_stop(self) -> bool:
        """No further digit is needed."""
        above = self.low is None or (self.low == "" and not self.low_open)
        return above and (self.high != "" or not self.high_open)

    def more(self) -> str | None:
        """At least one more digit; None when none can follow."""
        if not self.high and not self.low:  # nothing is left to compare with
            return self._free()
        parts: list[str] = []
        for key, digits in groupby(range(10), self._after):
            if key is None:
                continue
            after, found = _Digits(key[0], self.low_open, key[1], self.high_open), list(digits)
            more = after.more()
            tail = f"({more})?" if more and after.may_stop() else more
            if tail is None and not after.may_stop():
                continue
            parts.append(f"[{found[0]}-{found[-1]}] {tail or ''}".rstrip())
        return either(parts) if parts else None

    def _free(self) -> str | None:
        if self.high == "":  # equal to the upper bound so far: only zeros
            return (
                f'"0"{{1,{DIGITS}}}'
                if not self.high_open and not (self.low == "" and self.low_open)
                else None
            )
        if self.low == "" and self.low_open:
            return f'"0"{{0,{DIGITS - 1}}} [1-9] [0-9]{{0,{DIGITS - 1}}}'
        return f"[0-9]{{1,{DIGITS}}}"

    def _after(self, digit: int) -> tuple[str | None, str | None] | None:
        """The bounds for what follows `digit`; None when it leaves the range."""
        low, high = self.low, self.high
        if low is not None:
            least = int(low[:1] or 0)
            if digit < least:
                return None
            low = low[1:] if digit == least else None
        if high is not None:
            most = int(high[:1] or 0)
            if digit > most:
                return None
            high = high[1:] if digit == most else None
        return low, high


_ANY = _Digits(None, False, None, False)


def _with_fraction(wholes: list[str], digits: _Digits) -> list[str]:
    if not wholes:
        return []
    whole = either(w if w.startswith(("[", '"', "(")) else f'"{w}"' for w in wholes)
    more = digits.more()
    if more is None:
        return [whole] if digits.may_stop() else []
    return [f'{whole} ("." {more}){"?" if digits.may_stop() else ""}']
