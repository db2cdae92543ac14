"""Runs a parsed GBNF grammar in Python: does it match a text, and what does it produce?

Follows the same idea as llama.cpp: a set of stacks of what is still to come, one character at a time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from localspec.engine.text.gbnf import (
    CharClass,
    Group,
    Item,
    Literal,
    Ref,
    Repeat,
    Rules,
    Token,
    parse_grammar,
)

Stack = tuple[Item, ...]
"""What is still to come, next item last."""


class Walker:
    def __init__(self, grammar: str) -> None:
        self._rules: Rules = parse_grammar(grammar)
        self._cost = dict.fromkeys(self._rules, 1e9)  # rules used by the shortest way out
        for _ in self._rules:
            self._cost = {name: 1 + self._least(found) for name, found in self._rules.items()}

    def matches(self, text: str) -> bool:
        return () in self._after(text)

    def allows(self, prefix: str) -> bool:
        """Whether some text of the grammar starts like this."""
        return bool(self._after(prefix))

    def _after(self, text: str) -> set[Stack]:
        stacks = self._closed({(Ref("root"),)})
        for char in text:
            stacks = self._closed({after for stack in stacks if (after := _read(stack, char)) is not None})
            if not stacks:
                break
        return stacks

    def _closed(self, stacks: set[Stack]) -> set[Stack]:
        """Every stack expanded until a character is on top."""
        todo, seen, done = list(stacks), set(stacks), set()
        while todo:
            stack = todo.pop()
            if not stack or isinstance(stack[-1], CharClass) or (
                isinstance(stack[-1], Literal) and stack[-1].text
            ):  # fmt: skip
                done.add(stack)
                continue
            for more in self._expand(stack):
                if more not in seen:
                    seen.add(more)
                    todo.append(more)
        return done

    def _expand(self, stack: Stack) -> list[Stack]:
        *below, top = stack
        if isinstance(top, Literal):
            return [tuple(below)]
        if isinstance(top, Repeat):
            if top.least:
                most = None if top.most is None else top.most - 1
                return [(*below, Repeat(top.item, top.least - 1, most), top.item)]
            if top.most == 0:
                return [tuple(below)]
            most = None if top.most is None else top.most - 1
            return [tuple(below), (*below, Repeat(top.item, 0, most), top.item)]
        assert not isinstance(top, Token | CharClass)
        alternatives = self._rules[top.name] if isinstance(top, Ref) else top.alternatives
        return [(*below, *reversed(sequence)) for sequence in alternatives]

    def produce(self, rng: random.Random, *, depth: int = 12) -> str:
        """A random text of the grammar; deeper than `depth` it takes the shortest way out."""
        return self._produce(Ref("root"), rng, depth)

    def _produce(self, item: Item, rng: random.Random, depth: int) -> str:
        if isinstance(item, Literal):
            return item.text
        if isinstance(item, CharClass):
            return next(char for char in _chars(rng) if char in item)
        if isinstance(item, Repeat):
            spread = 0 if depth < 0 else rng.choice([0, 1, 1, 2, 3])
            times = item.least + spread if item.most is None else min(item.most, item.least + spread)
            return "".join(self._produce(item.item, rng, depth - 1) for _ in range(times))
        assert isinstance(item, Ref | Group)
        alternatives = self._rules[item.name] if isinstance(item, Ref) else item.alternatives
        if depth < 0:
            sequence = min(alternatives, key=lambda s: sum(map(self._weight, s)))
        else:
            sequence = rng.choice(alternatives)
        return "".join(self._produce(part, rng, depth - 1) for part in sequence)

    def _least(self, alternatives: tuple[tuple[Item, ...], ...]) -> float:
        return min(sum(map(self._weight, sequence)) for sequence in alternatives)

    def _weight(self, item: Item) -> float:
        if isinstance(item, Ref):
            return self._cost[item.name]
        if isinstance(item, Repeat):
            return item.least * self._weight(item.item) if item.least else 0
        return self._least(item.alternatives) if isinstance(item, Group) else 0


def _read(stack: Stack, char: str) -> Stack | None:
    if not stack:
        return None
    *below, top = stack
    if isinstance(top, CharClass):
        return tuple(below) if char in top else None
    assert isinstance(top, Literal)
    if top.text[0] != char:
        return None
    return (*below, Literal(top.text[1:])) if len(top.text) > 1 else tuple(below)


def _chars(rng: random.Random) -> Iterator[str]:
    """Likely characters first, then all of them."""
    likely = list('abcxyz0123456789 -_."\\/nu{}[]:,TZ\n\té漢😀ABCDEF\x00')
    rng.shuffle(likely)
    yield from likely
    for code in range(0x110000):
        yield chr(code)
