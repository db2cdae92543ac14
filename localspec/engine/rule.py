"""Match or rejection for sampled drafts: whichever the target is expected to accept more often.

Both emit the target's distribution exactly; they differ in how many drafts survive. From one pair of
distributions both chances follow: a greedy draft under match survives with p(argmax q), a drawn one under
rejection with Σ min(p, q) (Leviathan et al. 2023).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from localspec.engine.costs import Average
from localspec.engine.sampling import Distribution

ENOUGH = 32
"""Rounds looked at before the two chances are compared; each shows one of its drafts."""
RECHECK = 8
"""Every so many requests rejection is used again, since only it shows both chances."""


def overlap(p: Distribution, q: Distribution) -> float:
    """Σ min(p, q) over ids."""
    return float(np.minimum(p.p, q.at(p.ids)).sum())


def _chance() -> Average:
    """Of exact values: one far above the mean is no outlier."""
    return Average(step=0.01, outlier=math.inf)


@dataclass(slots=True)
class RuleChoice:
    """What a session learned about its drafters' sampled proposals; one per drafters and truncation."""

    match: Average = field(default_factory=_chance)
    rejection: Average = field(default_factory=_chance)
    requests: int = 0

    def observe(self, p: Distribution, q: Distribution) -> None:
        """A draft drawn from `q` was judged by `p`."""
        self.match.add(p.of(q.best[0]))
        self.rejection.add(overlap(p, q))

    def rejection_next(self) -> bool:
        """Whether the next request should draw and reject; counts the request."""
        self.requests += 1
        if self.rejection.count < ENOUGH or self.requests % RECHECK == 0:
            return True
        return self.rejection.value >= self.match.value
