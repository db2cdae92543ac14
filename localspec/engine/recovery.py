"""What becomes of a drafter whose state is spoiled: it is reset once, and off when that did not help.

A drafter that is merely weak is the policy's business. This is about one that proposes nothing but nonsense:
nothing it drafts is accepted any longer, or its probabilities are no numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.engine.events import Notice
from localspec.errors import EngineError

NOTHING_ACCEPTED = "had all its drafts rejected"


class DraftFaultError(EngineError):
    """A drafter's state is spoiled."""

    def __init__(self, method: str, what: str) -> None:
        super().__init__(f"the `{method}` drafter {what}")
        self.method = method
        self.what = what


@dataclass(slots=True)
class Health:
    """Resets of the drafters within one conversation; a session keeps one per slot."""

    reset: set[str] = field(default_factory=set)
    off: dict[str, str] = field(default_factory=dict)
    """Method → why it is off for this conversation."""
    fault: DraftFaultError | None = None
    """Seen, and not yet answered; the drafter stays spoiled when another conversation begins."""
    _conversation: str | None = None

    def begin(self, conversation: str | None, *, continued: bool) -> None:
        """A reply begins.

        Args:
            conversation: its name; None = unknown.
            continued: its prompt begins with all that the slot holds.
        """
        same = continued if conversation is None else conversation == self._conversation
        if not same:
            self.reset.clear()
            self.off.clear()
        self._conversation = conversation

    def failed(self, fault: DraftFaultError) -> Notice:
        """Count a fault; the notice says what is done about it: `reset`, or `off`."""
        method = fault.method
        if method not in self.reset:
            self.reset.add(method)
            return Notice(
                "reset", f"the `{method}` drafter {fault.what}; it starts over from the text so far"
            )
        self.off[method] = f"the `{method}` drafter {fault.what} again, also after a reset: off in this chat"
        return Notice("off", self.off[method])
