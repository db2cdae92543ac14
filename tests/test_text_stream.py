"""Ids become text: whole characters, stop strings across tokens, channels, hidden tokens."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.text.reasoning import Tags
from localspec.engine.text.stream import Released, TextStream, check_stops, control_ids
from localspec.errors import UsageError
from tests.kit.text_vocabulary import FakeVocabulary

VOCAB = FakeVocabulary()


def ids_of(data: bytes) -> list[int]:
    """One token per byte."""
    return list(data)


class Cut(FakeVocabulary):
    """A vocabulary whose tokens are the pieces that a test cuts its bytes into."""

    def __init__(self, data: bytes, cuts: list[int]) -> None:
        super().__init__()
        edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
        self._cut = [data[a:b] for a, b in itertools.pairwise(edges)]
        self.ids = [1000 + i for i in range(len(self._cut))]

    def piece(self, id: int, special: bool = False) -> bytes:
        return self._cut[id - 1000] if id >= 1000 else super().piece(id, special)


def run(stream: TextStream, ids: list[int]) -> tuple[str, int | None]:
    """All text, and the index of the token at which a stop string ended it."""
    text = ""
    for index, id in enumerate(ids):
        released = stream.feed(id)
        text += "".join(part for part, _ in released.earlier) + released.text
        if released.stopped:
            assert stream.flush() == []
            assert stream.feed(id) == Released("", "content")
            return text, index
    return text + "".join(part for part, _ in stream.flush()), None


@pytest.mark.parametrize("cuts", [(1,), (2,), (3,), (1, 2), (1, 2, 3), (1, 3)])
def test_an_emoji_split_over_tokens_arrives_whole(cuts):
    """Known fault 49: emoji and CJK arrive as replacement characters."""
    vocab = Cut("😀".encode(), list(cuts))
    stream = TextStream(vocab)
    released = [stream.feed(id) for id in vocab.ids]
    assert [r.text for r in released] == [""] * (len(released) - 1) + ["😀"]


def test_interleaved_streams_do_not_share_half_characters():
    """Known fault 49: eight streams at once, each in the middle of a character."""
    texts = [chr(0x1F600 + i) + "漢字" for i in range(8)]
    streams = [TextStream(VOCAB) for _ in texts]
    shown = [""] * 8
    for step in range(10):
        for i, text in enumerate(texts):
            shown[i] += streams[i].feed(text.encode()[step]).text
    assert shown == texts


@given(st.binary(max_size=24), st.lists(st.integers(0, 24)))
def test_any_bytes_in_any_tokens_decode_like_all_at_once(data, cuts):
    vocab = Cut(data, cuts)
    assert run(TextStream(vocab), vocab.ids) == (data.decode("utf-8", "replace"), None)


def test_half_a_character_at_the_end_is_one_replacement_character():
    stream = TextStream(VOCAB)
    assert [stream.feed(byte).text for byte in "é😀".encode()[:-1]] == ["", "é", "", "", ""]
    assert stream.flush() == [("\ufffd", "content")]
    assert stream.flush() == []


def naive_stop(data: bytes, stops: list[str]) -> tuple[bytes, int | None]:
    """Bytes shown, and how many bytes were read when a stop string was complete."""
    for end in range(1, len(data) + 1):
        done = [s.encode() for s in stops if data[:end].endswith(s.encode())]
        if done:
            return data[: end - max(map(len, done))], end
    return data, None


alphabet = st.text("ab\n<é漢😀", max_size=16)
stop_lists = st.lists(st.text("ab\n<é漢", min_size=1, max_size=4), min_size=1, max_size=4)


@given(alphabet, stop_lists, st.lists(st.integers(0, 60)))
def test_a_stop_string_is_found_where_a_search_of_the_joined_bytes_finds_it(text, stops, cuts):
    data = text.encode()
    shown, end = naive_stop(data, stops)
    vocab = Cut(data, cuts)
    lengths = [len(vocab.piece(id)) for id in vocab.ids]
    token = None if end is None else next(i for i in range(len(lengths)) if sum(lengths[: i + 1]) >= end)
    assert run(TextStream(vocab, stops=stops), vocab.ids) == (shown.decode(), token)


def test_text_that_may_become_a_stop_string_waits_and_is_released_once_it_cannot():
    stream = TextStream(VOCAB, stops=["END", "\n\nUser"])
    released = [stream.feed(byte).text for byte in b"a\n\nU\n\nxEN"]
    assert released == ["a", "", "", "", "\n\nU", "", "\n\nx", "", ""]
    assert stream.flush() == [("EN", "content")]


def test_the_text_before_the_stop_string_comes_with_the_token_that_completes_it():
    stream = TextStream(VOCAB, stops=["\n\n"])
    assert stream.feed(VOCAB.id("Hello")).text == "Hello"
    assert stream.feed(VOCAB.id("\n\n")) == Released("", "content", stopped=True)
    stream = TextStream(VOCAB, stops=["xworld", "o wor"])
    assert stream.feed(VOCAB.id("Hello")).text == "Hell"
    assert stream.feed(VOCAB.id(" world")) == Released("", "content", stopped=True)


def test_a_stop_string_that_is_a_control_token_stops_at_the_token():
    stream = TextStream(VOCAB, stops=["<|im_start|>"])
    assert stream.feed(VOCAB.id("Hello")).text == "Hello"
    assert stream.feed(VOCAB.id("<|im_start|>")).stopped


def test_control_tokens_are_hidden_unless_they_are_asked_for():
    """Known fault 46: the assistant's header appears in the text."""
    ids = [VOCAB.id("Hello"), VOCAB.id("<|im_start|>"), VOCAB.id("<think>"), VOCAB.id("<|im_end|>")]
    assert run(TextStream(VOCAB), ids) == ("Hello<think>", None)
    assert run(TextStream(VOCAB, shown=[VOCAB.id("<|im_start|>")]), ids) == ("Hello<|im_start|><think>", None)
    assert run(TextStream(VOCAB, hidden=[VOCAB.id("Hello"), VOCAB.id("<think>")]), ids) == ("", None)
    assert control_ids(VOCAB, ["<|im_start|>user", "<think>"]) == {VOCAB.id("<|im_start|>")}


