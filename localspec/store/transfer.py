"""Chats as Markdown and JSON, and JSON back into chats. Text is written as it was, without draft marks."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from localspec.errors import UsageError
from localspec.store.chats import Chat, ChatStore, Turn

FORMAT = "localspec-chats"
VERSION = 1
_HEADINGS = {"user": "You", "assistant": "Model"}


def to_markdown(chat: Chat) -> str:
    """A chat as a readable document; reasoning is folded, the texts are unchanged."""
    when = datetime.fromtimestamp(chat.created_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    parts = [f"# {chat.title}\n\n{chat.pair} · {when}\n"]
    if chat.system:
        parts.append(f"## System\n\n{chat.system}\n")
    for turn in chat.turns:
        parts.append(f"## {_HEADINGS[turn.role]}\n")
        if turn.reasoning:
            parts.append(f"<details><summary>Reasoning</summary>\n\n{turn.reasoning}\n\n</details>\n")
        parts.append(f"{turn.content}\n")
        if turn.ending in ("cancelled", "error"):
            parts.append(f"*({'stopped' if turn.ending == 'cancelled' else turn.note or 'error'})*\n")
    return "\n".join(parts)


def to_json(chats: Iterable[Chat]) -> str:
    """Chats as one JSON document that `from_json` reads back."""
    return json.dumps(
        {"format": FORMAT, "version": VERSION, "chats": [_chat_to_data(chat) for chat in chats]},
        ensure_ascii=False,
        indent=1,
    )


def from_json(text: str, store: ChatStore) -> list[int]:
    """Add the chats of a document to a store; returns their new ids. Nothing is added when it is wrong.

    Raises:
        UsageError: it is no such document, or of a newer version; names what is wrong.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"this is no JSON: {error.msg} in line {error.lineno}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"this is no chat export: `format` is not `{FORMAT}`")
    if document.get("version") != VERSION:
        raise UsageError(f"this export has version {document.get('version')}, known is {VERSION}")
    chats = [_chat_from_data(data, number) for number, data in enumerate(_items(document, "chats"), 1)]
    ids = []
    for chat in chats:
        new = store.create(title=chat.title, pair=chat.pair, system=chat.system, settings=chat.settings)
        for position, turn in enumerate(chat.turns):
            store.put_turn(new, position, turn)
        ids.append(new)
    return ids


def _chat_to_data(chat: Chat) -> dict[str, Any]:
    return {
        "title": chat.title,
        "pair": chat.pair,
        "system": chat.system,
        "settings": dict(chat.settings),
        "created_at": chat.created_at,
        "turns": [
            {
                key: getattr(turn, key)
                for key in ("role", "content", "reasoning", "ending", "note", "created_at")
            }
            for turn in chat.turns
        ],
    }


def _items(data: dict[str, Any], key: str) -> list[Any]:
    value = data.get(key)
    if not isinstance(value, list):
        raise UsageError(f"`{key}` of this export is no list")
    return value


def _chat_from_data(data: Any, number: int) -> Chat:
    where = f"chat {number} of this export"
    if not isinstance(data, dict):
        raise UsageError(f"{where} is no object")
    turns = tuple(_turn_from_data(turn, where) for turn in _items(data, "turns"))
    settings = data.get("settings", {})
    return Chat(
        0, _text(data, "title", where), _text(data, "pair", where), _text(data, "system", where),
        settings if isinstance(settings, dict) else {}, 0.0, 0.0, turns,
    )  # fmt: skip


def _turn_from_data(data: Any, where: str) -> Turn:
    if not isinstance(data, dict) or data.get("role") not in _HEADINGS:
        raise UsageError(f"{where} has a turn whose `role` is neither `user` nor `assistant`")
    ending = data.get("ending", "stop")
    if ending not in ("stop", "length", "context", "cancelled", "error"):
        raise UsageError(f"{where} has a turn with the unknown ending `{ending}`")
    created_at = data.get("created_at", 0.0)
    return Turn(
        data["role"], _text(data, "content", where), _text(data, "reasoning", where), ending,
        _text(data, "note", where), (), float(created_at) if isinstance(created_at, int | float) else 0.0,
    )  # fmt: skip


def _text(data: dict[str, Any], key: str, where: str) -> str:
    value = data.get(key, "")
    if not isinstance(value, str):
        raise UsageError(f"`{key}` in {where} is no text")
    return value
