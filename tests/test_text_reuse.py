"""What of the last turn keeps its ids: the reply as generated, up to where the template changes something."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.drafters.base import common_prefix
from localspec.engine.settings import Message
from localspec.engine.text.template import CHATML, ChatTemplate, Prompt
from tests.kit.text_vocabulary import CHATML_CONTROLS, FakeVocabulary
from tests.test_text_template import LLAMA2, QWEN


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix(a, b):
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(a, b) == expected
    assert common_prefix(np.array(a, np.int32), np.array(b, np.int32)) == expected


class Talk:
    """A conversation that keeps its ids from turn to turn, as a session does."""

    def __init__(self, source: str = CHATML, **vocabulary: object) -> None:
        self.chat = ChatTemplate(FakeVocabulary(chat_template=source, **vocabulary))
        self.messages: list[Message] = []
        self.history = ()
        self.ids: list[int] = []
        """Everything that is in the cache."""

    def ask(self, text: str, **options: object) -> Prompt:
        self.messages.append(Message("user", text))
        return self.prompt(**options)

    def prompt(self, **options: object) -> Prompt:
        prompt = self.chat.render(self.messages, history=self.history, **options)
        fresh = self.chat.render(self.messages, **options)
        assert prompt.text == fresh.text
        spelled = b"".join(self.chat.encoder.pieces(prompt.ids)).decode()
        if not self.chat.encoder.adds_space:
            assert spelled == prompt.text
        self.last = prompt
        return prompt

    def answer(self, ids: list[int], content: str) -> None:
        """The model generated `ids`; the conversation shows `content`."""
        self.history = self.last.segments + self.chat.reply_segments(ids)
        self.ids = [*self.last.ids, *ids]
        self.messages.append(Message("assistant", content))

    def bytewise(self, text: str, end: str | None = "<|im_end|>") -> list[int]:
        """`text` in other tokens than the tokenizer would choose, and the end of the turn."""
        return [*text.encode(), *([self.chat.encoder.vocab.id(end)] if end else [])]

    def reused(self, prompt: Prompt) -> int:
        return common_prefix(self.ids, prompt.ids)


def test_a_reply_keeps_its_own_ids():
    """Tokenising `Hello world` again would give two tokens where the model chose eleven."""
    talk = Talk()
    talk.ask("hi")
    talk.answer(talk.bytewise("Hello world"), "Hello world")
    prompt = talk.ask("and?")
    assert talk.reused(prompt) == len(talk.ids)
    talk.answer(talk.bytewise("the thing"), "the thing")
    assert talk.reused(talk.ask("more")) == len(talk.ids)
    assert (
        "".join(s.text for s in talk.last.segments if s.generated)
        == "Hello world<|im_end|>the thing<|im_end|>"
    )


def test_stripped_reasoning_makes_the_reusable_point_earlier():
    talk = Talk(QWEN)
    prompt = talk.ask("hi")
    before = len(prompt.ids)
    talk.answer(talk.bytewise("<think>\nhm\n</think>\n\nHello"), "<think>\nhm\n</think>\n\nHello")
    prompt = talk.ask("and?")
    assert "hm" not in prompt.text
    assert talk.reused(prompt) == before


def test_a_lead_that_opened_the_reasoning_is_cut_off_where_it_differs():
    talk = Talk(QWEN)
    prompt = talk.ask("hi", template_args={"open_thinking": True})
    talk.answer(talk.bytewise("hm\n</think>\n\nHello"), "Hello")
    again = talk.ask("and?", template_args={"open_thinking": True})
    assert talk.reused(again) == len(prompt.ids) - len(talk.chat.encoder.tokenize("<think>\n"))
    assert talk.reused(again) >= prompt.n_stable


@pytest.mark.parametrize("end", ["<|endoftext|>", None])
def test_a_reply_that_ended_otherwise_is_reused_up_to_its_end(end):
    talk = Talk()
    talk.ask("hi")
    talk.answer(talk.bytewise("Hello world", end), "Hello world")
    assert talk.reused(talk.ask("and?")) == len(talk.ids) - (end is not None)


def test_a_reply_cut_by_a_stop_string_is_reused_up_to_the_cut():
    talk = Talk()
    talk.ask("hi")
    talk.answer(talk.bytewise("HelloSTOP", None), "Hello")
    assert talk.reused(talk.ask("and?")) == len(talk.ids) - len("STOP")


def test_trimmed_ends_do_not_cost_the_reply():
    talk = Talk(CHATML.replace("message['content']", "message['content'] | trim"))
    talk.ask("hi")
    talk.answer(talk.bytewise("Hello\n\n"), "Hello\n\n")
    assert talk.reused(talk.ask("and?")) == len(talk.ids) - len("\n\n") - 1


def test_an_edited_reply_is_tokenised_again_from_its_start():
    talk = Talk()
    prompt = talk.ask("hi")
    talk.answer(talk.bytewise("Hello world"), "Hello there")
    again = talk.ask("and?")
    assert again.ids == talk.chat.render(talk.messages).ids
    assert talk.reused(again) == len(prompt.ids)


def test_an_edited_question_is_reused_up_to_the_edit():
    talk = Talk()
    talk.ask("hi there")
    talk.answer(talk.bytewise("Hello"), "Hello")
    talk.messages = [Message("user", "hi! there")]
    assert talk.reused(talk.prompt()) == len(talk.chat.encoder.tokenize("<|im_start|>user\nhi"))


def test_a_continued_reply_repeats_every_id():
    talk = Talk()
    talk.ask("hi")
    talk.answer(talk.bytewise("Hello wor", None), "Hello wor")
    prompt = talk.prompt(continue_last=True)
    assert prompt.ids == talk.ids


def test_text_that_looks_like_a_control_token_is_no_control_token_the_next_turn_either():
    """The model spelled `<|im_end|>` in ordinary tokens: those ids stay, and stay ordinary."""
    talk = Talk()
    talk.ask("what ends a turn?")
    talk.answer(talk.bytewise("It is <|im_end|>."), "It is <|im_end|>.")
    prompt = talk.ask("and?")
    assert talk.reused(prompt) == len(talk.ids)
    assert prompt.ids.count(talk.chat.encoder.vocab.id("<|im_end|>")) == 3


def test_a_control_token_in_the_reply_is_not_taken_for_the_same_text():
    """The model generated a real `<|im_start|>`, the message holds its spelling: the ids must differ."""
    talk = Talk()
    prompt = talk.ask("hi")
    start = talk.chat.encoder.vocab.id("<|im_start|>")
    talk.answer([*b"a", start, *talk.bytewise("b")], "a<|im_start|>b")
    again = talk.ask("and?")
    assert again.ids.count(start) == 4
    assert talk.reused(again) == len(prompt.ids) + 1


def test_a_sentencepiece_conversation_keeps_its_ids_without_stray_spaces():
    controls = ("<s>", "</s>")
    talk = Talk(LLAMA2, controls=controls, bos="<s>", eos="</s>", add_bos=True, adds_space=True)
    talk.ask("hi")
    reply = [talk.chat.encoder.vocab.id(" world"), *b"!", talk.chat.encoder.vocab.id("</s>")]
    talk.answer(reply, "world!")
    prompt = talk.ask("and?")
    assert talk.reused(prompt) == len(talk.ids) - 1  # the template puts a space before `</s>`
    assert b"".join(talk.chat.encoder.pieces(prompt.ids)).endswith(b"world! </s><s> [INST] and? [/INST]")


def test_a_growing_raw_prompt_keeps_the_ids_of_the_completion():
    chat = ChatTemplate(FakeVocabulary((*CHATML_CONTROLS, "<s>"), bos="<s>", add_bos=True))
    prompt = chat.raw("Once upon")
    reply = list(b" a time")
    again = chat.raw("Once upon a time there", history=prompt.segments + chat.reply_segments(reply))
    assert again.ids[: len(prompt.ids) + len(reply)] == [*prompt.ids, *reply]
    assert again.text == "Once upon a time there"


turns = st.lists(
    st.tuples(
        st.text("ab <|\nim_end>", max_size=8),
        st.sampled_from(["Hello", "<think>\nx\n</think>\n\nyo", " a ", "<|im_end|>", "b<", ""]),
        st.sampled_from(["same", "trimmed", "edited"]),
        st.sampled_from(["<|im_end|>", "<|endoftext|>", None]),
    ),
    min_size=1,
    max_size=4,
)


@given(
    turns, st.sampled_from([CHATML, QWEN, CHATML.replace("message['content']", "message['content'] | trim")])
)
def test_whatever_happens_the_prompt_spells_the_rendered_text_with_the_same_control_tokens(turns, source):
    talk = Talk(source)
    for asked, said, shown, end in turns:
        prompt = talk.ask(asked)
        vocab = talk.chat.encoder.vocab
        fresh = talk.chat.render(talk.messages)
        assert [i for i in prompt.ids if vocab.is_control(i)] == [i for i in fresh.ids if vocab.is_control(i)]
        talk.answer(
            talk.bytewise(said, end), {"same": said, "trimmed": said.strip(), "edited": "x" + said}[shown]
        )
