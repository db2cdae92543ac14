"""A chat in memory and on disk stay the same, and make the right request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.events import Text, Token
from localspec.engine.settings import Message, SamplingSettings, SpeculationSettings
from localspec.errors import UsageError
from localspec.store import ChatStore, Span, Turn
from localspec.tui.conversation import ChatSettings, Conversation
from localspec.tui.transcript import Piece, Transcript


def token(text: str, *, draft: bool = False, round_: int = 0, reasoning: bool = False) -> Token:
    return Token(1, text, "reasoning" if reasoning else "content", draft, "ngram", round_)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChatStore]:
    store = ChatStore(tmp_path / "chats.db")
    yield store
    store.close()


@pytest.fixture
def chat(store: ChatStore) -> Conversation:
    return Conversation(store, "demo", ChatSettings(), "Be brief")


def reply(chat: Conversation, text: str) -> None:
    last = chat.last_reply
    assert last is not None
    last.transcript.add(token(text))
    chat.save_reply()


def stored(chat: Conversation) -> list[str]:
    assert chat.chat_id is not None
    return [turn.content for turn in chat.store.load(chat.chat_id).turns]


def test_an_empty_chat_is_not_stored(chat: Conversation) -> None:
    assert chat.store.find() == []
    chat.ask("first question\nsecond line")
    assert [row.title for row in chat.store.find()] == ["first question second line"]


def test_the_request_has_system_turns_and_settings(chat: Conversation) -> None:
    sampling = SamplingSettings(temperature=0.1, seed=3)
    chat.set_settings(ChatSettings(sampling, SpeculationSettings(method="ngram", k=3), 77))
    chat.ask("one")
    reply(chat, "answer")
    chat.ask("two")
    request = chat.request()
    assert request.messages == (
        Message("system", "Be brief"), Message("user", "one"), Message("assistant", "answer"),
        Message("user", "two"),
    )  # fmt: skip
    assert (request.sampling, request.speculation.k, request.max_tokens) == (sampling, 3, 77)
    assert request.cache_key == f"chat-{chat.chat_id}" and not request.continue_last


def test_a_continued_reply_is_the_last_message(chat: Conversation) -> None:
    chat.ask("one")
    reply(chat, "half an")
    turn = chat.carry_on()
    request = chat.request(continue_last=True)
    assert request.continue_last and request.messages[-1] == Message("assistant", "half an")
    turn.transcript.add(token(" answer", round_=0))
    chat.save_reply()
    assert stored(chat) == ["one", "half an answer"]
    assert [piece.round for piece in turn.transcript.pieces] == [0, 1]


def test_reasoning_is_told_apart(chat: Conversation) -> None:
    turn = chat.ask("one")
    turn.transcript.add(token("hmm", reasoning=True))
    turn.transcript.add(token("yes"))
    chat.save_reply()
    chat.ask("two")
    assert chat.request().messages[2] == Message("assistant", "yes", (("reasoning_content", "hmm"),))


def test_a_question_without_an_answer_joins_the_next_one(store: ChatStore) -> None:
    """As after a kill between question and reply: templates refuse two user messages in a row."""
    chat_id = store.create(title="t", pair="demo")
    store.put_turn(chat_id, 0, Turn("user", "first"))
    chat = Conversation.resume(store, chat_id, ChatSettings())
    chat.ask("second")
    assert chat.request().messages == (Message("user", "first\n\nsecond"),)


def test_again_keeps_the_stored_reply_until_the_new_one_has_text(chat: Conversation) -> None:
    chat.ask("one")
    reply(chat, "old")
    chat.again()
    chat.save_reply()
    assert stored(chat) == ["one", "old"]
    reply(chat, "new")
    assert stored(chat) == ["one", "new"]


def test_a_question_can_be_taken_back(chat: Conversation) -> None:
    chat.ask("one")
    reply(chat, "answer one")
    chat.ask("two")
    reply(chat, "answer two")
    assert chat.take_back() == "two"
    assert stored(chat) == ["one", "answer one"]
    chat.ask("better two")
    assert stored(chat) == ["one", "answer one", "better two"]


def test_what_is_not_there_cannot_be_changed(chat: Conversation) -> None:
    with pytest.raises(UsageError, match="no message to answer"):
        chat.again()
    with pytest.raises(UsageError, match="no message to edit"):
        chat.take_back()
    with pytest.raises(UsageError, match="no reply to continue"):
        chat.carry_on()


def test_a_resumed_chat_is_as_it_was(chat: Conversation) -> None:
    settings = ChatSettings(
        SamplingSettings(temperature=0.2, logit_bias=((3, -1.0),)), SpeculationSettings(method="off"), 9
    )
    chat.set_settings(settings)
    turn = chat.ask("one")
    for event in (token("a"), token("b", draft=True), token("c", draft=True), token("d", round_=1)):
        turn.transcript.add(event)
    chat.save_reply()
    chat.set_system("other")
    chat.rename("Title")
    assert chat.chat_id is not None
    again = Conversation.resume(chat.store, chat.chat_id, ChatSettings())
    assert (again.title, again.system, again.pair, again.settings) == ("Title", "other", "demo", settings)
    last = again.last_reply
    assert last is not None and last.content == "abcd"
    assert last.transcript.spans() == (
        Span("content", False, 0, 1), Span("content", True, 0, 2), Span("content", False, 1, 1),
    )  # fmt: skip


def test_settings_of_another_version_are_read_as_far_as_known() -> None:
    default = ChatSettings(max_tokens=5)
    data = {"sampling": {"temperature": 0.3, "new_field": 1}, "speculation": "odd", "other": 2}
    assert ChatSettings.from_data(data, default) == replace(
        default, sampling=SamplingSettings(temperature=0.3)
    )


def test_incognito_chats_do_not_share_a_cache_key_with_stored_ones(chat: Conversation) -> None:
    chat.ask("x")
    hidden = Conversation(ChatStore(None), "demo", ChatSettings())
    hidden.ask("x")
    assert chat.request().cache_key != hidden.request().cache_key
    hidden.store.close()


PIECES = st.lists(
    st.builds(
        Piece, st.sampled_from(["content", "reasoning"]), st.text(min_size=1, max_size=5), st.booleans(),
        st.integers(0, 3),
    ),
    max_size=20,
)  # fmt: skip


@given(PIECES)
def test_spans_bring_back_text_and_origin(pieces: list[Piece]) -> None:
    first = Transcript(list(pieces))
    turn = Turn("assistant", first.content, first.reasoning, spans=first.spans())
    second = Transcript.of_turn(turn)
    assert (second.content, second.reasoning, second.spans()) == (
        first.content,
        first.reasoning,
        first.spans(),
    )


def test_text_without_spans_is_never_lost() -> None:
    turn = Turn("assistant", "abcdef", "why", spans=(Span("content", True, 0, 2),))
    transcript = Transcript.of_turn(turn)
    assert (transcript.content, transcript.reasoning) == ("abcdef", "why")


def test_held_back_text_counts_as_the_targets_own() -> None:
    transcript = Transcript()
    transcript.add(token("", draft=True, round_=2))
    transcript.add(token("a", draft=True, round_=2))
    transcript.add(Text("b", "content"))
    assert transcript.spans() == (Span("content", True, 2, 1), Span("content", False, 2, 1))
