"""Counts and clocks of a reply, observed round by round; every ratio names its denominator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Summary:
    """What a finished reply cost; picklable, printed by every face."""

    prompt_tokens: int
    reused_tokens: int
    """Prompt tokens found in the cache of an earlier turn."""
    completion_tokens: int
    rounds: int
    drafted: int
    tested: int
    accepted: int
    prefill_s: float
    decode_s: float
    """Wall time of all rounds; the consumer's time between events is not in it."""
    draft_s: float
    verify_s: float
    first_token_s: float | None
    """From the call to the first token, in seconds."""
    rows: int
    tested_at: tuple[int, ...]
    """tested_at[j]: how often the draft at 0-based position j was judged."""
    accepted_at: tuple[int, ...]
    accepted_lengths: tuple[int, ...]
    """accepted_lengths[n]: rounds with a draft in which exactly n drafted tokens were accepted."""
    methods: tuple[str, ...] = ()
    """Drafters that proposed at least once, in order of first use."""
    plain_tokens: int = 0
    """Tokens committed by rounds without a draft, and the seconds they took."""
    plain_s: float = 0.0
    paused_at_token: int | None = None
    """Reply length at which the policy first paused speculation."""
    speedup: float | None = None
    """Measured speculative rate / measured plain rate at the same context, None while unknown."""

    @property
    def accept_per_tested(self) -> float | None:
        return self.accepted / self.tested if self.tested else None

    @property
    def accept_per_drafted(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_round(self) -> float | None:
        return self.completion_tokens / self.rounds if self.rounds else None

    @property
    def decode_tps(self) -> float | None:
        return self.completion_tokens / self.decode_s if self.decode_s > 0 else None

    @property
    def prefill_tps(self) -> float | None:
        fresh = self.prompt_tokens - self.reused_tokens
        return fresh / self.prefill_s if self.prefill_s > 0 and fresh > 0 else None

    @property
    def draft_share(self) -> float | None:
        """Part of the decode time spent drafting."""
        return self.draft_s / self.decode_s if self.decode_s > 0 else None
