"""A target and a drafter that follow a script, for the logic of rounds, events and policies.

The target's next token depends on the position alone, whatever was fed to it, so nothing that runs on it
proves anything about caches: that is what the tiny models are for. It does insist on the bookkeeping a
real cache needs (no rows past the context or the batch, no gaps) and counts what it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from localspec.engine.drafters.base import Draft, DraftSampling, History, Ids, More, Tokens
from localspec.engine.sampling import Distribution, Row, point
from localspec.errors import EngineError
from tests.kit.clock import FakeClock


@dataclass
class ScriptedTarget:
    """Says `text[p]` at position p, whatever it read; satisfies the loop's `Target`.

    Each decode takes `cost_s(rows)` seconds on `clock`.
    """

    text: Sequence[int]
    """Prompt and reply, by position."""
    n_vocab: int = 100
    n_ctx: int = 256
    n_batch: int = 64
    undo_limit: int | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    cost_s: Callable[[int], float] = lambda rows: 0.0
    n_past: int = 0
    decodes: list[int] = field(default_factory=list)
    """Rows of each decode."""
    fails_at: int | None = None
    """Number of the decode that raises, from 0."""
    waited_s: float = 0.0
    sequences: int = 1
    prefill_chunk: int = 64

    def __post_init__(self) -> None:
        self.most_rows = self.n_batch
        self.ids: Ids = np.zeros(self.n_ctx + 1, np.int32)

    def decode(self, tokens: Tokens, outputs: int) -> NDArray[np.float32]:
        n = len(tokens)
        assert 0 < n <= self.n_batch, f"{n} rows in a batch of {self.n_batch}"
        assert self.n_past + n <= self.n_ctx, "a row past the context"
        assert min(tokens) >= 0 and max(tokens) < self.n_vocab, "an id outside the vocabulary"
        if len(self.decodes) == self.fails_at:
            raise EngineError("the scripted decode failed")
        self.decodes.append(n)
        self.clock.advance(self.cost_s(n))
        self.ids[self.n_past : self.n_past + n] = tokens
        rows = np.zeros((n, self.n_vocab), np.float32)
        for i in range(n):
            rows[i, self.text[self.n_past + i + 1]] = 10.0
        self.n_past += n
        return rows[n - outputs :]

    def guard(self) -> None:
        """Nothing to save: any row can be dropped."""

    def truncate(self, n: int) -> int:
        assert 0 <= n <= self.n_past, f"cannot keep {n} of {self.n_past} cells"
        if self.undo_limit is not None and self.n_past - n > self.undo_limit:
            raise EngineError(f"only {self.undo_limit} cells can be dropped")
        self.n_past = n
        return 0

    def reusable_prefix(self, n: int) -> int:
        return n

    def mark_reusable(self) -> None:
        """Every prefix is reusable."""


@dataclass
class ScriptedDrafter:
    """Proposes `text` with mistakes: `pattern` says, cyclically, which tokens of a proposal are right.

    Each drafted token takes `cost_s` seconds on `clock`.
    """

    text: Sequence[int]
    pattern: Sequence[bool | int] = (True,)
    name: str = "draft"
    n_vocab: int = 100
    clock: FakeClock = field(default_factory=FakeClock)
    cost_s: float = 0.0
    confidence: float = 0.9
    fails_at: int | None = None
    """Number of the proposal that raises, from 0."""
    samples: bool = False
    free: bool = False
    commits: list[int] = field(default_factory=list)
    """Accepted tokens of each round, as the loop told."""
    proposals: int = 0
    resets: int = 0
    closed: bool = False

    def reusable(self, prompt: Ids, n: int) -> int:
        return n

    def rewind(self, n: int) -> None:
        pass

    def reset(self) -> None:
        self.resets += 1

    def begin(self, history: History) -> None:
        """A reply starts."""

    def observe(self, tokens: Tokens, start: int) -> None:
        """Hidden states are not read."""

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        if self.proposals == self.fails_at:
            raise EngineError("the scripted drafter failed")
        self.proposals += 1
        tokens: list[int] = []
        for i, id in enumerate(self.text[len(history) : len(history) + k]):
            if not more(i, self.confidence):
                break
            right = self.pattern[i % len(self.pattern)]
            tokens.append(id if right else (id + 1) % self.n_vocab)
        spent_s = self.cost_s * len(tokens)
        self.clock.advance(spent_s)
        return Draft(tokens, [self.confidence] * len(tokens), draft_s=spent_s)

    def commit(self, history: History, accepted: int) -> None:
        self.commits.append(accepted)

    def close(self) -> None:
        self.closed = True


class GreedyRows:
    """The sampler of greedy decoding without a chain: argmax, nothing else."""

    greedy = True

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def best(self, row: Row) -> int:
        return int(row.argmax())

    def distribution(self, row: Row) -> Distribution:
        return point(self.best(row))

    def accept(self, id: int) -> None:
        self.accepted.append(id)

    def close(self) -> None:
        """Nothing is held."""
