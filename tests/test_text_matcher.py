"""The streaming search behind stop strings and markers."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.text.matcher import Matcher

short = st.text("ab<é", min_size=1, max_size=4)


def naive(text: str, patterns: list[str]) -> tuple[str, str | None]:
    """What is shown of `text`, and the pattern that ended it: completed first, then longest."""
    for end in range(1, len(text) + 1):
        done = [p for p in patterns if text[:end].endswith(p)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


def streamed(text: str, cuts: list[int], patterns: list[str]) -> tuple[str, str | None]:
    matcher, shown, edges = Matcher(patterns), "", [0, *sorted(c % (len(text) + 1) for c in cuts), len(text)]
    for a, b in itertools.pairwise(edges):
        scan = matcher.feed(text[a:b])
        shown += scan.clear
        if scan.hit is not None:
            assert (scan.rest + text[b:]) == text[len(shown) + len(patterns[scan.hit]) :]
            return shown, patterns[scan.hit]
    return shown + matcher.flush(), None


@given(
    st.text("ab<é", max_size=20),
    st.lists(short, min_size=1, max_size=4, unique=True),
    st.lists(st.integers(0, 20)),
)
def test_any_cut_gives_what_a_search_of_the_whole_text_gives(text, patterns, cuts):
    assert streamed(text, cuts, patterns) == naive(text, patterns)


@given(st.text("ab<", max_size=12), st.lists(short, min_size=1, max_size=3))
def test_nothing_is_held_longer_than_a_match_is_possible(text, patterns):
    matcher, shown = Matcher(patterns), ""
    for at, char in enumerate(text):
        scan = matcher.feed(char)
        if scan.hit is not None:
            return
        shown += scan.clear
        held = text[len(shown) : at + 1]
        assert not held or any(pattern.startswith(held) for pattern in patterns)


def test_the_first_completed_wins_and_of_those_the_longest():
    assert streamed("xabcd", [], ["abcd", "bc"]) == ("xa", "bc")
    assert streamed("xabc", [], ["c", "abc", "bc"]) == ("x", "abc")


def test_flush_gives_back_what_only_began():
    matcher = Matcher(["</stop>"])
    assert matcher.feed("end </st").clear == "end "
    assert matcher.flush() == "</st"
    assert matcher.feed("op>").clear == "op>"


def test_an_empty_pattern_is_refused():
    with pytest.raises(ValueError):
        Matcher([""])


def test_the_cost_per_character_does_not_grow_with_the_patterns_progress():
    """A text that is nothing but false starts costs no more per character than its length says."""
    matcher = Matcher(["a" * 500 + "b"])
    text = "a" * 20_000
    start = time.perf_counter()
    for at in range(0, len(text), 4):
        matcher.feed(text[at : at + 4])
    assert time.perf_counter() - start < 2
