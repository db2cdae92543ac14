"""How long a draft is worth making: expected tokens against the time they cost.

A round of k drafted tokens is worth E[tokens] - λ · seconds, where λ is the rate the reply reaches anyway:
drafting goes on while one more token earns more than its time would earn elsewhere, and k = 0 (plain
decoding) is one of the choices. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence


def goes_on(
    position: int, reach: float, chances: Sequence[float], costs: Sequence[float], rate: float
) -> bool:
    """Whether the token at `position`, alone or with some that usually follow, earns more than its time.

    Looking further than one row steps over the kernels' cliffs, stops in front of those too high, and fills
    a bucket up to its edge.

    Args:
        reach: chance that this token and all before it are accepted.
        chances: usual acceptance by position.
        costs: seconds of a round by drafted tokens.
        rate: tokens per second that time is worth elsewhere.
    """
    gain = 0.0
    for k in range(position + 1, len(costs)):
        gain += reach
        if gain > rate * (costs[k] - costs[position]):
            return True
        if k < len(chances):
            reach *= chances[k]
    return False


def surplus(k: int, chances: Sequence[float], costs: Sequence[float], rate: float) -> float:
    """Expected tokens of a round with k drafts, less what its time would earn elsewhere."""
    tokens = reach = 1.0
    for chance in chances[:k]:
        reach *= chance
        tokens += reach
    return tokens - rate * costs[k]


def best_length(chances: Sequence[float], costs: Sequence[float], rate: float) -> tuple[int, float]:
    """(k with the largest surplus over plain decoding, its speed relative to plain); k = 3 without prices.

    Expected tokens of k drafts are 1 + Σᵢ Πⱼ≤ᵢ aⱼ (Leviathan et al. 2023, with measured a). Of equals the
    longest wins: rows up to the edge of a bucket cost nothing.
    """
    plain = costs[0]
    if plain <= 0:
        return min(3, len(chances)), 1.0
    best_k, best, ratio = 0, 1.0 - rate * plain, 0.0
    reach, tokens = 1.0, 1.0
    for k, chance in enumerate(chances, 1):
        reach *= chance
        tokens += reach
        ratio = max(ratio, tokens / costs[k] * plain)
        surplus = tokens - rate * costs[k]
        if surplus > best + 1e-9:
            best_k, best = k, surplus
    return best_k, ratio
