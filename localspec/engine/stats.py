"""Counts and clocks of a reply, observed round by round; every ratio names its denominator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.engine.events import Round


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
    ended: bool = False
    """The target ended the reply itself; that token cost a round, but it is no token of the reply."""
    shared_rounds: int = 0
    """Rounds whose pass of the target also served other replies."""
    resets: tuple[str, ...] = ()
    """Drafters that were reset because their state was spoiled."""
    given_up: tuple[str, ...] = ()
    """Drafters that a reset did not help."""
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
        return tokens_per_round([self])

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


def tokens_per_round(summaries: Sequence[Summary]) -> float | None:
    """Tokens that the target gave per round over these replies; what ended a reply cost a round, too."""
    rounds = sum(summary.rounds for summary in summaries)
    return sum(s.completion_tokens + s.ended for s in summaries) / rounds if rounds else None


@dataclass(slots=True)
class Stats:
    """Running counts of one reply. Faces read `summary()`; whoever reads the events calls `observe`."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    first_token_s: float | None = None
    rows: int = 0
    plain_tokens: int = 0
    plain_s: float = 0.0
    paused_at_token: int | None = None
    ended: bool = False
    shared_rounds: int = 0
    tested_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    accepted_lengths: list[int] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    resets: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)

    def observe(self, r: Round) -> None:
        """Count one round."""
        self.rounds += 1
        self.completion_tokens += r.committed
        self.drafted += r.drafted
        self.tested += r.tested
        self.accepted += r.accepted
        self.rows += r.rows
        self.decode_s += r.wall_s
        self.draft_s += r.draft_s
        self.verify_s += r.verify_s
        self.shared_rounds += r.sequences > 1
        self.ended = self.ended or r.ended
        if not r.drafted:
            self.plain_tokens += r.committed
            self.plain_s += r.wall_s
            return
        if r.method not in self.methods:
            self.methods.append(r.method)
        add_at_each(self.tested_at, r.tested)
        add_at_each(self.accepted_at, r.accepted)
        _grow(self.accepted_lengths, r.accepted + 1)
        self.accepted_lengths[r.accepted] += 1

    def summary(self, speedup: float | None = None) -> Summary:
        """The counts so far, frozen."""
        return Summary(
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused_tokens,
            completion_tokens=self.completion_tokens,
            rounds=self.rounds,
            drafted=self.drafted,
            tested=self.tested,
            accepted=self.accepted,
            prefill_s=self.prefill_s,
            decode_s=self.decode_s,
            draft_s=self.draft_s,
            verify_s=self.verify_s,
            first_token_s=self.first_token_s,
            rows=self.rows,
            tested_at=tuple(self.tested_at),
            accepted_at=tuple(self.accepted_at),
            accepted_lengths=tuple(self.accepted_lengths),
            methods=tuple(self.methods),
            plain_tokens=self.plain_tokens,
            plain_s=self.plain_s,
            paused_at_token=self.paused_at_token,
            ended=self.ended,
            shared_rounds=self.shared_rounds,
            resets=tuple(self.resets),
            given_up=tuple(self.given_up),
            speedup=speedup,
        )


def _grow(counts: list[int], n: int) -> None:
    counts.extend([0] * (n - len(counts)))


def add_at_each(counts: list[int], n: int) -> None:
    """Positions 0 … n-1 happened once more."""
    _grow(counts, n)
    for j in range(n):
        counts[j] += 1
