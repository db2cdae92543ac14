"""Chats in a SQLite file: the only door to it. Knows nothing of screens, models or the engine.

One object may be used from several threads, and several processes may hold the same file.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from localspec.errors import UsageError
from localspec.store import search
from localspec.store.database import open_database, transaction
from localspec.store.upgrades import CHATS

Role = Literal["user", "assistant"]
Ending = Literal["stop", "length", "context", "cancelled", "error"]
TITLE_CHARS = 60


@dataclass(frozen=True, slots=True)
class Span:
    """A run of text of one reply that came the same way; in the order it was written."""

    channel: Literal["content", "reasoning"]
    from_draft: bool
    round: int
    """0-based round of the reply."""
    length: int
    """Characters of the channel's text."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat."""

    role: Role
    content: str
    reasoning: str = ""
    ending: Ending = "stop"
    """How an assistant turn ended; `stop` for a user turn."""
    note: str = ""
    """One line about the turn: its rates, or the error that ended it."""
    spans: tuple[Span, ...] = ()
    created_at: float = 0.0
    """Seconds since 1970; 0 = now, filled in when stored."""


@dataclass(frozen=True, slots=True)
class ChatSummary:
    """A row of the list of chats."""

    id: int
    title: str
    pair: str
    turns: int
    updated_at: float


@dataclass(frozen=True, slots=True)
class Chat:
    """A whole conversation."""

    id: int
    title: str
    pair: str
    system: str
    settings: Mapping[str, Any]
    """Plain JSON data: what the chat screen keeps per chat."""
    created_at: float
    updated_at: float
    turns: tuple[Turn, ...] = ()


