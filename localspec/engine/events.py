"""What a reply is made of: frozen events, in the order they happen.

A reply is an iterator of these. The TUI, batch, server, bench and verify consume the same stream and
nothing else flows between the engine and its faces. All of them pickle, because a reply may come from
a worker process.

Order: `Loading`* · `Prefill`+ · (`Token`* `Round` | `Notice` | `Text`)* · `Done`. A round's tokens come
before its `Round`. `Done` is always the last event, also after a cancel or an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from localspec.engine.stats import Summary

Channel = Literal["content", "reasoning"]
DoneReason = Literal["stop", "length", "context", "cancelled", "error"]
NoticeKind = Literal["paused", "resumed", "off", "reset", "alarm", "raised", "info"]


@dataclass(frozen=True, slots=True)
class Loading:
    """A model is being read."""

    what: str
    """What is loading, in words: `target SmolLM2-135M-Instruct`."""
    fraction: float | None
    """0…1, or None when unknown."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Progress over the prompt, in tokens."""

    done: int
    """Prompt tokens now in the cache, the reused ones included."""
    total: int
    reused: int
    """Prompt tokens that an earlier turn had left in the cache."""


@dataclass(frozen=True, slots=True)
class Token:
    """One committed token."""

    id: int
    text: str
    """Text this token released; empty while a stop string or half a character is held back."""
    channel: Channel
    from_draft: bool
    """True when a drafter proposed it and the target accepted it."""
    method: str
    """Drafter of the round: `off`, `draft`, `ngram`, …"""
    round: int
    """0-based number of the round within the reply."""
    logprob: float | None = None
    """Natural log-probability under the target's raw distribution, when asked for."""
    top: tuple[tuple[int, float], ...] = ()
    """(id, logprob) of the most likely tokens, when asked for."""
    piece: bytes = b""
    """The token's own bytes, whatever is held back of its text; when log-probabilities are asked for."""
    top_pieces: tuple[bytes, ...] = ()
    """The bytes of each token in `top`."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text that was held back and is now certain."""

    text: str
    channel: Channel


@dataclass(frozen=True, slots=True)
class Round:
    """One draft-verify-commit round. Counters stop at the token that ended the reply."""

    method: str
    drafted: int
    tested: int
    """Drafted tokens the target judged: a draft after the first rejection is not tested."""
    accepted: int
    rows: int
    """Rows of the target decode, padding included."""
    n_past: int
    """Committed cells of the target after the round."""
    draft_s: float
    verify_s: float
    other_s: float
    """Seconds of the round that were neither drafting nor the target's decode."""
    committed: int = 0
    """Tokens this round added to the reply."""
    ended: bool = False
    """The target ended the reply in this round, with a token that is none of the reply."""
    sequences: int = 1
    """Replies that had rows in the target's pass, this one included."""

    @property
    def wall_s(self) -> float:
        return self.draft_s + self.verify_s + self.other_s

    @property
    def gave(self) -> int:
        """Tokens the target gave for the round's price, the one that ended the reply included."""
        return self.committed + self.ended


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know: why speculation paused, resumed or is off; alarms."""

    kind: NoticeKind
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The end of the reply. `length` is max_tokens, `context` a full context."""

    reason: DoneReason
    summary: Summary
    error: str | None = None
    """One sentence, only with reason `error`."""


Event = Loading | Prefill | Token | Text | Round | Notice | Done
