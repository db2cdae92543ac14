"""The target's cache and what its drafters hold of the same text, kept in step.

Whatever the target reads, drops or keeps for the next turn, every drafter learns of at once. One that cannot
follow costs its drafts, not the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from localspec.engine.backend.context import DecodeAborted
from localspec.engine.control import Control
from localspec.engine.drafters.base import Drafter, History, Ids, Tokens, common_prefix
from localspec.engine.events import Notice
from localspec.engine.target import Target
from localspec.errors import EngineError


class Caches:
    """The caches of one reply.

    Args:
        drafters: in order of preference.
        require: a drafter that fails ends the reply.
        say: takes what the user should know.
    """

    def __init__(
        self,
        target: Target,
        drafters: Sequence[Drafter],
        control: Control,
        say: Callable[[Notice], None],
        *,
        require: bool,
    ) -> None:
        self.drafters = list(drafters)
        """Those that still follow."""
        self.stable = 0
        """Tokens that the next turn's prompt will most likely repeat; `read` marks their end."""
        self._target = target
        self._control = control
        self._say = say
        self._require = require

    def keep(self, ids: Ids) -> int:
        """Cut the caches to what a text needs of them; returns the length kept."""
        target = self._target
        kept = common_prefix(target.ids[: target.n_past], ids[:-1])
        for drafter in self.drafters:
            kept = min(kept, drafter.reusable(ids, kept))
        kept = target.reusable_prefix(kept)
        target.truncate(kept)
        for drafter in self.drafters:
            drafter.rewind(kept)
        return kept

    def read(self, ids: Ids, start: int) -> Iterator[int]:
        """Decode a text from `start` to all but its last token; yields how far it came.

        Raises:
            DecodeAborted: the reply was cancelled.
        """
        target, last, stable = self._target, len(ids) - 1, self.stable
        while start < last:
            if self._control.cancelled:
                raise DecodeAborted
            end = min(start + target.prefill_chunk, stable if start < stable else last)
            self.decode(ids[start:end], 0)
            start = end
            if start == stable:
                target.mark_reusable()
            yield start

    def begin(self, history: History) -> None:
        """The target has read all of `history` but the newest token."""
        self._tell(lambda drafter: drafter.begin(history))

    def decode(self, tokens: Tokens, outputs: int) -> Any:
        """Let the target decode `tokens`; returns the logits of the last `outputs` of them."""
        start = self._target.n_past
        rows = self._target.decode(tokens, outputs)
        self._tell(lambda drafter: drafter.observe(tokens, start))
        return rows

    def commit(self, history: History, drafter: Drafter | None, accepted: int) -> None:
        """A round is over, decoded or not: the target loses every cell from the newest token on.

        Args:
            drafter: whose draft it was.
            accepted: tokens of that draft in `history`.
        """
        self._target.truncate(min(len(history) - 1, self._target.n_past))
        self._tell(lambda each: each.commit(history, accepted if each is drafter else 0))

    def rebuild(self, drafter: Drafter, history: History) -> None:
        """Reset a drafter, and read again what it needs of the text so far."""
        drafter.reset()
        text = history.ids.copy()
        for _ in self.read(text, self.keep(text)):
            pass
        self.begin(history)

    def drop(self, broken: Sequence[Drafter], failure: EngineError, *, tell: bool = True) -> None:
        """Go on without these drafters and say so; where drafters are required, end the reply instead.

        Raises:
            EngineError: `failure`.
        """
        if self._require:
            raise failure
        names = ", ".join(drafter.name for drafter in broken)
        self.drafters = [drafter for drafter in self.drafters if drafter not in broken]
        if tell:
            self._say(Notice("off", f"{names} failed: {failure.message}"))

    def _tell(self, what: Callable[[Drafter], None]) -> None:
        """Let every drafter know."""
        for drafter in list(self.drafters):
            try:
                what(drafter)
            except EngineError as failure:
                self.drop([drafter], failure)
