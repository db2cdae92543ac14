"""Full-text search over turns: an FTS5 trigram index where SQLite has it, LIKE elsewhere.

The index is derived data, so it is no schema step: a file may travel between builds of SQLite with and
without FTS5. Trigrams find parts of words, code and scripts without spaces; terms under three characters
cannot use them and take the LIKE way.
"""

from __future__ import annotations

import sqlite3

TRIGRAM = 3
_TRIGGERS = {
    "turns_fts_insert": """AFTER INSERT ON turns BEGIN
        INSERT INTO turns_fts(rowid, content) VALUES (new.id, new.content); END""",
    "turns_fts_delete": """AFTER DELETE ON turns BEGIN
        INSERT INTO turns_fts(turns_fts, rowid, content) VALUES ('delete', old.id, old.content); END""",
    "turns_fts_update": """AFTER UPDATE OF content ON turns BEGIN
        INSERT INTO turns_fts(turns_fts, rowid, content) VALUES ('delete', old.id, old.content);
        INSERT INTO turns_fts(rowid, content) VALUES (new.id, new.content); END""",
}


def has_fts5(connection: sqlite3.Connection) -> bool:
    """Whether this SQLite can keep a trigram index."""
    try:
        connection.execute("CREATE VIRTUAL TABLE temp.probe USING fts5(x, tokenize='trigram')")
    except sqlite3.OperationalError:
        return False
    connection.execute("DROP TABLE temp.probe")
    return True


def prepare(connection: sqlite3.Connection, *, fts5: bool) -> None:
    """Bring index and triggers in step with what this SQLite can do. Call it inside a transaction."""
    present = {
        row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'turns_fts%'")
    }
    if not fts5:
        for name in present & _TRIGGERS.keys():
            connection.execute(f"DROP TRIGGER {name}")
        return
    if present >= _TRIGGERS.keys():
        return
    if "turns_fts" not in present:
        connection.execute(
            "CREATE VIRTUAL TABLE turns_fts USING fts5("
            "content, content='turns', content_rowid='id', tokenize='trigram')"
        )
    for name, body in _TRIGGERS.items():
        connection.execute(f"CREATE TRIGGER IF NOT EXISTS {name} {body}")
    connection.execute("INSERT INTO turns_fts(turns_fts) VALUES ('rebuild')")


def matching_chats(text: str, *, fts5: bool) -> tuple[str, list[str]]:
    """SQL that selects the ids of chats whose title or turns hold every word of `text`, and its values."""
    words = text.split()
    title = " AND ".join(["title LIKE ? ESCAPE '\\'"] * len(words))
    patterns = ["%" + _escape(word) + "%" for word in words]
    if fts5 and all(len(word) >= TRIGRAM for word in words):
        query = " AND ".join('"' + word.replace('"', '""') + '"' for word in words)
        turns = "SELECT rowid FROM turns_fts WHERE turns_fts MATCH ?"
        return _either(title, f"turns.id IN ({turns})"), [*patterns, query]
    content = " AND ".join(["turns.content LIKE ? ESCAPE '\\'"] * len(words))
    return _either(title, content), [*patterns, *patterns]


def _either(title: str, turn: str) -> str:
    return f"SELECT id FROM chats WHERE {title} UNION SELECT chat_id FROM turns WHERE {turn}"


def _escape(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
