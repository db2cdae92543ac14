"""The policy on scripted rounds: pure, deterministic, never paying more than it may for learning."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from localspec.engine.acceptance import Acceptance, bucket_of
from localspec.engine.adapt import AdaptivePolicy, Start
from localspec.engine.costs import Average, DraftCosts, VerifyCosts
from localspec.engine.drafters.base import Draft, DraftSampling, History, Ids, More, Tokens
from localspec.engine.events import Notice
from localspec.engine.pausing import PROBE_SHARE, QUIET_ROUNDS
from localspec.engine.policy import DraftRequest, FixedPolicy, Outcome
from tests.engine.harness import ids

CPU = {1: 0.010, 2: 0.017, 4: 0.026, 8: 0.045, 16: 0.070}
"""Seconds by rows where every row costs (two cores)."""
GPU = {1: 0.020, 2: 0.0202, 4: 0.0206, 8: 0.0215, 16: 0.034}
"""Seconds by rows where up to eight are nearly free."""


def seconds(table: dict[int, float], rows: int, growth: float = 0.0, n_past: int = 0) -> float:
    costs = VerifyCosts()
    for r, s in table.items():
        costs.observe(r, 0, s)
    return costs.seconds(rows, 0) * (1 + growth * n_past)


@dataclass
class Drafter:
    """Right with a given probability per position, by a fixed pattern; takes a given time per token."""

    name: str
    accepts: list[int]
    """Accepted tokens of the draft of each round, in turn."""
    confidence: float
    token_s: float = 0.0
    free: bool = False
    samples: bool = False
    rounds: int = 0
    proposed: list[int] = field(default_factory=list)

    def reusable(self, prompt: Ids, n: int) -> int:
        return n

    def rewind(self, n: int) -> None: ...
    def reset(self) -> None: ...
    def begin(self, history: History) -> None: ...
    def observe(self, tokens: Tokens, start: int) -> None: ...
    def commit(self, history: History, accepted: int) -> None: ...
    def close(self) -> None: ...

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        n = 0
        while n < k and more(n, self.confidence):
            n += 1
        self.proposed.append(n)
        right = self.accepts[self.rounds % len(self.accepts)]
        # Token 7 is what the target would say; 0 is wrong.
        return Draft([7 if i < right else 0 for i in range(n)], [self.confidence] * n,
                     draft_s=n * self.token_s)  # fmt: skip


@dataclass
class Run:
    """Plays rounds against a cost table and adds up time and tokens."""

    policy: AdaptivePolicy | FixedPolicy
    drafters: list[Drafter]
    table: dict[int, float]
    growth: float = 0.0
    tokens: int = 0
    time: float = 0.0
    paused_time: float = 0.0
    paused_draft_time: float = 0.0
    notices: list[Notice] = field(default_factory=list)
    plain_rounds: int = 0
    noise: float = 0.0
    """Relative, of each verification."""
    rows: list[int] = field(default_factory=list)
    """Of each round's verification."""

    def play(self, tokens: int, limit: int = 16) -> Run:
        history = History(ids([1, 2, 3]), 8192)
        end = self.tokens + tokens
        while self.tokens < end:
            for drafter in self.drafters:
                drafter.rounds += 1
            request = DraftRequest(self.drafters, history, limit, self.tokens)
            name, draft = self.policy.draft(request)
            drafted = draft.tokens if draft else []
            right = next((i for i, id in enumerate(drafted) if id != 7), len(drafted))
            verify = seconds(self.table, len(drafted) + 1, self.growth, self.tokens)
            verify *= 1 + self.noise * math.sin(7.0 * len(self.rows))
            self.rows.append(len(drafted) + 1)
            draft_s = draft.draft_s if draft else 0.0
            committed = tuple([7] * (right + 1))
            was_paused = self.policy.paused
            if was_paused:
                self.paused_time += verify + draft_s
                self.paused_draft_time += draft_s + (verify - seconds(self.table, 1) if drafted else 0.0)
            self.notices += self.policy.observe(
                Outcome(
                    method=name, confidences=tuple(draft.confidences) if draft else (),
                    tested=min(right + 1, len(drafted)), accepted=right, committed=committed,
                    rows=len(drafted) + 1, n_past=self.tokens, draft_s=draft_s, catchup_s=0.0,
                    catchup_rows=1 if drafted else 0, verify_s=verify, other_s=0.0,
                )
            )  # fmt: skip
            self.tokens += len(committed)
            self.time += verify + draft_s
            self.plain_rounds += not drafted
        return self

    @property
    def rate(self) -> float:
        return self.tokens / self.time


