"""Acceptance patterns that mean a broken drafter, or none at all, rather than a weak one.

Counts are kept per method and over a session, because a reply may be too short to tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from localspec.engine.stats import add_at_each

MANY = 24
"""Judged drafts before an acceptance of exactly nothing counts as a fault."""
PERFECT = 512
"""Judged drafts of another model that may all be right before that is suspicious."""
_AGAIN = 128
"""Judged drafts until text that was a copy is looked at again."""
_RUN = 4
"""Tokens of a run that must have occurred before for its last one to count as copied."""


@dataclass(slots=True)
class _Seen:
    """What one method did so far."""

    tested: int = 0
    accepted: int = 0
    tested_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    raised: set[str] = field(default_factory=set)
    look_at: int = PERFECT
    """Tested drafts at which being always right is looked into."""

    def add(self, tested: int, accepted: int) -> None:
        self.tested += tested
        self.accepted += accepted
        add_at_each(self.tested_at, tested)
        add_at_each(self.accepted_at, accepted)

    def cliff(self) -> int | None:
        """0-based position where acceptance falls from more than 30 % to exactly nothing."""
        j = len(self.accepted_at)  # no draft at this position or behind it was ever accepted
        if not 0 < j < len(self.tested_at) or self.tested_at[j] < MANY:
            return None
        return j if self.accepted_at[j - 1] > 0.3 * self.tested_at[j - 1] else None


@dataclass(slots=True)
class Alarms:
    """A session's alarms; each is raised once per method."""

    own: frozenset[str] = frozenset()
    """Methods that draft with the target itself: always right, and rightly so."""
    _seen: dict[str, _Seen] = field(default_factory=dict)

    def observe(
        self, method: str, tested: int, accepted: int, is_copy: Callable[[], bool] = lambda: False
    ) -> list[str]:
        """Add one round's counts; returns new alarms as sentences.

        Args:
            is_copy: whether the text repeats itself so much that being always right proves nothing; asked
                rarely, for it reads the whole text.
        """
        seen = self._seen.setdefault(method, _Seen())
        seen.add(tested, accepted)
        found = {}
        if seen.tested >= MANY and seen.accepted == 0:
            found["none"] = (
                f"none of {seen.tested} tested draft tokens was accepted: the `{method}` drafter looks broken"
            )
        cliff = seen.cliff()
        if cliff is not None:
            found["cliff"] = (
                f"acceptance falls to exactly 0 at draft position {cliff + 1} ({seen.tested_at[cliff]} "
                f"tested): cache or positions of the `{method}` drafter look broken"
            )
        if self._too_good(method, seen, is_copy):
            found["perfect"] = (
                f"all of {seen.tested} tested draft tokens were accepted: is the `{method}` drafter the "
                "target itself?"
            )
        new = [text for key, text in found.items() if key not in seen.raised]
        seen.raised.update(found)
        return new

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
