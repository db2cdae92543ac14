"""What the loop asks of the target's cache."""

from __future__ import annotations

from typing import Any, Protocol

from localspec.engine.drafters.base import Ids, Tokens


class Target(Protocol):
    """The target's sequence; `backend.Sequence` is one."""

    n_past: int
    n_ctx: int
    n_vocab: int
    ids: Ids
    waited_s: float
    """Seconds of the last decode in which other replies were awaited."""

    @property
    def sequences(self) -> int:
        """Replies that had rows in the last decode."""

    @property
    def prefill_chunk(self) -> int:
        """Prompt tokens to read in one decode now."""

    @property
    def most_rows(self) -> int:
        """Rows that a verification may have now."""

    @property
    def undo_limit(self) -> int | None: ...
    def decode(self, tokens: Tokens, outputs: int) -> Any: ...
    def guard(self) -> None: ...
    def truncate(self, n: int) -> int: ...
    def reusable_prefix(self, n: int) -> int: ...
    def mark_reusable(self) -> None: ...
