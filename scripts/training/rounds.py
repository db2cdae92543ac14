"""Accepted drafts per round, walked over a finished greedy text: what the loop will do, without the loop."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)
class Tally:
    """Counts of rounds; `reached[j]` of them tested position j, `right[j]` accepted it."""

    k: int
    rounds: int = 0
    reached: NDArray[np.int64] = field(init=False)
    right: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.reached = np.zeros(self.k, np.int64)
        self.right = np.zeros(self.k, np.int64)

    @property
    def accepted(self) -> int:
        return int(self.right.sum())

    @property
    def per_round(self) -> float:
        return self.accepted / max(self.rounds, 1)

    @property
    def by_position(self) -> list[float]:
        """Acceptance of position j among the rounds that reached it."""
        return [float(r / max(n, 1)) for r, n in zip(self.right, self.reached, strict=True)]

    def walk(self, hits: NDArray[np.bool_], start: int, end: int) -> None:
        """Rounds from position `start` until the text ends.

        Args:
            hits: `[k, n]`, whether draft j of a round that starts at position P is what follows.
            end: length of the text.
        """
        at = start
        while at + 1 < end:
            k = min(self.k, end - at - 2)
            self.rounds += 1
            accepted = 0
            while accepted < k:
                self.reached[accepted] += 1
                if not hits[accepted, at]:
                    break
                self.right[accepted] += 1
                accepted += 1
            at += accepted + 1

    def __str__(self) -> str:
        curve = " ".join(f"{p:.2f}" for p in self.by_position)
        return f"{self.per_round:.2f} per round ({curve})"
