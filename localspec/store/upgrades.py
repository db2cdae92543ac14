"""Schema steps of the two databases, oldest first. A released step never changes: add another one."""

from __future__ import annotations

import sqlite3

from localspec.store.database import Upgrade


def chats_1(connection: sqlite3.Connection) -> None:
    """Chats and their turns."""
    connection.execute(
        """
        CREATE TABLE chats (
          id INTEGER PRIMARY KEY AUTOINCREMENT,
          title TEXT NOT NULL,
          pair TEXT NOT NULL,
          system TEXT NOT NULL DEFAULT '',
          settings TEXT NOT NULL DEFAULT '{}',
          created_at REAL NOT NULL,
          updated_at REAL NOT NULL
        )
        """
    )
    connection.execute(
        """
        CREATE TABLE turns (
          id INTEGER PRIMARY KEY AUTOINCREMENT,
          chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
          position INTEGER NOT NULL,
          role TEXT NOT NULL,
          content TEXT NOT NULL,
          reasoning TEXT NOT NULL DEFAULT '',
          ending TEXT NOT NULL DEFAULT 'stop',
          note TEXT NOT NULL DEFAULT '',
          created_at REAL NOT NULL,
          UNIQUE (chat_id, position)
        )
        """
    )
    connection.execute("CREATE INDEX chats_by_update ON chats(updated_at)")


def chats_2(connection: sqlite3.Connection) -> None:
    """Which parts of a reply were drafted, for the token view of a reopened chat."""
    connection.execute("ALTER TABLE turns ADD COLUMN spans TEXT NOT NULL DEFAULT '[]'")


def measurements_1(connection: sqlite3.Connection) -> None:
    """JSON values by configuration and kind."""
    connection.execute(
        """
        CREATE TABLE measurements (
          config TEXT NOT NULL,
          kind TEXT NOT NULL,
          value TEXT NOT NULL,
          updated_at REAL NOT NULL,
          PRIMARY KEY (config, kind)
        )
        """
    )


CHATS: tuple[Upgrade, ...] = (chats_1, chats_2)
MEASUREMENTS: tuple[Upgrade, ...] = (measurements_1,)
