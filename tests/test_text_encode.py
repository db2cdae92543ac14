"""Marked text: what users write never becomes a control token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.text.encode import MARK, ControlTexts, Encoder, as_json, unmark
from tests.kit.text_vocabulary import FakeVocabulary

CONTROLS = ("<|im_start|>", "<|im_end|>", "</s>", "[INST]")
# Texts made of the parts that control tokens are made of.
dangerous = st.lists(
    st.sampled_from(["<", "|", "im_", "start", "end", "|>", ">", "</", "s", "[INST", "]", " ", "x"])
)
dangerous_text = dangerous.map("".join)


@given(dangerous_text)
def test_marking_can_be_undone_and_leaves_no_control_text(text):
    controls = ControlTexts(CONTROLS)
    marked = controls.mark(text)
    assert unmark(marked) == text
    assert list(controls.find_all(marked)) == []


@given(st.lists(dangerous_text, min_size=2, max_size=4), st.booleans())
def test_joined_and_trimmed_texts_spell_no_control_token_either(texts, trim):
    """A template may put parts of a message side by side: `<|im_` and `start|>` must stay apart."""
    controls = ControlTexts(CONTROLS)
    marked = [controls.mark(text) for text in texts]
    assert list(controls.find_all("".join(part.strip() if trim else part for part in marked))) == []


@given(dangerous_text, st.booleans())
def test_marked_text_between_control_tokens_is_tokenised_as_plain_text(text, adds_space):
    vocab = FakeVocabulary(CONTROLS, eos=None, adds_space=adds_space)
    encoder = Encoder(vocab)
    ids = encoder.tokenize(f"<|im_start|>{encoder.mark(text)}<|im_end|>")
    plain = vocab.tokenize(text, special=False, add_special=False)
    assert ids == [vocab.id("<|im_start|>"), *plain, vocab.id("<|im_end|>")]


def test_text_without_control_texts_is_tokenised_in_one_call_as_without_marking():
    vocab = FakeVocabulary(CONTROLS, eos=None)
    encoder = Encoder(vocab)
    text = "<|im_start|>user\nHello world<|im_end|>"
    assert encoder.mark("Hello < world") == "Hello < world"
    assert encoder.tokenize(text) == vocab.tokenize(text, special=True, add_special=False)


def test_marks_reach_into_containers_and_only_plain_types_come_out():
    encoder = Encoder(FakeVocabulary(CONTROLS, eos=None))
    value = {"a": ["</s>", {"k</s>": ("[INST]", 1, None, True, 2.5)}], "o": object()}
    assert encoder.mark(value) == {
        "a": [f"<{MARK}/s>", {f"k<{MARK}/s>": [f"[{MARK}INST]", 1, None, True, 2.5]}],
        "o": "<object>",
    }
    assert as_json({"t": ("x",)}) == {"t": ["x"]}


def test_a_mark_and_half_a_character_in_the_input_are_replaced():
    encoder = Encoder(FakeVocabulary(CONTROLS, eos=None))
    assert encoder.mark(f"a{MARK}b\ud83d") == "a\ufffdb\ufffd"


def test_spelled_ids_show_control_tokens_and_mark_what_only_looks_like_them():
    vocab = FakeVocabulary(CONTROLS, eos=None)
    encoder = Encoder(vocab)
    typed = vocab.tokenize("say </s>!", special=False, add_special=False)
    assert encoder.spell([*typed, vocab.id("</s>")]) == f"say <{MARK}/s>!</s>"


def test_text_after_text_gets_no_space_of_its_own_from_sentencepiece():
    vocab = FakeVocabulary(CONTROLS, eos=None, adds_space=True)
    encoder = Encoder(vocab)
    assert encoder.adds_space
    assert b"".join(encoder.pieces(encoder.tokenize("Hello"))) == b" Hello"
    assert b"".join(encoder.pieces(encoder.tokenize("Hello", after_text=True))) == b"Hello"
    assert not Encoder(FakeVocabulary(CONTROLS, eos=None)).adds_space