def test_one_token_that_ends_the_reasoning_releases_both_channels():
    vocab = FakeVocabulary(words=("hm", "\n</think>\n\nHel", "lo"))
    stream = TextStream(vocab, splitter=Tags("<think>", "</think>").splitter("<think>\n", tools=False))
    assert stream.channel == "reasoning"
    assert stream.feed(vocab.id("hm")) == Released("hm", "reasoning")
    assert stream.feed(vocab.id("\n</think>\n\nHel")) == Released("Hel", "content")
    assert stream.channel == "content"

    vocab = FakeVocabulary(words=("hm</think>Hi",))
    stream = TextStream(vocab, splitter=Tags("<think>", "</think>").splitter("<think>", tools=False))
    assert stream.feed(vocab.id("hm</think>Hi")) == Released("Hi", "content", earlier=(("hm", "reasoning"),))


def test_a_stop_string_inside_the_reasoning_ends_the_reply():
    stream = TextStream(VOCAB, stops=["END"], splitter=Tags("<think>", "</think>").splitter("", tools=False))
    ids = ids_of(b"<think>abEND</think>c")
    texts = [stream.feed(id) for id in ids]
    assert [(r.text, r.channel) for r in texts if r.text] == [("a", "reasoning"), ("b", "reasoning")]
    assert [r.stopped for r in texts].index(True) == len(b"<think>abEN")


def test_the_space_sentencepiece_puts_before_the_first_word_can_be_dropped():
    assert run(TextStream(VOCAB, strip_space=True), ids_of(b"  a b")) == (" a b", None)
    assert run(TextStream(VOCAB, strip_space=True), ids_of(b"a b")) == ("a b", None)


@pytest.mark.parametrize(
    ("stops", "words"),
    [([""], "empty"), (["x"] * 65, "at most"), (["x" * 1001], "longer"), (["\ud800"], "half a character")],
)
def test_impossible_stop_strings_are_refused(stops, words):
    with pytest.raises(UsageError, match=words):
        check_stops(stops)
    assert check_stops(["a", "b", "a"]) == ("a", "b")


def test_a_token_costs_a_few_microseconds():
    """The loop's own work per round must stay far below a decode."""
    vocab = FakeVocabulary(words=(" token", "Hello"))
    splitter = Tags("<think>", "</think>").splitter("", tools=False)
    stream = TextStream(vocab, stops=["</s>", "\n\nUser:"], splitter=splitter)
    ids = [vocab.id(" token")] * 20_000
    start = time.perf_counter()
    for id in ids:
        stream.feed(id)
    assert (time.perf_counter() - start) / len(ids) < 40e-6  # a slow shared core; typically 4e-6
