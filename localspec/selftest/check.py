"""Does a model's next token depend on its history? Without that, a broken cache never shows.

Random weights of the usual size (0.02) give an argmax that ignores everything but the last token and
greedy text that cycles; a test on such a model passes with the KV cache rolled back wrongly.
It knows a forward function, nothing of files or llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Forward = Callable[[Sequence[int]], NDArray[np.float32]]
    """Token ids → logits of the last position, `[n_vocab]`, or of every position, `[n, n_vocab]`."""

MIN_CHANGED = 0.2
"""Share of argmaxes that must change with one earlier token."""
GREEDY_TOKENS = 200
MAX_CYCLE = 50
"""Greedy text must hold no cycle shorter than this."""


@dataclass(frozen=True, slots=True)
class HistoryCheck:
    """What `history_matters` saw."""

    changed: int
    """Cases in which another token 2 to 20 positions back changed the argmax."""
    cases: int
    cycle: int | None
    """Length of the cycle the greedy text ends in, None without one below `MAX_CYCLE`."""

    @property
    def passed(self) -> bool:
        return self.cycle is None and self.changed >= MIN_CHANGED * self.cases


def history_matters(
    forward: Forward,
    *,
    live: Sequence[int],
    cases: int = 100,
    greedy_tokens: int = GREEDY_TOKENS,
    seed: int = 7,
) -> HistoryCheck:
    """Change one token 2…20 positions back and count argmax changes; then look for cycles in greedy text.

    Args:
        forward: evaluates a whole sequence from scratch.
        live: ids to build prompts of.
        cases: prompts tried.
        greedy_tokens: length of the greedy text searched for cycles; 0 skips it.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    changed = 0
    for _ in range(cases):
        ids = [int(i) for i in rng.choice(live, size=int(rng.integers(22, 41)))]
        place = len(ids) - 1 - int(rng.integers(2, 21))
        other = [int(i) for i in live if i != ids[place]]
        before = _next(forward, ids)
        ids[place] = int(rng.choice(other))
        changed += _next(forward, ids) != before
    text = [int(i) for i in rng.choice(live, size=8)]
    start = len(text)
    for _ in range(greedy_tokens):
        text.append(_next(forward, text))
    return HistoryCheck(changed, cases, closing_cycle(text[start:]))


def closing_cycle(ids: Sequence[int]) -> int | None:
    """The shortest period below `MAX_CYCLE` of the second half of `ids`, or None."""
    tail = ids[len(ids) // 2 :]
    for period in range(1, min(MAX_CYCLE, len(tail))):
        if list(tail[period:]) == list(tail[:-period]):
            return period
    return None


def _next(forward: Forward, ids: Sequence[int]) -> int:
    logits = forward(ids)
    return int((logits if logits.ndim == 1 else logits[-1]).argmax())
