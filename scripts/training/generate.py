"""Lets the target write the training texts, many side by side, and keeps what heads learn from.

Hidden states and top probabilities are taken in the pass that writes a token, through the calls the
drafters use at run time. Every reply has a random generator of its own, seeded by its prompt's number, so
that a resumed run writes what an uninterrupted one would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.engine.backend import Context, ContextSettings, load_model
from localspec.engine.backend.features import LayerInputs, post_norm_rows
from training.shards import TOP, Sample, ShardStore

TEMPERATURES = (0.0, 0.3, 0.0, 0.6, 0.3, 0.0, 0.9, 0.5)
"""Taken in turn: drafts are mostly judged by greedy targets, but need to see other turns of phrase."""
TOP_K = 40
MAX_PROMPT = 384
LOOP = 24
"""A reply ends when its last 3 × LOOP tokens repeat with a period up to LOOP: more of it teaches nothing."""

Ids = NDArray[np.int32]
Rows = NDArray[np.float32]


class Writer:
    """One reply in progress; its rows pile up until it is a `Sample`."""

    def __init__(
        self,
        index: int,
        prompt: list[int],
        seed: int,
        max_new: int,
        temperatures: Sequence[float] = TEMPERATURES,
    ) -> None:
        self.index = index
        self.n_prompt = len(prompt)
        self.tokens = list(prompt)
        self.temperature = temperatures[index % len(temperatures)]
        self._random = np.random.default_rng([seed, index])
        self._max = len(prompt) + max_new
        self._rows: list[tuple[NDArray[np.generic], ...]] = []

    def take(self, logits: Rows, features: Rows, hidden: Rows, ends: frozenset[int]) -> bool:
        """Keep the rows of the newest decode and append the next token; False when the reply is over."""
        self._rows.append(kept_rows(logits, features, hidden))
        token = draw(logits[-1], self.temperature, self._random)
        self.tokens.append(token)
        return token not in ends and len(self.tokens) < self._max and not self._loops()

    def _loops(self) -> bool:
        tail = self.tokens[self.n_prompt :][-3 * LOOP :]
        if len(tail) < 3 * LOOP:
            return False
        return any(tail[period:] == tail[:-period] for period in range(1, LOOP + 1))

    def sample(self) -> Sample:
        """The last token was never decoded, so it has no row and is left out."""
        columns = [np.concatenate(column) for column in zip(*self._rows, strict=True)]
        tokens = np.array(self.tokens[:-1], np.int32)
        return Sample(self.index, self.n_prompt, self.temperature, tokens, *columns)


def kept_rows(logits: Rows, features: Rows, hidden: Rows) -> tuple[NDArray[np.generic], ...]:
    """The per-position columns of a `Sample` behind its tokens."""
    # Activations of a few outlier dimensions can grow beyond what 16 bits hold.
    small = [np.clip(rows, -65000, 65000).astype(np.float16) for rows in (features, hidden)]
    tops = [top_probabilities(row) for row in logits]
    ids, p = (list(column) for column in zip(*tops, strict=True))
    return *small, np.array(ids, np.int32), np.array(p, np.float16)


def top_probabilities(row: Rows) -> tuple[Ids, Rows]:
    """The `TOP` most probable ids of one row of logits, best first, and their probabilities."""
    best = row.max()
    near = np.flatnonzero(row > best - 12)
    if len(near) < TOP:
        near = np.argpartition(row, -TOP)[-TOP:]
    ids = near[np.argsort(row[near])[::-1][:TOP]].astype(np.int32)
    return ids, np.exp(row[ids] - best) / np.exp(row - best).sum()


def draw(row: Rows, temperature: float, random: np.random.Generator) -> int:
    """One token from the `TOP_K` best at a temperature; 0 = the best."""
    if temperature == 0:
        return int(row.argmax())
    ids = np.argpartition(row, -TOP_K)[-TOP_K:]
    weights = np.exp((row[ids] - row[ids].max()) / temperature)
    return int(ids[np.searchsorted(np.cumsum(weights), random.random() * weights.sum())])


class Crowd:
    """Replies written side by side in one context, one sequence each."""

    def __init__(self, path: Path, *, size: int, n_ctx: int, layers: Iterable[int], threads: int) -> None:
        self.size = size
        self.model = load_model(path)
        rows = max(size, MAX_PROMPT)
        settings = ContextSettings(
            n_ctx=size * n_ctx, n_batch=rows, n_ubatch=rows, n_outputs_max=rows, n_seq_max=size,
            threads=threads, kv_unified=False,
        )  # fmt: skip
        self.context = Context(self.model, settings)
        self.context.hidden_rows = True
        self._features = LayerInputs(self.context, tuple(layers))
        self._ends = self.model.vocabulary.eog
        self._slots: list[Writer | None] = [None] * size

    def read(self, index: int, ids: list[int]) -> Sample:
        """A text that exists already, at most as long as a prompt may be."""
        n = len(ids)
        tokens = np.array(ids, np.int32)
        self.context.remove(0, 0)
        logits = self.context.run_side_by_side(tokens, np.arange(n, dtype=np.int32), np.zeros(n, np.int32))
        rows = kept_rows(logits, self._features.read(n), post_norm_rows(self.context, n))
        return Sample(index, 1, 1.0, tokens, *rows)  # type: ignore[arg-type]

    def write(self, waiting: Iterator[Writer]) -> Iterator[tuple[Sample | None, int]]:
        """After each decode: (a finished sample or None, tokens written by that decode)."""
        while True:
            for slot, writer in enumerate(self._slots):
                if writer is None:
                    yield from self._start(slot, waiting)
            active = [(slot, writer) for slot, writer in enumerate(self._slots) if writer]
            if not active:
                return
            yield from self._step(active)

    def _start(self, slot: int, waiting: Iterator[Writer]) -> Iterator[tuple[Sample | None, int]]:
        writer = next(waiting, None)
        if writer is None:
            return
        self._slots[slot] = writer
        self.context.remove(slot, 0)
        n = writer.n_prompt
        logits = self.context.run_side_by_side(
            np.array(writer.tokens, np.int32), np.arange(n, dtype=np.int32), np.full(n, slot, np.int32)
        )
        yield from self._take([(slot, writer)], [slice(0, n)], logits, n)

    def _step(self, active: list[tuple[int, Writer]]) -> Iterator[tuple[Sample | None, int]]:
        logits = self.context.run_side_by_side(
            np.array([writer.tokens[-1] for _, writer in active], np.int32),
            np.array([len(writer.tokens) - 1 for _, writer in active], np.int32),
            np.array([slot for slot, _ in active], np.int32),
        )
        yield from self._take(active, [slice(i, i + 1) for i in range(len(active))], logits, len(active))

    def _take(
        self, writers: list[tuple[int, Writer]], rows: list[slice], logits: Rows, n: int
    ) -> Iterator[tuple[Sample | None, int]]:
        features = self._features.read(n)
        hidden = post_norm_rows(self.context, n)
        for (slot, writer), part in zip(writers, rows, strict=True):
            if not writer.take(logits[part], features[part], hidden[part], self._ends):
                self._slots[slot] = None
                yield writer.sample(), 0
        yield None, n

    def close(self) -> None:
        self.context.close()
        self.model.close()


def generate(
    crowd: Crowd,
    store: ShardStore,
    prompts: Iterable[tuple[int, list[int]]],
    *,
    seed: int,
    max_new: int,
    tokens: float = math.inf,
    temperatures: Sequence[float] = TEMPERATURES,
    per_shard: int = 48,
    progress: Callable[[int, int], None] = lambda tokens, samples: None,
) -> int:
    """Write shards until about `tokens` tokens were decoded; returns how many were.

    Args:
        prompts: (number, ids), of which those that the store already has are passed over.
        progress: called after each decode with the tokens and the samples of this run.
    """
    known = store.done()
    budget, finished = 0, 0

    def waiting() -> Iterator[Writer]:
        for index, ids in prompts:
            if budget >= tokens:
                return
            if index not in known and len(ids) <= MAX_PROMPT:
                yield Writer(index, ids, seed, max_new, temperatures)

    pile: list[Sample] = []
    try:
        for sample, n in crowd.write(waiting()):
            budget += n
            if sample is not None:
                pile.append(sample)
                finished += 1
            if len(pile) >= per_shard:
                store.write(pile)
                pile = []
            progress(budget, finished)
    finally:
        if pile:
            store.write(pile)
    return budget
