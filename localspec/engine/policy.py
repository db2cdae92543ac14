"""What a policy is to the loop, what it learns from a round, and the policy that never adapts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from localspec.engine.drafters.base import Draft, Drafter, DraftSampling, History, More, always
from localspec.engine.events import Notice
from localspec.engine.leaders import NotFiniteError
from localspec.engine.recovery import DraftFaultError


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished round, as the policy sees it."""

    method: str
    confidences: tuple[float, ...]
    """The drafter's estimate of each drafted token; empty for a plain round."""
    tested: int
    accepted: int
    committed: tuple[int, ...]
    """Token ids the round added."""
    rows: int
    n_past: int
    """Target cells before the round's decode."""
    draft_s: float
    catchup_s: float
    catchup_rows: int
    verify_s: float
    other_s: float
    complete: bool = True
    """False when the reply ended inside the round: its acceptance was cut off."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """What a round may draft from, and how much."""

    drafters: Sequence[Drafter]
    """In order of preference."""
    history: History
    limit: int
    """Most tokens."""
    n_past: int
    """Cells of the target."""
    sampling: DraftSampling | None = None
    """How drafters that can should draw; None = deterministic proposals."""


class Policy(Protocol):
    """Makes the round's draft and learns from its outcome."""

    def draft(self, request: DraftRequest) -> tuple[str, Draft | None]:
        """At most `limit` tokens from one of the drafters; (`off`, None) is a plain round."""

    def observe(self, outcome: Outcome) -> list[Notice]:
        """Learn from a round; returns what the user should know."""

    def restart(self, method: str) -> None:
        """The drafter was reset: what was learned of it holds no longer."""

    def speedup(self) -> float | None:
        """Measured speculative rate / measured plain rate at this context, or None."""

    @property
    def paused(self) -> bool: ...

    @property
    def adapts(self) -> bool:
        """Whether it may do without a drafter; else a spoiled one goes on drafting."""


NOT_FINITE = "produced probabilities that are not finite"


def propose(drafter: Drafter, request: DraftRequest, k: int, more: More) -> Draft:
    """The drafter's proposal.

    Raises:
        DraftFaultError: it is no proposal.
        EngineError: the drafter cannot go on.
    """

    def checked(position: int, confidence: float) -> bool:
        if not isfinite(confidence):
            raise DraftFaultError(drafter.name, NOT_FINITE)
        return more(position, confidence)

    sampling = request.sampling if drafter.samples else None
    try:
        # `always` goes on as it is: drafters know it, and then work out no confidence.
        draft = drafter.propose(request.history, k, more if more is always else checked, sampling)
    except NotFiniteError as error:
        raise DraftFaultError(drafter.name, NOT_FINITE) from error
    if not all(map(isfinite, draft.confidences)):
        raise DraftFaultError(drafter.name, NOT_FINITE)
    return draft


class FixedPolicy:
    """Always `k` tokens from the first drafter that has a proposal; never pauses."""

    paused = False
    adapts = False

    def __init__(self, k: int, p_min: float = 0.0) -> None:
        self._k = k
        self._more: More = (lambda _, confidence: confidence >= p_min) if p_min > 0 else always

    def draft(self, request: DraftRequest) -> tuple[str, Draft | None]:
        k = min(self._k, request.limit)
        for drafter in request.drafters if k > 0 else ():
            draft = propose(drafter, request, k, self._more)
            if len(draft):
                return drafter.name, draft
        return "off", None

    def observe(self, outcome: Outcome) -> list[Notice]:
        return []

    def restart(self, method: str) -> None:
        """Nothing is learned."""

    def speedup(self) -> float | None:
        return None