class ChatStore:
    """The chats of a file, or of memory when `path` is None (incognito)."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """Open the file and upgrade it if needed.

        Raises:
            LocalspecError: a newer version wrote it, or it cannot be opened.
        """
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._connection = open_database(path, CHATS)
        self._fts5 = search.has_fts5(self._connection)
        with self._write():
            search.prepare(self._connection, fts5=self._fts5)

    @property
    def incognito(self) -> bool:
        return self.path is None

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _write(self) -> Iterator[None]:
        with self._lock, transaction(self._connection):
            yield

    def create(
        self, *, title: str, pair: str, system: str = "", settings: Mapping[str, Any] | None = None
    ) -> int:
        """A new chat; returns its id."""
        now = self._clock()
        with self._write():
            cursor = self._connection.execute(
                "INSERT INTO chats(title, pair, system, settings, created_at, updated_at)"
                " VALUES (?,?,?,?,?,?)",
                (shorten(title), pair, storable(system), json.dumps(settings or {}), now, now),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def load(self, chat_id: int) -> Chat:
        """A chat with its turns.

        Raises:
            UsageError: there is no such chat.
        """
        with self._lock:
            row = self._row(chat_id)
            turns = self._connection.execute(
                "SELECT * FROM turns WHERE chat_id = ? ORDER BY position", (chat_id,)
            ).fetchall()
        return Chat(
            row["id"], row["title"], row["pair"], row["system"], json.loads(row["settings"]),
            row["created_at"], row["updated_at"], tuple(_turn(turn) for turn in turns),
        )  # fmt: skip

    def put_turn(self, chat_id: int, position: int, turn: Turn) -> None:
        """Write a turn at a 0-based position, over the one that is there."""
        now = self._clock()
        with self._write():
            self._row(chat_id)
            values = (
                turn.role, storable(turn.content), storable(turn.reasoning), turn.ending, storable(turn.note),
                _spans_to_json(turn.spans), turn.created_at or now,
            )  # fmt: skip
            self._connection.execute(
                """INSERT INTO turns(chat_id, position, role, content, reasoning, ending, note, spans,
                                     created_at)
                   VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT(chat_id, position) DO UPDATE SET
                   role = excluded.role, content = excluded.content, reasoning = excluded.reasoning,
                   ending = excluded.ending, note = excluded.note, spans = excluded.spans""",
                (chat_id, position, *values),
            )
            self._touch(chat_id, now)

    def truncate(self, chat_id: int, length: int) -> None:
        """Drop all turns from the 0-based position `length` on."""
        with self._write():
            self._row(chat_id)
            self._connection.execute(
                "DELETE FROM turns WHERE chat_id = ? AND position >= ?", (chat_id, length)
            )
            self._touch(chat_id, self._clock())

    def rename(self, chat_id: int, title: str) -> None:
        """Give a chat another title.

        Raises:
            UsageError: there is no such chat, or the title is empty.
        """
        if not title.strip():
            raise UsageError("a chat's title cannot be empty")
        self._set(chat_id, "title", shorten(title))

    def set_system(self, chat_id: int, system: str) -> None:
        self._set(chat_id, "system", storable(system))

    def set_settings(self, chat_id: int, settings: Mapping[str, Any]) -> None:
        self._set(chat_id, "settings", json.dumps(settings))

    def delete(self, chat_id: int) -> None:
        """Remove a chat and its turns.

        Raises:
            UsageError: there is no such chat.
        """
        with self._write():
            self._row(chat_id)
            self._connection.execute("DELETE FROM chats WHERE id = ?", (chat_id,))

    def find(self, query: str = "", *, limit: int = 500) -> list[ChatSummary]:
        """Chats, the last changed first; with `query` those whose title or text holds all its words."""
        where: str = ""
        values: list[str] = []
        if query.split():
            ids, values = search.matching_chats(query, fts5=self._fts5)
            where = f"WHERE chats.id IN ({ids})"
        with self._lock:
            rows = self._connection.execute(
                f"""SELECT chats.id, title, pair, updated_at,
                    (SELECT count(*) FROM turns WHERE chat_id = chats.id) AS turns
                    FROM chats {where} ORDER BY updated_at DESC, chats.id DESC LIMIT ?""",
                (*values, limit),
            ).fetchall()
        return [ChatSummary(r["id"], r["title"], r["pair"], r["turns"], r["updated_at"]) for r in rows]

    def recent_prompts(self, limit: int = 100) -> tuple[str, ...]:
        """The user's last different prompts, oldest first."""
        with self._lock:
            rows = self._connection.execute(
                """SELECT content FROM turns WHERE role = 'user'
                   GROUP BY content ORDER BY max(id) DESC LIMIT ?""",
                (limit,),
            ).fetchall()
        return tuple(row["content"] for row in reversed(rows))

    def _set(self, chat_id: int, column: Literal["title", "system", "settings"], value: str) -> None:
        with self._write():
            self._row(chat_id)
            self._connection.execute(f"UPDATE chats SET {column} = ? WHERE id = ?", (value, chat_id))

    def _touch(self, chat_id: int, now: float) -> None:
        self._connection.execute("UPDATE chats SET updated_at = ? WHERE id = ?", (now, chat_id))

    def _row(self, chat_id: int) -> sqlite3.Row:
        row: sqlite3.Row | None = self._connection.execute(
            "SELECT * FROM chats WHERE id = ?", (chat_id,)
        ).fetchone()
        if row is None:
            raise UsageError(f"there is no chat {chat_id}", hint="`/chats` or F6 lists them")
        return row


def shorten(title: str) -> str:
    """A title in one line."""
    line = " ".join(storable(title).split())
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1].rstrip() + "…"


def storable(text: str) -> str:
    """The text, with lone surrogates (an escape in a JSON import) replaced: SQLite keeps UTF-8."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _turn(row: sqlite3.Row) -> Turn:
    return Turn(
        row["role"], row["content"], row["reasoning"], row["ending"], row["note"],
        _spans_from_json(row["spans"]), row["created_at"],
    )  # fmt: skip


def _spans_to_json(spans: Iterable[Span]) -> str:
    return json.dumps(
        [[s.channel == "reasoning", s.from_draft, s.round, s.length] for s in spans], separators=(",", ":")
    )


def _spans_from_json(text: str) -> tuple[Span, ...]:
    return tuple(
        Span("reasoning" if reasoning else "content", bool(draft), round_, length)
        for reasoning, draft, round_, length in json.loads(text)
    )
