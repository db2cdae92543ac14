"""The n-gram drafter: longest match, most recent of equals, incremental, and no match means no draft."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.drafters.base import Draft, History, always
from localspec.engine.drafters.ngram import KEY, NgramDrafter
from tests.engine.harness import ids


def drafted(text: list[int], k: int = 8, prediction: list[int] | None = None) -> Draft:
    drafter = NgramDrafter(ids(prediction) if prediction else None)
    history = History(ids(text), len(text) + 8)
    drafter.begin(history)
    return drafter.propose(history, k, always, None)


def slow_longest_match(text: list[int], k: int) -> list[int]:
    """The definition, over all earlier places (short texts only)."""
    best: tuple[int, int] | None = None
    for place in range(KEY, len(text)):
        length = 0
        while length < place and text[place - length - 1] == text[len(text) - length - 1]:
            length += 1
        if length >= KEY and (best is None or length >= best[0]):
            best = (length, place)
    return text[best[1] : best[1] + k] if best else []


@given(text=st.lists(st.integers(0, 2), min_size=1, max_size=14), k=st.integers(1, 6))
def test_the_draft_follows_the_longest_most_recent_match(text: list[int], k: int) -> None:
    """Known fault 71: not the first match but the longest, and of equals the most recent."""
    assert drafted(text, k).tokens == slow_longest_match(text, k)


def test_longer_matches_beat_recent_ones() -> None:
    text = [1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4]
    assert drafted(text, 1).tokens == [50]


def test_random_text_drafts_nothing() -> None:
    assert len(drafted(list(range(40)))) == 0


def test_confidence_grows_with_the_match() -> None:
    draft = drafted([1, 2, 3, 4, 5, 6, 7, 8, 99, 1, 2, 3], k=5)
    assert draft.tokens == [4, 5, 6, 7, 8]
    assert draft.confidences == sorted(draft.confidences)
    assert drafted([1, 2, 7, 1, 2]).confidences[0] < draft.confidences[0]


def test_the_index_grows_with_the_reply() -> None:
    """Committed tokens are indexed once each, whatever the rounds looked like."""
    text = list(np.random.default_rng(3).integers(0, 5, 60))
    drafter = NgramDrafter()
    history = History(ids(text[:10]), 100)
    drafter.begin(history)
    for id in text[10:]:
        history.append(int(id))
        drafter.commit(history, 0)
    assert drafter.propose(history, 6, always, None).tokens == drafted([int(i) for i in text], 6).tokens


def test_a_prediction_is_an_older_text() -> None:
    """The prediction drafts, the reply's own text goes first, nothing matches across the seam."""
    assert drafted([7, 1, 2], k=3, prediction=[1, 2, 3, 4, 5]).tokens == [3, 4, 5]
    assert drafted([1, 2, 9, 1, 2], k=1, prediction=[1, 2, 3, 4]).tokens == [9]
    assert drafted([30, 8, 9], k=3, prediction=[8, 9]).tokens == [], "a prediction too short to index"
    assert drafted([6, 0, 1], k=2, prediction=[5, 0, 0]).tokens == [], (
        "0 ends the prediction, 1 starts nothing"
    )


def test_a_draft_never_runs_out_of_the_prediction_into_the_prompt() -> None:
    assert drafted([7, 4, 5], k=4, prediction=[1, 2, 4, 5, 6]).tokens == [6]


def test_a_long_prompt_is_indexed_quickly() -> None:
    """16k tokens of repetitive text: linear, far below a second."""
    text = list(np.random.default_rng(1).integers(0, 30, 16_000))
    started = time.perf_counter()
    drafted([int(i) for i in text])
    assert time.perf_counter() - started < 1.0
