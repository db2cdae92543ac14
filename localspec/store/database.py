"""Opens a SQLite file that several processes may use, and brings it to the newest schema.

`user_version` counts the upgrade steps that a file has seen. Knows no table.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from localspec.errors import LocalspecError

Upgrade = Callable[[sqlite3.Connection], None]
BUSY_TIMEOUT_S = 5.0
MEMORY = ":memory:"


def open_database(path: Path | None, upgrades: Sequence[Upgrade]) -> sqlite3.Connection:
    """Open or create a database and apply the upgrades it lacks, one transaction for all of them.

    Args:
        path: The file; None = in memory, gone when the connection closes.
        upgrades: Step n turns schema version n into n + 1.

    Raises:
        LocalspecError: the file was written by a newer version, is no database, or cannot be written.
    """
    name = str(path) if path else MEMORY
    try:
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
        # One connection may serve several threads: its users take a lock.
        connection = sqlite3.connect(
            name, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            _upgrade(connection, name, upgrades)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise LocalspecError(
            f"the database {name} cannot be opened: {error}",
            hint="check its permissions and the free disk space, or move it away to start a new one",
        ) from error
    connection.row_factory = sqlite3.Row
    return connection


def _upgrade(connection: sqlite3.Connection, name: str, upgrades: Sequence[Upgrade]) -> None:
    _check_version(connection, name, len(upgrades))  # before anything is written, the journal mode included
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA journal_mode = WAL")  # readers and one writer at once
    connection.execute("PRAGMA synchronous = NORMAL")
    with transaction(connection):
        version = _check_version(connection, name, len(upgrades))  # another process may have been faster
        for step in upgrades[version:]:
            step(connection)
        connection.execute(f"PRAGMA user_version = {len(upgrades)}")


def _check_version(connection: sqlite3.Connection, name: str, known: int) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > known:
        raise LocalspecError(
            f"the database {name} has schema {version}, this localspec knows {known}",
            hint="a newer localspec wrote it: upgrade localspec, or move the file away to start a new one",
        )
    return version


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything or nothing; takes the write lock at once, so that no half-read state is written over.

    Raises:
        LocalspecError: another process holds the lock for too long, or the disk is full.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise LocalspecError(f"the database cannot be written: {error}") from error
