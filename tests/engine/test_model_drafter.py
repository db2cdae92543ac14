"""The separate draft model: one decode for catch-up and seed, masks, windows, its own cache in step."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.drafters.base import always
from localspec.engine.drafters.model import ModelDrafter
from localspec.engine.events import Notice, Token
from localspec.errors import EngineError
from tests.engine.harness import Bench, exact_context, ids, plain, random_prompt


def decodes(bench: Bench) -> list[int]:
    """Row counts of the draft's decodes while the bench runs."""
    drafter = bench.drafters[0]
    assert isinstance(drafter, ModelDrafter)
    cache, counts = drafter._cache, []
    original = cache.decode

    def decode(tokens: np.ndarray, outputs: int) -> np.ndarray:
        counts.append(len(tokens))
        return original(tokens, outputs)

    cache.decode = decode  # type: ignore[method-assign]
    return counts


def test_full_acceptance_costs_one_extra_row_and_no_extra_call() -> None:
    with Bench().with_draft_model("syn") as bench:
        counts = decodes(bench)
        bench.reply(random_prompt(1, 10), k=4, max_tokens=21)
        # First round: the prompt and three steps; then two rows (last draft and bonus) and three steps each.
        assert counts == [10, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1]


def test_acceptance_after_a_rejection_equals_a_fresh_drafter() -> None:
    """Known fault 33: a rejected draft leaves nothing behind in the draft's cache."""
    prompt = random_prompt(2, 16)
    with Bench(n_ctx=200).with_draft_model("syn-near") as bench:
        events = bench.reply(prompt, k=4, max_tokens=60)
    text = [e.id for e in events.events if isinstance(e, Token)]
    at = 0
    for round in events.rounds[:-1]:
        with Bench(n_ctx=200).with_draft_model("syn-near") as fresh:
            first = fresh.reply(prompt + text[:at], k=4, max_tokens=6).rounds[0]
        assert (round.tested, round.accepted) == (first.tested, first.accepted), f"after {at} tokens"
        at += round.committed


def test_masked_ids_are_never_proposed() -> None:
    prompt = random_prompt(3, 12)
    wanted = plain("syn", tuple(prompt), 40)
    banned = sorted(set(wanted[:3]))
    with Bench().with_draft_model("syn", masked=banned) as bench:
        result = bench.reply(prompt, k=3, max_tokens=40)
    assert result.ids == list(wanted)
    assert not [e for e in result.events if isinstance(e, Token) and e.from_draft and e.id in banned]
    assert result.done.summary.accepted < result.done.summary.drafted


def test_padding_rows_of_a_larger_draft_vocabulary_are_out() -> None:
    """Known fault 81: ids beyond the target's vocabulary would fail its decode."""
    prompt = random_prompt(4, 12)
    with Bench(n_ctx=128).with_draft_model("syn-w") as bench:
        n_vocab = bench.context.n_vocab
        draft_vocab = bench.drafters[0]._cache.n_vocab  # type: ignore[attr-defined]
        assert draft_vocab > n_vocab
        result = bench.reply(prompt, k=5, max_tokens=80)
    assert result.ids == list(plain("syn", tuple(prompt), 80))


def test_a_short_draft_context_slides_and_rereads_rarely() -> None:
    """Known faults 2, 78: a draft context shorter than the text is a window, re-read once per half."""
    prompt = random_prompt(5, 20)
    with Bench(n_ctx=512).with_draft_model("syn", n_ctx=64) as bench:
        drafter = bench.drafters[0]
        result = bench.reply(prompt, k=4, max_tokens=400)
        assert isinstance(drafter, ModelDrafter)
        assert 0 < drafter.window_reads <= 400 // 24
    assert result.ids == list(plain("syn", tuple(prompt), 400))
    assert result.done.summary.accepted > 30, "a window drafts worse, but it drafts"


def test_a_hybrid_draft_uses_a_saved_state() -> None:
    prompt = random_prompt(6, 14)
    with Bench(n_ctx=200).with_draft_model("syn-hyb") as bench:
        result = bench.reply(prompt, k=3, max_tokens=120)
    assert result.ids == list(plain("syn", tuple(prompt), 120))
    assert result.done.summary.drafted > 0
    with Bench("syn-hyb", n_ctx=200).with_draft_model("syn-hyb") as bench:
        own = bench.reply(prompt, k=3, max_tokens=60)
    assert own.done.summary.accepted == own.done.summary.tested > 0


def test_confidence_floors_stop_before_the_draw() -> None:
    with Bench().with_draft_model("syn-near") as bench:
        free = bench.reply(random_prompt(7, 12), k=8, max_tokens=60)
        floored = bench.reply(random_prompt(7, 12), k=8, max_tokens=60, p_min=0.5)
    assert floored.ids == free.ids
    assert 0 < floored.done.summary.drafted < free.done.summary.drafted


def test_ids_outside_the_vocabulary_never_reach_a_decode() -> None:
    """Known fault 15: -1 and n_vocab end in one sentence, not in native code."""
    context = exact_context("syn")
    cells = context.sequence()
    for bad in (-1, context.n_vocab):
        with pytest.raises(EngineError, match="outside the vocabulary"):
            cells.decode(ids([1, bad]), 1)
    assert cells.n_past == 0
    context.close()


def test_more_is_asked_before_every_token() -> None:
    with Bench().with_draft_model("syn") as bench:
        drafter = bench.drafters[0]
        from localspec.engine.drafters.base import History

        history = History(ids(random_prompt(8, 9)), 64)
        drafter.begin(history)
        asked: list[tuple[int, float]] = []

        def more(position: int, confidence: float) -> bool:
            asked.append((position, confidence))
            return position < 2

        draft = drafter.propose(history, 6, more, None)
        assert len(draft) == 2 and [p for p, _ in asked] == [0, 1, 2]
        assert all(0 < c <= 1 for _, c in asked)
        drafter.commit(history, 0)
        assert drafter.propose(history, 6, always, None).tokens[:2] == draft.tokens


def test_a_fixed_length_asks_for_no_confidence_and_drafts_the_same() -> None:
    """Known by `always`: the tokens of a rule that asks and always agrees, without its pass over the row."""
    from localspec.engine.drafters.base import History

    history = History(ids(random_prompt(8, 9)), 64)
    with Bench().with_draft_model("syn") as bench:
        drafter = bench.drafters[0]
        drafter.begin(history)
        asked = drafter.propose(history, 6, lambda position, confidence: True, None)
        drafter.commit(history, 0)
        unasked = drafter.propose(history, 6, always, None)
    assert asked.tokens == unasked.tokens
    assert unasked.confidences == [1.0] * 6 and all(c < 1.0 for c in asked.confidences)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("p_min", [0.0, 0.1])
def test_a_draft_model_whose_logits_are_not_finite_is_dropped_aloud(value: float, p_min: float) -> None:
    """It must not look like one that has nothing to say."""
    prompt = random_prompt(3, 12)
    with Bench().with_draft_model("syn") as bench:
        drafter = bench.drafters[0]
        assert isinstance(drafter, ModelDrafter)
        original = drafter._cache.decode

        def decode(tokens: np.ndarray, outputs: int) -> np.ndarray:
            rows = original(tokens, outputs)
            rows[:, 7] = value
            return rows

        drafter._cache.decode = decode  # type: ignore[method-assign]
        result = bench.reply(prompt, k=3, max_tokens=20, p_min=p_min)
    (notice,) = [event for event in result.events if isinstance(event, Notice)]
    assert notice.kind == "off" and "not finite" in notice.reason
    assert result.ids == list(plain("syn", tuple(prompt), 20))
