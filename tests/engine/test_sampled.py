"""Sampled replies through the real loop follow the exact joint distribution of the target's chain.

Three tokens over an 8-token vocabulary, fixed seeds, against probabilities computed row by row in a fresh
context. Confidence floor, grammar, masked ids and penalties are on, because each of them has biased some
engine's output.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import localspec.engine.speculative as loop_module
from localspec.engine.backend.samplers import Candidates, native_samplers
from localspec.engine.drafters.base import Draft
from localspec.engine.drafters.model import ModelDrafter
from localspec.engine.sampling import Distribution, Sampler
from localspec.engine.settings import SamplingSettings
from tests.engine.harness import Bench, exact_context, ids, model, patched

TARGET, DRAFT = "syn-8", "syn-8-near"
PROMPT = (1, 4, 2)
LENGTH = 3
REPLIES = 1200
WARM = SamplingSettings(temperature=0.9, top_k=6, top_p=0.97, min_p=0.0)
CONSTRAINED = replace(WARM, grammar='root ::= ("a" | "b" | "c" | "d")*')
PENALISED = replace(
    WARM, repeat_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, logit_bias=((3, 0.5),)
)


def joint(settings: SamplingSettings) -> dict[tuple[int, ...], float]:
    """Probability of every reply of `LENGTH` tokens."""
    n = model(TARGET).n_vocab
    out: dict[tuple[int, ...], float] = {}
    for head in itertools.product(range(n), repeat=LENGTH - 1):
        probability, rows = 1.0, []
        for at in range(LENGTH):
            rows.append(chain_distribution(settings, head[:at]))
            if at < LENGTH - 1:
                probability *= rows[-1].of(head[at])
            if probability == 0.0:
                break
        if probability > 0.0:
            for id, p in zip(rows[-1].ids.tolist(), rows[-1].p.tolist(), strict=True):
                out[(*head, id)] = probability * p
    assert sum(out.values()) == pytest.approx(1.0)
    return out


_rows: dict[tuple[int, ...], Any] = {}


def chain_distribution(settings: SamplingSettings, reply: tuple[int, ...]) -> Distribution:
    if reply not in _rows:
        context = exact_context(TARGET, k_max=0)
        cells = context.sequence()
        for id in (*PROMPT, *reply):
            row = cells.decode(ids([id]), 1)[0].copy()
        _rows[reply] = row
        context.close()
    vocabulary = model(TARGET).vocabulary
    native = native_samplers(settings, vocabulary, 64, 0, Candidates(vocabulary.n_vocab))
    sampler = Sampler(settings, native, ids([*PROMPT, *reply]))
    if native.grammar is not None:
        for id in reply:
            native.grammar.accept(id)
    try:
        return sampler.distribution(_rows[reply])
    finally:
        sampler.close()


def sampled(
    settings: SamplingSettings, *, rejection: bool, replies: int = REPLIES, p_min: float = 0.0
) -> tuple[Counter[tuple[int, ...]], int, int]:
    """Replies by count, and how many drafted tokens were tested and accepted."""
    counts: Counter[tuple[int, ...]] = Counter()
    tested = accepted = 0
    with Bench(TARGET, n_ctx=64, k_max=4, n_batch=16).with_draft_model(DRAFT, masked=[7]) as bench:
        for seed in range(replies):
            result = bench.reply(
                PROMPT, k=2, max_tokens=LENGTH, sampling=settings, seed=seed, rejection=rejection, p_min=p_min
            )
            assert result.done.reason == "length", result.done.error
            counts[tuple(result.ids)] += 1
            tested += result.done.summary.tested
            accepted += result.done.summary.accepted
    return counts, tested, accepted


def p_value(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Pearson's chi-square, cells with fewer than 5 expected pooled (Wilson-Hilferty approximation)."""
    total = sum(counts.values())
    assert set(counts) <= set(expected), "an impossible reply was sampled"
    big = {key: total * p for key, p in expected.items() if total * p >= 5}
    cells = [(counts[key], e) for key, e in big.items()]
    cells.append((total - sum(n for n, _ in cells), total - sum(e for _, e in cells)))
    statistic = sum((n - e) ** 2 / e for n, e in cells if e > 0)
    degrees = len(cells) - 1
    z = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / math.sqrt(2 / (9 * degrees))
    return 1 - NormalDist().cdf(z)


