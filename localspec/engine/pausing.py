"""When speculation counts as paused, when it may be tried again, and when it is back.

Pausing is a name for what the policy does anyway, not a switch: a round drafts when it is expected to pay.
Probes are the exception: they are made although they are expected to lose, from a budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

QUIET_ROUNDS = 32
"""Rounds without a draft after which speculation counts as paused."""
PROBE_SHARE = 0.01
"""Share of the quiet decode time that probes plan to spend, half of what they may really cost."""
FIRST_PROBE, LAST_PROBE = 16, 256
"""Quiet rounds between two probes of a drafter: doubled by each that loses."""
WINS = 2
"""Drafted rounds faster than plain decoding that end a pause."""

Change = Literal["paused", "resumed"]


@dataclass(slots=True)
class Pausing:
    """Quiet rounds of a reply, and what probes may spend."""

    paused: bool = False
    quiet: int = 0
    """Rounds since the last draft that was expected to pay."""
    _quiet_s: float = 0.0
    _probe_s: float = 0.0
    _wins: int = 0
    _next: dict[str, int] = field(default_factory=dict)
    _gap: dict[str, int] = field(default_factory=dict)

    def begin(self, *, paused: bool = False) -> None:
        """A new reply: the text is another one."""
        self.paused = paused
        self._drafts()

    def _drafts(self) -> None:
        self.quiet = self._wins = 0
        self._quiet_s = self._probe_s = 0.0
        self._next.clear()
        self._gap.clear()

    def may_probe(self, method: str, price_s: float) -> bool:
        """Whether a losing draft of `method` may be made now, `price_s` dearer than a plain round."""
        due = self._next.get(method, FIRST_PROBE)
        if self.quiet < due or self._probe_s + price_s > PROBE_SHARE * self._quiet_s:
            return False
        gap = self._gap.get(method, FIRST_PROBE)
        self._next[method] = self.quiet + gap
        self._gap[method] = min(2 * gap, LAST_PROBE)
        return True

    def plain(self, seconds: float) -> Change | None:
        """A round without a draft."""
        self.quiet += 1
        self._quiet_s += seconds
        if self.quiet % QUIET_ROUNDS == 0:
            self._wins = 0
            if not self.paused:
                self.paused = True
                return "paused"
        return None

    def drafted(self, seconds: float, extra_s: float, *, probe: bool, won: bool) -> Change | None:
        """A round with a draft.

        Args:
            extra_s: seconds beyond plain decoding of what it committed.
            probe: it was expected to lose.
        """
        if probe or self.paused:
            self._quiet_s += seconds
            self._probe_s += max(0.0, extra_s)
        self._wins += won
        if self.paused and self._wins >= WINS:
            self.paused = False
            self._drafts()
            return "resumed"
        if not self.paused and not probe:
            self._drafts()
        return None
