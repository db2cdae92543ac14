"""Each mutation mixes replies of shared passes up in one way, and the comparison must notice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from localspec.engine.backend.context import Context, Part
from localspec.engine.backend.passes import Passes, SharedSequence
from localspec.engine.sampling import Sampler
from localspec.errors import EngineError
from tests.engine.harness import patched
from tests.kit.together import METHODS, check_mix
from tests.test_session import DRAFT


@contextmanager
def rows_of_the_neighbour() -> Iterator[None]:
    """Each reply of a shared pass gets the logits of the next one."""
    original = Passes._pass

    def mixed(self: Passes, group: list[Any]) -> None:
        original(self, group)
        same = [ask for ask in group if ask.part.outputs == 1]
        logits = [ask.logits for ask in same]
        for ask, rows in zip(same, logits[1:] + logits[:1], strict=True):
            ask.logits = rows

    with patched(Passes, "_pass", mixed):
        yield


@contextmanager
def parts_changed(change: Callable[[Part, Part], Part]) -> Iterator[None]:
    """Every part of a shared pass but the first is `change(part, first)`."""
    original = Context.run_parts

    def run_parts(self: Context, parts: list[Part]) -> Any:
        return original(self, [parts[0], *(change(part, parts[0]) for part in parts[1:])])

    with patched(Context, "run_parts", run_parts):
        yield


def another_sequence(part: Part, first: Part) -> Part:
    return replace(part, seq_id=first.seq_id)


def next_position(part: Part, first: Part) -> Part:
    return replace(part, start=part.start + 1)


def another_token(part: Part, first: Part) -> Part:
    return replace(part, tokens=np.full_like(part.tokens, first.tokens[0]))


@contextmanager
def borrowed_rows() -> Iterator[None]:
    """Replies read llama.cpp's buffer itself, which the next pass fills anew while one of them is slow."""

    class Lent(np.ndarray):  # type: ignore[type-arg]
        def copy(self, order: Any = "C") -> Any:
            return self

    original = Context.logits

    def lent(self: Context, count: int) -> Any:
        return original(self, count).view(Lent)

    best, calls = Sampler.best, count()

    def slow(self: Sampler, row: Any) -> int:
        if next(calls) % 3 == 0:
            time.sleep(0.005)
        return best(self, row)

    with patched(Context, "logits", lent), patched(Sampler, "best", slow):
        yield


@contextmanager
def cells_of_all_dropped() -> Iterator[None]:
    """A rollback in one sequence drops cells of another."""
    original = SharedSequence.truncate

    def truncate(self: SharedSequence, n: int) -> int:
        if n < self.n_past:
            self.context.remove((self.seq_id + 1) % self.context.settings.n_seq_max, n)
        return original(self, n)

    with patched(SharedSequence, "truncate", truncate):
        yield


MUTATIONS = {
    "the neighbour's logits": rows_of_the_neighbour,
    "the neighbour's cells": lambda: parts_changed(another_sequence),
    "positions + 1": lambda: parts_changed(next_position),
    "the neighbour's tokens": lambda: parts_changed(another_token),
    "rows that the next pass overwrites": borrowed_rows,
    "a rollback in the neighbour": cells_of_all_dropped,
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_the_comparison_notices_replies_that_are_mixed_up(mutation: Any) -> None:
    """Known fault 107: parallel requests are never mixed up, and if they were, these tests would tell."""
    with mutation(), pytest.raises((AssertionError, EngineError)):
        check_mix("syn", (DRAFT,), METHODS)
