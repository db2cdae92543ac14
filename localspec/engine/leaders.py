"""The largest logits of a large row without sorting it, nor looking at all of it more than once.

Ids are dealt out to groups, c, c + width, c + 2 width, … to group c, and the largest logit of each group is
its leader: a few thousand numbers instead of a whole vocabulary, found in one pass that any processor does
at the speed of its memory. After a decode caches are cold, so what counts next to that pass is how few
array operations follow it.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.errors import EngineError

Row = NDArray[np.float32]
Ids = NDArray[np.int32]

GROUP = 64
"""Ids of a group; common vocabulary sizes are multiples of it."""
LARGE = 16384
"""Rows from this length on are looked at through their leaders."""
_UNSURE = 1.99
"""Sum of the leaders' weights, the best one's being 1, from which on another id may be as likely."""
_leaders = np.maximum.reduce
_total = np.add.reduce


class Likeliest(NamedTuple):
    """Logits of chosen ids."""

    ids: NDArray[np.integer]
    """`[n]`, ascending."""
    logits: Row


class NotFiniteError(EngineError):
    """A row of logits holds NaN or infinity where its best token should be."""


def check_finite(value: float) -> None:
    """A NaN or infinity in a logits row is a broken model or kernel: stop, never guess."""
    if not math.isfinite(value):
        raise NotFiniteError("the model produced a row of logits that is not finite")


@functools.lru_cache(maxsize=4)
def _all_ids(length: int) -> Ids:
    return np.arange(length, dtype=np.int32)


@functools.lru_cache(maxsize=4)
def _firsts(width: int) -> NDArray[np.intp]:
    """`[GROUP, 1]`: what is added to a group's number for each of its ids."""
    return (np.arange(GROUP) * width)[:, None]


def likeliest(row: Row, n: int) -> Likeliest:
    """All logits of a `[n_vocab]` row that reach a bound which at least `n` of them reach; all when n is 0.

    The bound of a large row is its n-th largest leader. What is returned is the top of the row, without a
    gap and with every tie at the bound.

    Raises:
        NotFiniteError: the row holds a NaN, or its largest logit is infinite.
    """
    length, width = len(row), len(row) // GROUP
    # Of a NaN the argmax is the place. The pass also brings the row near the processor for the next one.
    check_finite(float(row[row.argmax()]))
    if n <= 0 or n >= length:
        return Likeliest(_all_ids(length), row)
    if length < LARGE or n > width:
        return _reaching(row, 0, np.partition(row, length - n)[length - n])
    leaders = _leaders(row[: width * GROUP].reshape(GROUP, width), axis=0)
    ranked = leaders.copy()
    ranked.partition(width - n)
    bound = ranked[width - n]
    ids = (_firsts(width) + (leaders >= bound).nonzero()[0]).ravel()
    logits = row.take(ids)
    kept = (logits >= bound).nonzero()[0]
    found = Likeliest(ids.take(kept), logits.take(kept))
    if width * GROUP == length:
        return found
    rest = _reaching(row[width * GROUP :], width * GROUP, bound)
    return Likeliest(np.concatenate([found.ids, rest.ids]), np.concatenate([found.logits, rest.logits]))


def _reaching(row: Row, first: int, bound: np.float32) -> Likeliest:
    """Logits of at least `bound` of a row whose ids start at `first`."""
    at = (row >= bound).nonzero()[0]
    return Likeliest(at + first, row[at])


def best(row: Row) -> int:
    """The likeliest id, the first of several.

    Raises:
        NotFiniteError: the row holds a NaN, or its largest logit is infinite.
    """
    id = int(row.argmax())
    check_finite(float(row[id]))
    return id


def best_guess(row: Row) -> tuple[int, float]:
    """The likeliest id of a drafter's row, the first of several, and how likely it is by its own model.

    The probability is never below the softmax over the row and at most 1. It is that softmax for rows of less
    than `LARGE` ids. Beyond, what an id weighs next to its leader is left out: where the softmax gives the
    best id p, and all other leaders together 1 - p - r, it is p / (1 - r).

    Raises:
        NotFiniteError: the row holds a NaN, or its largest logit is infinite.
    """
    length = len(row)
    if length < LARGE:
        id = best(row)
        return id, 1.0 / float(_total(np.exp(row - row[id])))
    width = length // GROUP
    whole = width * GROUP
    leaders = _leaders(row[:whole].reshape(GROUP, width), axis=0)
    if whole < length:
        leaders = np.append(leaders, row[whole:].max())
        id = best(row)
    else:
        group = int(leaders.argmax())
        id = group + width * int(row[group::width].argmax())
    top = row[id]
    check_finite(float(top))
    np.subtract(leaders, top, leaders)
    np.exp(leaders, leaders)
    total = float(_total(leaders))
    if total >= _UNSURE:
        id = int(row.argmax())
    return id, 1.0 / total
