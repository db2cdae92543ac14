"""Samples in memory as padded PyTorch batches, and the tokens that a reduced vocabulary keeps."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.shards import STATES, Sample, ShardStore, read_shard

PAD, ROWS, IDS = 32, 128, 512
"""Batches are as long, judge as many rows and weigh as many ids as a multiple of these: a matrix product of
a shape that never came before costs several times its work, because its kernel is compiled first."""
POOL = 12
"""Batches whose samples are sorted by length together, so that little is padding."""


@dataclass(slots=True)
class Batch:
    """`[B, T, …]` of samples side by side; rows from `length` on are padding."""

    tokens: Tensor
    features: Tensor
    hidden: Tensor
    top_ids: Tensor
    top_p: Tensor
    n_prompt: Tensor
    length: Tensor

    @property
    def is_reply(self) -> Tensor:
        """`[B, T]`: rows whose distribution is of a token of the reply."""
        at = torch.arange(self.tokens.shape[1])
        return (at >= self.n_prompt[:, None] - 1) & (at < self.length[:, None])


def batch_of(samples: Sequence[Sample]) -> Batch:
    longest = max(len(sample.tokens) for sample in samples)
    longest += -longest % PAD

    def padded(name: str) -> Tensor:
        first = getattr(samples[0], name)
        out = np.zeros((len(samples), longest, *first.shape[1:]), first.dtype)
        for i, sample in enumerate(samples):
            out[i, : len(sample.tokens)] = getattr(sample, name)
        return torch.from_numpy(out)

    return Batch(
        padded("tokens").long(), padded("features"), padded("hidden"), padded("top_ids").long(),
        padded("top_p").float(), torch.tensor([sample.n_prompt for sample in samples]),
        torch.tensor([len(sample.tokens) for sample in samples]),
    )  # fmt: skip


class Corpus:
    """Training samples of a folder; shards that appear later are taken in between epochs.

    Args:
        states: columns of `shards.STATES` to keep in memory, 4.6 KB a token together for a width of 576.
    """

    def __init__(self, folder: Path, states: Collection[str] = STATES) -> None:
        self._store = ShardStore(folder)
        self._states = states
        self._known: set[Path] = set()
        self.samples: list[Sample] = []
        self.refresh()

    def refresh(self) -> None:
        for path in self._store.paths():
            if path not in self._known:
                self._known.add(path)
                self.samples.extend(read_shard(path, self._states))

    @property
    def n_tokens(self) -> int:
        return sum(len(sample.tokens) for sample in self.samples)

    def epoch(self, size: int, random: random.Random) -> Iterator[Batch]:
        """All samples once, in batches of `size` of similar length, in random order."""
        self.refresh()
        order = random.sample(self.samples, len(self.samples))
        for start in range(0, len(order), size * POOL):
            pool = sorted(order[start : start + size * POOL], key=lambda sample: len(sample.tokens))
            groups = [pool[i : i + size] for i in range(0, len(pool), size)]
            for group in random.sample(groups, len(groups)):
                yield batch_of(group)


def frequent_ids(samples: Sequence[Sample], n_vocab: int, keep: int) -> NDArray[np.int64]:
    """The `keep` ids the target most expects to write, ascending; ties go to the smaller id."""
    mass = np.zeros(n_vocab)
    for sample in samples:
        rows = slice(max(sample.n_prompt - 1, 0), None)
        np.add.at(mass, sample.top_ids[rows], sample.top_p[rows].astype(np.float64))
    return np.sort(np.argsort(-mass, kind="stable")[:keep])


def coverage(samples: Sequence[Sample], ids: NDArray[np.int64]) -> float:
    """Share of the replies' tokens that are among `ids`."""
    written = np.concatenate([sample.tokens[sample.n_prompt :] for sample in samples])
    return float(np.isin(written, ids).mean())


class ReducedVocabulary:
    """Distributions over chosen ids as rows of a smaller output matrix."""

    def __init__(self, ids: Tensor, n_vocab: int) -> None:
        self.ids = ids
        self._row = torch.full((n_vocab,), -1)
        self._row[self.ids] = torch.arange(len(ids))

    def distillation(self, logits: Tensor, top_ids: Tensor, top_p: Tensor) -> Tensor:
        """Cross-entropy `[n]` of logits `[n, len(ids)]` against the target's top probabilities `[n, TOP]`.

        What the target gives to ids that are not kept is left out, so such rows weigh less.
        """
        rows = self._row[top_ids]
        p = top_p * (rows >= 0)
        chosen = torch.gather(logits, 1, rows.clamp(min=0)).float()
        return torch.logsumexp(logits.float(), 1) * p.sum(1) - (p * chosen).sum(1)

    def best(self, logits: Tensor) -> Tensor:
        """The target's ids of the largest logits."""
        return self.ids[logits.argmax(-1)]


def candidates(batch: Batch, n_vocab: int, extra: int = 2048) -> ReducedVocabulary:
    """The ids the target considers in a batch's replies, and `extra` random others.

    Training against these instead of all costs a tenth and moves the result little.
    """
    wanted = batch.is_reply[..., None] & (batch.top_p > 0.01)
    chosen = torch.zeros(n_vocab, dtype=torch.bool)
    chosen[batch.top_ids[wanted]] = True
    count = int(chosen.sum()) + extra
    others = (~chosen).nonzero()[:, 0]
    chosen[others[torch.randperm(len(others))[: extra + -count % IDS]]] = True
    return ReducedVocabulary(chosen.nonzero()[:, 0], n_vocab)


def whole_blocks(*columns: Tensor) -> tuple[Tensor, ...]:
    """Rows to judge, without a few at a random place that make no block of `ROWS`."""
    n = len(columns[0])
    if n < ROWS:
        return columns
    kept = (torch.arange(n - n % ROWS) + torch.randint(n, ())) % n
    return tuple(column[kept] for column in columns)
