"""Counts of a reply: curves, histogram and every ratio with its denominator."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.events import Round
from localspec.engine.stats import Stats, tokens_per_round


def observed(*rounds: tuple[int, int, int]) -> Stats:
    """Rounds of (drafted, tested, accepted), one millisecond of each kind of time."""
    stats = Stats()
    for drafted, tested, accepted in rounds:
        method = "draft" if drafted else "off"
        rows = drafted + 1
        stats.observe(Round(method, drafted, tested, accepted, rows, 0, 1e-3, 2e-3, 3e-3, accepted + 1))
    return stats


def test_both_denominators_curve_and_histogram_of_a_known_pattern() -> None:
    """Known faults 65, 66: right, right, wrong, never judged; and drafts of unequal lengths."""
    summary = observed((4, 3, 2), (4, 4, 4), (2, 1, 0), (0, 0, 0)).summary()
    assert (summary.drafted, summary.tested, summary.accepted) == (10, 8, 6)
    assert summary.accept_per_tested == 6 / 8
    assert summary.accept_per_drafted == 6 / 10
    assert summary.tested_at == (3, 2, 2, 1)
    assert summary.accepted_at == (2, 2, 1, 1)
    assert summary.accepted_lengths == (1, 0, 1, 0, 1), "rounds without a draft are in no histogram"
    assert summary.tokens_per_round == 10 / 4
    assert (summary.plain_tokens, summary.methods) == (1, ("draft",))
    assert summary.draft_share == summary.draft_s / summary.decode_s
    assert abs(summary.decode_s - 4 * 6e-3) < 1e-12 and abs(summary.plain_s - 6e-3) < 1e-12


def test_the_token_that_ends_a_reply_was_given_by_a_round_but_is_none_of_the_reply() -> None:
    stats = observed((3, 3, 3))
    stats.observe(Round("off", 0, 0, 0, 1, 0, 0.0, 1e-3, 0.0, 0, ended=True))
    ended, cut = stats.summary(), observed((0, 0, 0), (2, 1, 0)).summary()
    assert (ended.completion_tokens, ended.rounds, ended.tokens_per_round) == (4, 2, 5 / 2)
    assert (cut.completion_tokens, cut.rounds, cut.tokens_per_round) == (2, 2, 1.0)
    assert tokens_per_round([ended, cut]) == 7 / 4
    assert tokens_per_round([]) is None


def test_nothing_is_made_up_where_nothing_was_measured() -> None:
    summary = Stats().summary()
    ratios = (
        summary.accept_per_tested, summary.accept_per_drafted, summary.tokens_per_round, summary.decode_tps,
        summary.prefill_tps, summary.draft_share, summary.speedup, summary.first_token_s,
    )  # fmt: skip
    assert ratios == (None,) * 8


@given(st.lists(st.lists(st.booleans(), max_size=9), max_size=30))
def test_the_sums_agree_whatever_happened(patterns: list[list[bool]]) -> None:
    rounds = []
    for pattern in patterns:
        accepted = pattern.index(False) if False in pattern else len(pattern)
        rounds.append((len(pattern), min(accepted + 1, len(pattern)), accepted))
    summary = observed(*rounds).summary()
    assert sum(summary.tested_at) == summary.tested <= summary.drafted
    assert sum(summary.accepted_at) == summary.accepted <= summary.tested
    assert sum(n * count for n, count in enumerate(summary.accepted_lengths)) == summary.accepted
    assert sum(summary.accepted_lengths) == sum(bool(pattern) for pattern in patterns)
    assert list(summary.tested_at) == sorted(summary.tested_at, reverse=True)
    assert summary.completion_tokens == summary.accepted + summary.rounds
    for at, judged in enumerate(summary.tested_at):
        assert judged == sum(tested > at for _, tested, _ in rounds)
