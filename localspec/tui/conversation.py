"""A chat in memory and in the store: turns, system prompt, settings, and the request they make.

Knows no widgets and no engine; what is shown and what is stored are the same turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from localspec.engine.settings import Message, Request, SamplingSettings, SpeculationSettings
from localspec.errors import UsageError
from localspec.store import ChatStore, Turn
from localspec.store.chats import Ending, Role
from localspec.tui.transcript import Transcript


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """What a chat asks of each reply; no reload needed."""

    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    speculation: SpeculationSettings = field(default_factory=SpeculationSettings)
    max_tokens: int | None = None

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any], default: ChatSettings) -> ChatSettings:
        """What was stored, over the defaults; fields of other versions are left out."""
        return cls(
            _over(default.sampling, data.get("sampling")),
            _over(default.speculation, data.get("speculation")),
            data.get("max_tokens", default.max_tokens),
        )


Part = TypeVar("Part", SamplingSettings, SpeculationSettings)


def _over(default: Part, data: object) -> Part:
    if not isinstance(data, dict):
        return default
    names = {f.name for f in fields(default)}
    return replace(default, **{key: _frozen(value) for key, value in data.items() if key in names})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


@dataclass(slots=True)
class LiveTurn:
    """A turn that may still grow."""

    role: Role
    transcript: Transcript
    ending: Ending = "stop"
    note: str = ""

    @property
    def content(self) -> str:
        return self.transcript.content

    def to_turn(self) -> Turn:
        text = self.transcript
        spans = () if self.role == "user" else text.spans()
        return Turn(self.role, text.content, text.reasoning, self.ending, self.note, spans)


class Conversation:
    """One chat. It enters the store with its first message, not before."""

    def __init__(self, store: ChatStore, pair: str, settings: ChatSettings, system: str = "") -> None:
        self.store = store
        self.pair = pair
        self.settings = settings
        self.system = system
        self.title = ""
        self._named = False
        """The title is the user's own."""
        self.chat_id: int | None = None
        self.turns: list[LiveTurn] = []

    @classmethod
    def resume(cls, store: ChatStore, chat_id: int, default: ChatSettings) -> Conversation:
        """A stored chat, to be carried on.

        Raises:
            UsageError: there is no such chat.
        """
        chat = store.load(chat_id)
        self = cls(store, chat.pair, ChatSettings.from_data(chat.settings, default), chat.system)
        self.title, self.chat_id, self._named = chat.title, chat.id, True
        self.turns = [LiveTurn(t.role, Transcript.of_turn(t), t.ending, t.note) for t in chat.turns]
        return self

    @property
    def last_reply(self) -> LiveTurn | None:
        """The last assistant turn, if the chat ends with one."""
        return self.turns[-1] if self.turns and self.turns[-1].role == "assistant" else None

    def ask(self, text: str) -> LiveTurn:
        """Add a user turn and store it; returns the empty reply turn that follows it."""
        if self.chat_id is None:
            self.title = self.title or text
            self.chat_id = self.store.create(
                title=self.title, pair=self.pair, system=self.system, settings=self.settings.to_data()
            )
            self.title = self.store.load(self.chat_id).title
        self.turns.append(LiveTurn("user", Transcript.of_turn(Turn("user", text))))
        self._save(len(self.turns) - 1)
        return self._new_reply()

    def _new_reply(self) -> LiveTurn:
        self.turns.append(LiveTurn("assistant", Transcript()))
        return self.turns[-1]

    def save_reply(self) -> None:
        """Store the reply as far as it has come."""
        if self.last_reply is not None and self.last_reply.transcript.pieces:
            self._save(len(self.turns) - 1)

    def again(self) -> LiveTurn:
        """An empty reply in place of the last one, for the same question.

        The store keeps the old one until the new one has text.

        Raises:
            UsageError: there is no question yet.
        """
        if self.last_reply is not None:
            self.turns.pop()
        if not self.turns:
            raise UsageError("there is no message to answer yet")
        return self._new_reply()

    def take_back(self) -> str:
        """Forget the last question with its reply; returns its text."""
        if self.last_reply is not None:
            self.turns.pop()
        if not self.turns:
            raise UsageError("there is no message to edit yet")
        text = self.turns.pop().content
        if self.chat_id is not None:
            self.store.truncate(self.chat_id, len(self.turns))
        return text

    def forget_if_empty(self) -> None:
        """A chat whose only question was taken back is a new chat again."""
        if not self.turns and self.chat_id is not None:
            self.store.delete(self.chat_id)
            self.chat_id = None
            self.title = self.title if self._named else ""

    def carry_on(self) -> LiveTurn:
        """The last reply, to be continued.

        Raises:
            UsageError: the chat does not end with a reply that has text.
        """
        reply = self.last_reply
        if reply is None or not reply.content:
            raise UsageError("there is no reply to continue")
        reply.transcript.carry_on()
        return reply

    def request(self, *, continue_last: bool = False) -> Request:
        """The request whose answer becomes, or continues, the last reply."""
        turns = self.turns if continue_last else self.turns[:-1]
        system = (Message("system", self.system),) if self.system else ()
        return Request(
            messages=system + _messages(turns),
            sampling=self.settings.sampling,
            speculation=self.settings.speculation,
            max_tokens=self.settings.max_tokens,
            continue_last=continue_last,
            cache_key=f"{'incognito' if self.store.incognito else 'chat'}-{self.chat_id}",
        )

    def rename(self, title: str) -> None:
        """Give the chat a title, also before it has a message.

        Raises:
            UsageError: the title is empty.
        """
        if self.chat_id is not None:
            self.store.rename(self.chat_id, title)
        self.title, self._named = title, True

    def set_system(self, text: str) -> None:
        self.system = text
        if self.chat_id is not None:
            self.store.set_system(self.chat_id, text)

    def set_settings(self, settings: ChatSettings) -> None:
        self.settings = settings
        if self.chat_id is not None:
            self.store.set_settings(self.chat_id, settings.to_data())

    def _save(self, position: int) -> None:
        assert self.chat_id is not None
        self.store.put_turn(self.chat_id, position, self.turns[position].to_turn())


def _messages(turns: Sequence[LiveTurn]) -> tuple[Message, ...]:
    """The turns as messages. Questions that were never answered join the next one: many templates refuse
    two user messages in a row."""
    messages: list[Message] = []
    for turn in turns:
        reasoning = turn.transcript.reasoning
        extra = (("reasoning_content", reasoning),) if reasoning else ()
        if messages and messages[-1].role == turn.role == "user":
            messages[-1] = Message("user", f"{messages[-1].content}\n\n{turn.content}")
        else:
            messages.append(Message(turn.role, turn.content, extra))
    return tuple(messages)