@pytest.mark.parametrize("rejection", [False, True], ids=["match", "rejection"])
@pytest.mark.parametrize(
    ("settings", "p_min"),
    [(WARM, 0.0), (WARM, 0.45), (PENALISED, 0.3), (CONSTRAINED, 0.3)],
    ids=["truncated", "floor", "penalised", "grammar"],
)
def test_replies_follow_the_joint_distribution(
    settings: SamplingSettings, p_min: float, rejection: bool, request: pytest.FixtureRequest
) -> None:
    """Known fault 45: the q used is the q drawn from, and stop rules never drop a drawn token."""
    replies = 10_000 if request.config.getoption("--soak") else REPLIES
    counts, tested, accepted = sampled(settings, rejection=rejection, p_min=p_min, replies=replies)
    assert p_value(counts, joint(settings)) > 0.001
    assert accepted >= 0.2 * tested and tested - accepted >= 0.2 * tested, (tested, accepted)


@pytest.mark.parametrize("k", [0, 1, 4, 8])
def test_a_seed_means_one_text_for_every_draft_length(k: int) -> None:
    """Known fault 43: in match mode a seeded text depends on no draft length and no method."""
    settings = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    with Bench(n_ctx=128).with_draft_model("syn-near") as bench:
        texts = [bench.reply([5, 9, 20], k=k, max_tokens=40, sampling=settings, seed=s).ids for s in (1, 2)]
    with Bench(n_ctx=128) as bench:
        plain = [bench.reply([5, 9, 20], max_tokens=40, sampling=settings, seed=s).ids for s in (1, 2)]
    assert texts == plain
    assert plain[0] != plain[1]


def test_temperature_zero_is_the_limit_of_small_temperatures() -> None:
    """Known fault 7: greedy decoding and a tiny temperature give the same text, and floors still draft."""
    tiny = SamplingSettings(temperature=1e-6, top_k=0, top_p=1.0, min_p=0.0)
    with Bench(n_ctx=128).with_draft_model("syn") as bench:
        greedy = bench.reply([5, 9, 20], k=4, max_tokens=40, p_min=0.01)
        cold = bench.reply([5, 9, 20], k=4, max_tokens=40, sampling=tiny)
    assert greedy.ids == cold.ids
    assert greedy.done.summary.drafted > 0


# -- mutations ---------------------------------------------------------------------------------------


@contextmanager
def wrong_residual() -> Iterator[None]:
    """A rejected draft is replaced by a draw from p instead of from what q left."""

    def judge(p: Distribution, x: int, q: Distribution | None, u: float, v: float) -> tuple[bool, int]:
        if q is None:
            return original(p, x, q, u, v)
        return (True, x) if u * q.of(x) < p.of(x) else (False, p.draw(v))

    original = loop_module.judge
    with patched(loop_module, "judge", judge):
        yield


@contextmanager
def dropped_on_the_floor() -> Iterator[None]:
    """Drawn tokens of low confidence are thrown away after the draw."""
    original = ModelDrafter.propose

    def propose(self: ModelDrafter, *args: Any) -> Draft:
        draft = original(self, *args)
        assert draft.q is not None
        keep = next((i for i, id in enumerate(draft.tokens) if draft.q[i].of(id) < 0.5), len(draft.tokens))
        del draft.tokens[keep:], draft.confidences[keep:], draft.q[keep:]
        return draft

    with patched(ModelDrafter, "propose", propose):
        yield


@contextmanager
def q_before_truncation() -> Iterator[None]:
    """The verdict is told the draft's full softmax, while the draw came from the truncated one."""
    original = ModelDrafter.propose

    def propose(self: ModelDrafter, *args: Any) -> Draft:
        draft = original(self, *args)
        assert draft.q is not None
        n = model(TARGET).n_vocab
        for i, q in enumerate(draft.q):
            full = np.full(n, 0.02)
            full[q.ids] += q.p * (1 - 0.02 * n)
            draft.q[i] = Distribution(np.arange(n, dtype=np.int32), full)
        return draft

    with patched(ModelDrafter, "propose", propose):
        yield


@pytest.mark.parametrize("mutation", [wrong_residual, dropped_on_the_floor, q_before_truncation])
def test_the_statistic_notices_a_biased_loop(mutation: Callable[[], AbstractContextManager[None]]) -> None:
    with mutation():
        counts, _, _ = sampled(WARM, rejection=True, replies=2500)
    try:
        p = p_value(counts, joint(WARM))
    except AssertionError:
        return  # an impossible reply is noticed, too
    assert p < 1e-3
