"""What one rendering of a chat template may spend: time, and the size of everything it builds.

The template is untrusted, so a string, list or number may not grow beyond what a prompt needs, however it is
built. Operations whose result can be far larger than their arguments are checked before they run, all others
after. Knows nothing of jinja.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

MAX_TEXT = 1 << 24
"""Characters and items in any one value, nested ones counted as often as they appear."""
MAX_BUILT = 1 << 29
"""Characters and items of all values together that one rendering builds."""
MAX_BITS = 4096
MAX_WIDTH = 1000
"""Padding, indentation or columns that a template may ask for."""
MAX_SHORT = 10_000
"""Characters given to an operation that needs more than linear time."""


class LimitError(Exception):
    """The template did more than a chat template needs to."""


@dataclass(slots=True)
class Budget:
    """What one rendering may still spend."""

    deadline: float
    built: int = 0
    weights: dict[int, tuple[object, int]] = field(default_factory=dict)

    def tick(self) -> None:
        if time.monotonic() > self.deadline:
            raise LimitError("it runs too long")

    def charge(self, size: int) -> None:
        self.built += size
        if size > MAX_TEXT or self.built > MAX_BUILT:
            raise LimitError("it builds too large a value")

    def weigh(self, value: Any) -> int:
        """Size of `value` when written out. Containers cannot change in the sandbox, so it is remembered."""
        if isinstance(value, str):
            return len(value) + 1
        if not isinstance(value, list | tuple | dict):
            return 1
        known = self.weights.get(id(value))
        if known is None:
            items = (part for item in value.items() for part in item) if isinstance(value, dict) else value
            weight = 1 + sum(map(self.weigh, items))
            self.weights[id(value)] = (value, weight)  # the reference keeps the id from being used again
            return weight
        return known[1]

    def joined(self, left: Any, right: Any, both: Any) -> None:
        """Remember the size of two lists put together, so that building a list bit by bit stays linear."""
        self.weights[id(both)] = (both, self.weigh(left) + self.weigh(right))


_budget: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def spending(limit_s: float) -> Iterator[Budget]:
    """A fresh budget for what runs inside."""
    budget = Budget(time.monotonic() + limit_s)
    token = _budget.set(budget)
    try:
        yield budget
    finally:
        _budget.reset(token)


def budget() -> Budget:
    """The budget of the rendering that is running."""
    return _budget.get()


def bounded(value: Any) -> Any:
    """`value`, unless it is larger than anything a prompt needs."""
    if isinstance(value, str):
        budget().charge(len(value))
    elif isinstance(value, list | tuple | dict):
        budget().charge(8 * len(value))  # a reference is eight bytes
        if budget().weigh(value) > MAX_TEXT:
            raise LimitError("it builds too large a value")
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise LimitError("it computes with huge numbers")
    return value


def ticking(items: Iterable[Any]) -> Iterator[Any]:
    """`items`, with a look at the clock before each."""
    tick = budget().tick
    for item in items:
        tick()
        yield item


def check_width(*widths: Any) -> None:
    if any(isinstance(width, int) and abs(width) > MAX_WIDTH for width in widths):
        raise LimitError("it asks for an absurd width")


_WIDE = re.compile(r"\d{4,}|%[^a-zA-Z%]*\*")


def check_format(text: str) -> None:
    if _WIDE.search(text):
        raise LimitError("it asks for an absurd width")


def check_replace(text: str, old: str, new: str) -> None:
    found = text.count(old) if old else len(text) + 1
    budget().charge(len(text) + found * len(new))


def check_join(separator: str, items: Iterable[Any]) -> list[Any]:
    found = list(items)
    budget().charge(sum(map(budget().weigh, found)) + len(separator) * len(found))
    return found


def check_power(base: Any, exponent: Any) -> None:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MAX_BITS:
        raise LimitError("it computes with huge numbers")


def check_times(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int):
            budget().charge(max(0, times) * len(value))


def _check_tabs(text: str, width: int = 8) -> None:
    check_width(width)
    check_replace(text, "\t", " " * width)


METHODS: dict[str, Callable[..., object]] = {
    "center": lambda text, *args: check_width(*args),
    "ljust": lambda text, *args: check_width(*args),
    "rjust": lambda text, *args: check_width(*args),
    "zfill": lambda text, *args: check_width(*args),
    "expandtabs": _check_tabs,
    "replace": lambda text, old="", new="", *args: check_replace(text, str(old), str(new)),
    "join": lambda text, items=(), *args: check_join(text, items),
}
"""String methods whose result can be much larger than their arguments, and what bounds each."""


def width_checked(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is harmless once the numbers given to it are."""

    @wraps(wrapped)
    def checked(value: Any, *args: Any, **kwargs: Any) -> Any:
        check_width(*args, *kwargs.values())
        if isinstance(value, str):
            check_format(value)
        return wrapped(value, *args, **kwargs)

    return checked


def length_checked(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    """A function that needs more than linear time, so only short texts may be given to it."""

    @wraps(wrapped)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if any(budget().weigh(arg) > MAX_SHORT for arg in args):
            raise LimitError("it reformats a long text")
        return wrapped(*args, **kwargs)

    return checked
