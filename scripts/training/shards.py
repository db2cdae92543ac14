"""Training data on disk: sequences with the target's hidden states and top probabilities, in shards.

A shard is one `.npz`, complete or absent (it is renamed into place), so a run that was stopped goes on
with the first prompt of which no shard knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOP = 8
"""Probabilities kept per position."""


@dataclass(slots=True)
class Sample:
    """One prompt with the target's reply.

    Row p of the per-position arrays belongs to token p: the layer inputs and the hidden state (after the
    final norm) of its decode, and the target's distribution of token p + 1.
    """

    index: int
    """Of the prompt, in the order of `prompts.prompt_stream`."""
    n_prompt: int
    temperature: float
    tokens: NDArray[np.int32]
    features: NDArray[np.float16]
    """`[n, 3 · width]`."""
    hidden: NDArray[np.float16]
    """`[n, width]`."""
    top_ids: NDArray[np.int32]
    """`[n, TOP]`, most probable first."""
    top_p: NDArray[np.float16]


ROW_FIELDS = ("tokens", "features", "hidden", "top_ids", "top_p")
STATES = ("features", "hidden")
"""The columns that are nearly all of a shard."""


class ShardStore:
    """A folder of shards."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def paths(self) -> list[Path]:
        return sorted(self.folder.glob("shard-*.npz"))

    def done(self) -> set[int]:
        """Prompts that have a sample."""
        found: set[int] = set()
        for path in self.paths():
            with np.load(path) as shard:
                found.update(shard["index"].tolist())
        return found

    def write(self, samples: list[Sample]) -> Path:
        """Add one shard."""
        columns: dict[str, Any] = {
            field.name: (np.concatenate if field.name in ROW_FIELDS else np.array)(
                [getattr(sample, field.name) for sample in samples]
            )
            for field in fields(Sample)
        }
        columns["length"] = np.array([len(sample.tokens) for sample in samples])
        path = self.folder / f"shard-{len(self.paths()):04}.npz"
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, **columns)
        part.rename(path)
        return path

    def samples(self) -> Iterator[Sample]:
        """All samples, shard by shard."""
        for path in self.paths():
            yield from read_shard(path)


def read_shard(path: Path, states: Collection[str] = STATES) -> Iterator[Sample]:
    """Samples of one shard; of the `STATES` that are not asked for, the rows have no width."""
    with np.load(path) as shard:
        columns = {name: shard[name] for name in shard.files if name in states or name not in STATES}
    for name in STATES:
        columns.setdefault(name, np.zeros((len(columns["tokens"]), 0), np.float16))
    ends = np.cumsum(columns["length"])
    for i, (end, length) in enumerate(zip(ends.tolist(), columns["length"].tolist(), strict=True)):
        rows = slice(end - length, end)
        yield Sample(
            int(columns["index"][i]), int(columns["n_prompt"][i]), float(columns["temperature"][i]),
            *(columns[name][rows] for name in ROW_FIELDS),
        )  # fmt: skip