def adaptive(table: dict[int, float], start: Start | None = None) -> AdaptivePolicy:
    costs = VerifyCosts()
    for rows, s in table.items():
        costs.observe(rows, 0, s)
    return AdaptivePolicy(costs, start=start)


def best_fixed(make: type[list[Drafter]] | object, table: dict[int, float], tokens: int = 2000) -> float:
    rates = []
    for k in range(17):
        drafters: list[Drafter] = make()  # type: ignore[operator]
        rates.append(Run(FixedPolicy(k), drafters, table).play(tokens).rate)
    return max(rates)


PATTERNS = {
    "good": [8, 6, 9, 4, 12, 7],
    "fair": [2, 0, 3, 1, 4, 0, 2],
    "poor": [0, 0, 1, 0, 0, 0, 2, 0],
    "hopeless": [0],
}


@pytest.mark.parametrize("table", [CPU, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("kind", ["ngram", "draft"])
def test_it_keeps_up_with_the_best_fixed_length(table: dict[int, float], pattern: str, kind: str) -> None:
    """Whatever the acceptance, 0.97 of the best fixed k (k = 0 included) once 200 tokens were seen."""

    def drafters() -> list[Drafter]:
        confidence = {"good": 0.9, "fair": 0.6, "poor": 0.3, "hopeless": 0.3}[pattern]
        free = kind == "ngram"
        return [Drafter(kind, PATTERNS[pattern], confidence, 0.0 if free else 0.15 * table[1], free)]

    run = Run(adaptive(table), drafters(), table).play(200)
    run.tokens = 0
    run.time = 0.0
    run.play(3000)
    assert run.rate >= 0.97 * best_fixed(drafters, table), pattern


@pytest.mark.parametrize("free", [True, False])
def test_a_hopeless_draft_pauses_and_costs_next_to_nothing(free: bool) -> None:
    """After the first 64 tokens a losing drafter may cost 3 %, and probes 2 % of the paused time."""
    drafter = Drafter("draft", [0], 0.5, 0.004, free)
    run = Run(adaptive(CPU), [drafter], CPU).play(64)
    before = run.time
    run.play(600)
    plain = 600 * CPU[1]
    assert plain / (run.time - before) >= 0.97
    assert next(n.kind for n in run.notices) == "paused"
    assert run.paused_draft_time <= 1.1 * PROBE_SHARE * run.paused_time


def test_pausing_says_by_how_much_it_loses() -> None:
    run = Run(adaptive(CPU), [Drafter("draft", [0], 0.5, 0.004)], CPU).play(200)
    assert "slower than plain here (0." in run.notices[0].reason
    nothing = Run(adaptive(CPU), [Drafter("ngram", [0], 0.5, 0.0, True)], CPU)
    nothing.drafters[0].propose = lambda *_: Draft([], [])  # type: ignore[method-assign]
    nothing.play(QUIET_ROUNDS + 5)
    assert nothing.notices[0].reason == "nothing here to copy from"


def test_it_resumes_when_the_text_turns() -> None:
    """A free drafter is watched for nothing while paused, so a copy is noticed at once."""
    drafter = Drafter("ngram", [0], 0.8, 0.0, True)
    run = Run(adaptive(CPU), [drafter], CPU).play(200)
    assert run.policy.paused
    drafter.accepts = [10]
    run.play(200)
    assert not run.policy.paused
    assert [n.kind for n in run.notices] == ["paused", "resumed"]
    paid = Drafter("draft", [0], 0.8, 0.0005)
    slow = Run(adaptive(GPU), [paid], GPU).play(300)
    paid.accepts = [10]
    slow.play(1500)
    assert not slow.policy.paused, "probes find out for a drafter that costs time"


def test_free_rows_are_filled_and_dear_ones_are_not() -> None:
    """The same drafter is used longer where rows are nearly free."""

    def mean_k(table: dict[int, float]) -> float:
        drafter = Drafter("draft", PATTERNS["fair"], 0.6, 0.02 * table[1])
        run = Run(adaptive(table), [drafter], table).play(1500)
        return sum(drafter.proposed) / len(run.rows)

    assert mean_k(GPU) > 1.5 * mean_k(CPU)


def test_the_speed_up_is_measured_and_follows_the_context() -> None:
    """Unknown until 32 plain tokens were measured; then it moves when plain decoding gets dearer."""
    policy = adaptive(GPU)
    run = Run(policy, [Drafter("draft", [1], 0.9, 0.002)], GPU, growth=1 / 2000)
    run.play(200)
    assert policy.speedup() is None, "nothing plain was measured yet"
    run.play(2500)
    early = policy.speedup()
    assert early == pytest.approx(2 * 0.020 / (0.0206 + 0.004), rel=0.2)
    assert run.plain_rounds < 0.04 * run.tokens, "the baseline is measured in bursts"


def test_a_fixed_length_never_pauses() -> None:
    run = Run(FixedPolicy(4), [Drafter("draft", [0], 0.5, 0.004)], CPU).play(100)
    assert run.plain_rounds == 0 and not run.notices and run.policy.speedup() is None


def test_a_tuned_length_is_where_it_begins() -> None:
    """From the first round on, although the prior would not draft; kept while nothing is clearly better."""
    drafter = Drafter("draft", [7, 7, 6, 7], 0.3, 0.001)
    run = Run(adaptive(CPU, Start("draft", 7)), [drafter], CPU).play(600)
    assert set(drafter.proposed[:10]) == {7}
    assert drafter.proposed.count(7) > 0.8 * len(drafter.proposed)
    assert run.plain_rounds < 0.15 * len(run.rows)


@pytest.mark.parametrize("free", [True, False])
def test_a_tuned_length_gives_way_to_what_is_clearly_better(free: bool) -> None:
    drafter = Drafter("draft", [1, 0, 1, 2, 1], 0.7, 0.0 if free else 0.001, free)
    run = Run(adaptive(STEPS, Start("draft", 15)), [drafter], STEPS).play(600)
    assert run.rows[0] == 16
    run.rows.clear()
    run.play(600)
    assert sum(rows <= 4 for rows in run.rows) > 0.9 * len(run.rows)


def test_a_tuned_drafter_that_loses_here_is_paused() -> None:
    run = Run(adaptive(CPU, Start("draft", 3)), [Drafter("draft", [0], 0.9, 0.004)], CPU).play(600)
    assert run.policy.paused and [n.kind for n in run.notices] == ["paused"]
    before = run.time
    run.play(600)
    assert 600 * CPU[1] / (run.time - before) > 0.97


def test_other_drafters_than_the_tuned_one_get_no_benefit_of_the_doubt() -> None:
    """It was measured to be better without them; they are probed like any that loses."""
    tuned, other = Drafter("ngram", [0], 0.0, 0.0, True), Drafter("draft", [0], 0.9, 0.004)
    tuned.propose = lambda *_: Draft([], [])  # type: ignore[method-assign]
    Run(adaptive(CPU, Start("ngram", 7)), [tuned, other], CPU).play(200)
    assert sum(map(bool, other.proposed)) <= 2


@pytest.mark.parametrize("free", [True, False])
def test_plain_as_the_tuned_setting_starts_paused_and_is_left_when_probes_win(free: bool) -> None:
    drafter = Drafter("draft", [12], 0.97, 0.0 if free else 0.0002, free)
    policy = adaptive(GPU, Start("off"))
    run = Run(policy, [drafter], GPU)
    assert policy.paused
    run.play(16)
    assert run.plain_rounds == 16
    run.play(2500)
    assert not policy.paused and [n.kind for n in run.notices] == ["resumed"]
    policy.begin()
    assert not policy.paused, "the next reply starts with what was learned"


def test_decisions_replay_exactly() -> None:
    """No clock and no chance inside: the same rounds give the same drafts."""
    first = Drafter("draft", PATTERNS["fair"], 0.6, 0.001)
    second = Drafter("draft", PATTERNS["fair"], 0.6, 0.001)
    Run(adaptive(CPU), [first], CPU).play(800)
    Run(adaptive(CPU), [second], CPU).play(800)
    assert first.proposed == second.proposed


def test_costs_interpolate_between_measured_rows_and_grow_with_the_context() -> None:
    costs = VerifyCosts()
    assert costs.seconds(4, 0) == 0.0
    for rows, s in ((1, 0.01), (4, 0.02), (8, 0.04)):
        costs.observe(rows, 0, s)
    assert costs.seconds(4, 0) == 0.02
    assert costs.seconds(6, 0) == pytest.approx(0.03)
    assert 0.04 < costs.seconds(16, 0) <= 0.08
    for n in range(0, 4000, 20):
        costs.observe(1, n, 0.01 * (1 + n / 4000))
    assert costs.seconds(1, 4000) == pytest.approx(0.02, rel=0.1)
    assert costs.seconds(8, 4000) == pytest.approx(0.08, rel=0.15), "all row counts grow alike"


def test_a_poisoned_price_is_found_out() -> None:
    """A row count that was measured while the machine was busy is looked at again and used again."""
    policy = adaptive(GPU)
    for rows in (2, 4, 8, 16):
        policy.verify.buckets[rows].seconds.value = 50 * GPU[1]
    run = Run(policy, [Drafter("ngram", [6], 0.9, 0.0, True)], GPU).play(2500)
    start, tokens = run.time, run.tokens
    run.play(500)
    assert (run.tokens - tokens) / (run.time - start) > 2 / GPU[1]


def test_one_hiccup_does_not_move_an_average() -> None:
    average = Average()
    for _ in range(50):
        average.add(1.0)
    average.add(100.0)
    assert average.value < 1.5


def test_acceptance_starts_at_its_prior_and_learns() -> None:
    acceptance = Acceptance((0.2, 0.8))
    assert acceptance.chance(1, 0) == pytest.approx(0.8)
    for _ in range(60):
        acceptance.observe(1, 0, False)
    assert acceptance.chance(1, 3) < 0.15
    assert acceptance.chance(0, 3) < 0.05, "where sure tokens fail, unsure ones are worth no more"


def test_acceptance_has_a_shape_over_positions() -> None:
    """The same confidence everywhere, but position 2 always fails: the correction learns where."""
    acceptance = Acceptance((0.8,))
    for _ in range(80):
        acceptance.observe(0, 0, True)
        acceptance.observe(0, 1, True)
        acceptance.observe(0, 2, False)
    assert acceptance.chance(0, 0) > 0.9 and acceptance.chance(0, 1) > 0.9
    assert acceptance.chance(0, 2) < 0.15 and acceptance.usual(3)[2] < 0.15
    assert acceptance.chance(0, 6) < 0.2, "positions never reached are taken to be like the last one"


def test_confidence_that_says_nothing_is_not_believed() -> None:
    """All buckets go to one acceptance, hardly seen ones too; a drafter that knows keeps its own."""
    blind, knowing = Acceptance(), Acceptance()
    for i in range(600):
        blind.observe(i % 11, 0, i * 7 % 10 < 6)
        knowing.observe(1 + 9 * (i % 2), 0, i % 2 == 1)
    assert blind.chance(11, 0) == pytest.approx(blind.chance(0, 0), abs=0.12)
    assert 0.5 < blind.chance(5, 0) < 0.7
    assert knowing.chance(11, 0) > 0.9 and knowing.chance(0, 0) < 0.1


def test_a_confidence_that_is_no_number_is_no_confidence() -> None:
    assert [bucket_of(c) for c in (math.nan, math.inf, -1.0, 0.0, 1.0, 2.0)] == [0, 0, 0, 0, 11, 11]


def test_evidence_fades_when_the_text_has_turned() -> None:
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.observe(7, 0, False)
    before = acceptance.usual(1)[0]
    acceptance.fade(0.1)
    for _ in range(4):
        acceptance.observe(7, 0, True)
    assert before < 0.05 and acceptance.usual(1)[0] > 0.3


def test_noise_makes_no_bucket_and_a_larger_row_count_is_never_cheaper() -> None:
    """Rows up to the edge of a bucket have the edge's price; steps beyond noise stay; dips are filled in."""
    costs = VerifyCosts()
    for rows, s in (
        (1, 0.0200),
        (2, 0.0203),
        (4, 0.0206),
        (5, 0.026),
        (8, 0.0255),
        (9, 0.05),
        (12, 0.056),
        (16, 0.054),
    ):
        costs.observe(rows, 0, s)
    prices = [costs.seconds(rows, 0) for rows in range(1, 17)]
    assert prices[:4] == [0.0206] * 4
    assert prices[4:8] == [0.0255] * 4
    assert prices[8] == 0.05 and prices[11:] == [0.054] * 5
    assert prices == sorted(prices)


@pytest.mark.parametrize("block", [True, False])
def test_the_shape_of_a_drafters_price_is_measured(block: bool) -> None:
    """A block costs the same whatever its length; token by token costs by the token."""
    costs = DraftCosts()
    assert costs.seconds(4) == 0.0
    costs.observe(4, 0.008, 1, 0.0)
    assert costs.seconds(2) == pytest.approx(0.004), "by the token until the length varied"
    for i in range(60):
        n = 1 + i * 7 % 8
        costs.observe(n, 0.008 if block else 0.002 * n, 1, 0.0)
    assert costs.seconds(1) == pytest.approx(0.008 if block else 0.002, rel=0.1)
    assert costs.seconds(16) == pytest.approx(0.008 if block else 0.032, rel=0.1)
    assert costs.seconds(0) == 0.0


def test_a_block_is_filled_where_its_tokens_cost_nothing_more() -> None:
    """Same chances, same price of four tokens: a block drafts on where single tokens do not pay."""

    def mean_k(block: bool) -> float:
        class Priced(Drafter):
            def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
                draft = super().propose(history, k, more, sampling)
                draft.draft_s = 0.008 if block else 0.002 * len(draft)
                return draft

        drafter = Priced("draft", [2, 5, 0, 3, 7, 1], 0.7)
        Run(adaptive(GPU), [drafter], GPU).play(2000)
        return sum(drafter.proposed[-200:]) / 200

    assert mean_k(block=True) > 1.3 * mean_k(block=False)


STEPS = {1: 0.0200, 2: 0.0205, 3: 0.0205, 4: 0.0206, 5: 0.0252, 6: 0.0253, 7: 0.0254, 8: 0.0254,
         9: 0.0420, 12: 0.0422, 16: 0.0424}  # fmt: skip
"""Seconds by rows of a GPU whose kernels take 4, 8 and 16 rows at one price each."""


@pytest.mark.parametrize("free", [True, False])
def test_drafts_end_at_the_edge_of_a_bucket(free: bool) -> None:
    """Rows up to the edge are free, so nearly all drafts fill 4, 8 or 16 of them, despite noise."""
    drafter = Drafter("draft", [1, 3, 0, 5, 2, 2, 4], 0.7, 0.0 if free else 0.0001, free)
    run = Run(adaptive(STEPS), [drafter], STEPS, noise=0.02)
    run.play(300)
    run.rows.clear()
    run.play(1500)
    drafted = [rows for rows in run.rows if rows > 1]
    assert sum(rows in (4, 8, 16) for rows in drafted) > 0.95 * len(drafted)
    assert len(drafted) > 100


def test_a_step_is_taken_only_where_what_follows_pays_for_it() -> None:
    """A drafter that is right four times in a row is drafted beyond the first edge, a weaker one is not."""

    def usual_rows(pattern: list[int]) -> int:
        drafter = Drafter("ngram", pattern, 0.8, free=True)
        run = Run(adaptive(STEPS), [drafter], STEPS).play(1500)
        return max(set(run.rows), key=run.rows[-300:].count)

    assert usual_rows([3, 2, 3, 1]) == 4
    assert usual_rows([7, 6, 7, 5]) == 8
