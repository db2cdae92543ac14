"""Refuses grammars that would harm the native code that runs them.

llama.cpp parses and runs GBNF in native code, where some mistakes are not an error message: a repetition with
its bounds swapped never ends, a nullable left recursion grows without bound, and an upper bound above 2000 is
silently dropped. What passes here may still be refused there (an unknown `<token>`); then the native call
returns nothing. Knows no vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from localspec.engine.text.gbnf import (
    MAX_REPEAT,
    CharClass,
    Group,
    Item,
    Literal,
    Ref,
    Repeat,
    Rules,
    parse_grammar,
)
from localspec.errors import UsageError, nearest

MAX_ELEMENTS = 100_000
"""Grammar elements after llama.cpp has unrolled the repetitions; every copy of the grammar walks them."""
MAX_FANOUT = 5000
"""Ways to go on without reading a character; each is tried for every token of the vocabulary."""


def check_grammar(text: str, *, root: str = "root") -> None:
    """Refuse a grammar that llama.cpp would refuse, misread or choke on.

    Raises:
        UsageError: with the place or the rule that is wrong.
    """
    rules = parse_grammar(text)
    if root not in rules:
        raise UsageError(f"the grammar has no rule `{root}`", hint="the start rule is called `root`")
    _check_names(rules)
    _check_size(rules)
    _check_starts(rules)


def _parts(item: Item) -> list[Item]:
    if isinstance(item, Repeat):
        return [item.item]
    return [part for sequence in item.alternatives for part in sequence] if isinstance(item, Group) else []


def _walk(item: Item) -> Iterator[Item]:
    yield item
    for part in _parts(item):
        yield from _walk(part)


def _check_names(rules: Rules) -> None:
    for name, alternatives in rules.items():
        for item in _walk(Group(alternatives)):
            if isinstance(item, Ref) and item.name not in rules:
                close = nearest(item.name, rules)
                raise UsageError(
                    f"grammar rule `{name}` uses `{item.name}`, which is not defined",
                    hint=f"did you mean `{close}`?" if close else None,
                )


def _check_size(rules: Rules) -> None:
    total = 0
    for name, alternatives in rules.items():
        for item in _walk(Group(alternatives)):
            if isinstance(item, Repeat) and _times(item) * _symbols(item.item) > MAX_REPEAT:
                raise UsageError(
                    f"grammar rule `{name}` repeats too much",
                    hint="give the repeated group a rule of its own, or repeat it less",
                )
            total += _elements(item)
        if total > MAX_ELEMENTS:
            raise UsageError(f"the grammar unrolls to more than {MAX_ELEMENTS} elements")


def _times(item: Repeat) -> int:
    return item.most or item.least or 1


def _symbols(item: Item) -> int:
    """Rules that llama.cpp makes for one copy of `item`."""
    if isinstance(item, Repeat):
        return _symbols(item.item) * _times(item)
    return 1 + sum(_symbols(part) for part in _parts(item) if isinstance(part, Group | Repeat))


def _elements(item: Item) -> int:
    """Elements that `item` itself adds, its parts not counted."""
    if isinstance(item, Literal):
        return len(item.text)
    if isinstance(item, CharClass):
        return 2 * len(item.ranges) or 1
    if isinstance(item, Repeat):
        return _times(item) * (_elements(item.item) + 3)
    return 1


def _check_starts(rules: Rules) -> None:
    """Refuse left recursion, and rules with too many ways to start."""
    empty = _nullable_rules(rules)
    for name, found in rules.items():
        for item in _walk(Group(found)):
            if isinstance(item, Repeat) and item.most is None and _nullable(item.item, empty):
                raise UsageError(
                    f"grammar rule `{name}` repeats without end something that may be empty",
                    hint="`(x*)*` is `x*`",
                )
    starts = {name: set(_first_refs(Group(found), empty)) for name, found in rules.items()}
    try:
        order = list(TopologicalSorter(starts).static_order())
    except CycleError as error:
        names = " → ".join(f"`{name}`" for name in reversed(error.args[1]))
        raise UsageError(
            f"the grammar is left-recursive: {names}", hint="put a character before the recursion"
        ) from error
    fanout: dict[str, int] = {}
    for name in order:
        fanout[name] = _fanout(Group(rules[name]), empty, fanout)
        if fanout[name] > MAX_FANOUT:
            raise UsageError(f"grammar rule `{name}` can start in more than {MAX_FANOUT} ways")


def _nullable_rules(rules: Rules) -> set[str]:
    """Names of the rules that may produce nothing: a least fixed point, found by a work list."""
    users: dict[str, set[str]] = {}
    for name, found in rules.items():
        for item in _walk(Group(found)):
            if isinstance(item, Ref):
                users.setdefault(item.name, set()).add(name)
    empty: set[str] = set()
    todo = list(rules)
    while todo:
        name = todo.pop()
        if name not in empty and _nullable(Group(rules[name]), empty):
            empty.add(name)
            todo += users.get(name, ())
    return empty


def _nullable(item: Item, empty: set[str]) -> bool:
    if isinstance(item, Literal):
        return not item.text
    if isinstance(item, Ref):
        return item.name in empty
    if isinstance(item, Group):
        return any(all(_nullable(part, empty) for part in sequence) for sequence in item.alternatives)
    return isinstance(item, Repeat) and (not item.least or _nullable(item.item, empty))


def _starting(item: Group, empty: set[str]) -> Iterator[Item]:
    """The parts of a group that may come first."""
    for sequence in item.alternatives:
        for part in sequence:
            yield part
            if not _nullable(part, empty):
                break


def _first_refs(item: Item, empty: set[str]) -> Iterator[str]:
    """Rules that may come first in `item`."""
    if isinstance(item, Ref):
        yield item.name
    elif isinstance(item, Repeat):
        yield from _first_refs(item.item, empty)
    elif isinstance(item, Group):
        for part in _starting(item, empty):
            yield from _first_refs(part, empty)


def _fanout(item: Item, empty: set[str], known: dict[str, int]) -> int:
    """Ways to reach a first character in `item`."""
    if isinstance(item, Ref):
        return known[item.name]
    if isinstance(item, Repeat):
        once = _fanout(item.item, empty, known)
        return min(once * (_times(item) if _nullable(item.item, empty) else 1), MAX_FANOUT + 1)
    if isinstance(item, Group):
        return min(sum(_fanout(part, empty, known) for part in _starting(item, empty)), MAX_FANOUT + 1)
    return 1
