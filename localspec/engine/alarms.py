"""Acceptance patterns that mean a broken drafter, or none at all, rather than a weak one.

Counts are kept per method and over a session, because a reply may be too short to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from localspec.engine.stats import add_at_each

MANY = 24
"""Judged drafts before an acceptance of exactly nothing counts as a fault."""
COLLAPSED = 32
"""Judged drafts in a row, all rejected, that are a fault of a drafter which used to be right."""
PERFECT = 512
"""Judged drafts of another model that may all be right before that is suspicious."""
ENOUGH = 512
"""Judged drafts of this session, and of earlier ones, before their acceptance is compared."""
_DROPPED = 0.45
"""Share of what was usual, below which acceptance has dropped rather than the text changed."""
_AGAIN = 128
"""Judged drafts until text that was a copy is looked at again."""
_RUN = 4
"""Tokens of a run that must have occurred before for its last one to count as copied."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that needs an explanation."""

    text: str
    broken: bool
    """The drafter proposes nothing but nonsense: its state, or itself, is spoiled."""


@dataclass(slots=True)
class _Seen:
    """What one method did so far."""

    tested: int = 0
    accepted: int = 0
    missed: int = 0
    """Tested since the last accepted one."""
    tested_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    raised: set[str] = field(default_factory=set)
    look_at: int = PERFECT
    """Tested drafts at which being always right is looked into."""

    def add(self, tested: int, accepted: int) -> None:
        self.tested += tested
        self.accepted += accepted
        self.missed = tested - accepted if accepted else self.missed + tested
        add_at_each(self.tested_at, tested)
        add_at_each(self.accepted_at, accepted)

    @property
    def collapsed(self) -> bool:
        """Whether a drafter that was right about every third time or more is never right any longer."""
        before = self.tested - self.missed
        return self.missed >= COLLAPSED and before >= COLLAPSED and self.accepted > 0.3 * before

    def cliff(self) -> int | None:
        """0-based position where acceptance falls from more than 30 % to exactly nothing."""
        j = len(self.accepted_at)  # no draft at this position or behind it was ever accepted
        if not 0 < j < len(self.tested_at) or self.tested_at[j] < MANY:
            return None
        return j if self.accepted_at[j - 1] > 0.3 * self.tested_at[j - 1] else None


@dataclass(slots=True)
class Alarms:
    """A session's alarms; each is raised once per method, and again after the drafter was reset."""

    own: frozenset[str] = frozenset()
    """Methods that draft with the target itself: always right, and rightly so."""
    expected: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """(tested, accepted) of earlier sessions of the same pair, by method."""
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _counts: dict[str, tuple[int, int]] = field(default_factory=dict)

    def observe(
        self, method: str, tested: int, accepted: int, is_copy: Callable[[], bool] = lambda: False
    ) -> list[Alarm]:
        """Add one round's counts; returns new alarms.

        Args:
            is_copy: whether the text repeats itself so much that being always right proves nothing; asked
                rarely, for it reads the whole text.
        """
        seen = self._seen.setdefault(method, _Seen())
        seen.add(tested, accepted)
        before = self._counts.get(method, (0, 0))
        self._counts[method] = (before[0] + tested, before[1] + accepted)
        found = {}
        if seen.tested >= MANY and seen.accepted == 0:
            found["none"] = (
                f"none of {seen.tested} tested draft tokens was accepted: the `{method}` drafter looks broken"
            )
        if seen.collapsed:
            found["collapse"] = (
                f"none of the last {seen.missed} tested draft tokens was accepted, of those before "
                f"{100 * seen.accepted / (seen.tested - seen.missed):.0f} %: the `{method}` drafter's state "
                "looks spoiled"
            )
        cliff = seen.cliff()
        if cliff is not None:
            found["cliff"] = (
                f"acceptance falls to exactly 0 at draft position {cliff + 1} ({seen.tested_at[cliff]} "
                f"tested): cache or positions of the `{method}` drafter look broken"
            )
        usual = self._dropped(method)
        if usual is not None:
            share = 100 * self._counts[method][1] / self._counts[method][0]
            found["drop"] = (
                f"the `{method}` drafter's acceptance is {share:.0f} % of tested, in earlier sessions of "
                f"this pair it was {100 * usual:.0f} %: a fault of this build, unless the text is of another "
                "kind"
            )
        if self._too_good(method, seen, is_copy):
            found["perfect"] = (
                f"all of {seen.tested} tested draft tokens were accepted: is the `{method}` drafter the "
                "target itself?"
            )
        new = [
            Alarm(text, key in ("none", "collapse")) for key, text in found.items() if key not in seen.raised
        ]
        # One that was right again may collapse once more.
        seen.raised = (seen.raised | set(found)) - (set() if seen.collapsed else {"collapse"})
        return new

    def counts(self) -> dict[str, tuple[int, int]]:
        """(tested, accepted) of this session by method, resets or not."""
        return dict(self._counts)

    def _dropped(self, method: str) -> float | None:
        """The acceptance that was usual, when this session's is far below it."""
        (tested, accepted), (before, right) = self._counts[method], self.expected.get(method, (0, 0))
        if tested < ENOUGH or before < ENOUGH:
            return None
        usual = right / before
        return usual if accepted / tested < _DROPPED * usual else None

    def forget(self, method: str) -> None:
        """Count anew: the drafter is another one than it was."""
        self._seen.pop(method, None)

    def _too_good(self, method: str, seen: _Seen, is_copy: Callable[[], bool]) -> bool:
        if method in self.own or seen.accepted < seen.tested or seen.tested < seen.look_at:
            return False
        seen.look_at = seen.tested + _AGAIN
        return not is_copy()


def repeats_itself(ids: NDArray[np.int32], newest: int = PERFECT) -> bool:
    """Whether most of the `newest` tokens end a run that occurred before in `ids` `[n]`."""
    if len(ids) <= _RUN:
        return False
    runs = np.lib.stride_tricks.sliding_window_view(ids, _RUN)
    _, first, which = np.unique(runs, axis=0, return_index=True, return_inverse=True)
    repeated = first[which.reshape(-1)] < np.arange(len(runs))
    return bool(repeated[-newest:].mean() > 0.5)
