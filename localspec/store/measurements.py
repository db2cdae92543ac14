"""What was measured on this machine: JSON values under a configuration and a kind.

A configuration names everything that moves a measurement: target, draft, device, llama.cpp build,
threads and KV types. Policy (cost tables, acceptance), bench (baselines, best settings) and planning
(allocated bytes) each keep their own kinds. What a value means is its writer's business.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localspec.errors import LocalspecError
from localspec.store.database import open_database, transaction
from localspec.store.upgrades import MEASUREMENTS


@dataclass(frozen=True, slots=True)
class MeasurementKey:
    """A configuration; two that differ in any field never share a value."""

    target: str
    """Identity of the target's weights, a digest of its file."""
    draft: str
    """The same of the draft; "" = none."""
    device: str
    build: str
    """llama.cpp version and backends."""
    threads: int
    kv: tuple[str, str]
    draft_kv: tuple[str, str] = ("f16", "f16")

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


class Measurements:
    """The measurements of a file, or of memory when `path` is None."""

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.time) -> None:
        """Open the file and upgrade it if needed.

        Raises:
            LocalspecError: a newer version wrote it, or it cannot be opened.
        """
        self._clock = clock
        self._lock = threading.Lock()
        self._connection = open_database(path, MEASUREMENTS)

    def get(self, key: MeasurementKey, kind: str) -> Any:
        """The value, or None when this was never measured.

        Raises:
            LocalspecError: the database is closed or cannot be read.
        """
        rows = self._rows("SELECT value FROM measurements WHERE config = ? AND kind = ?", (key.text(), kind))
        return json.loads(rows[0]["value"]) if rows else None

    def put(self, key: MeasurementKey, kind: str, value: Any) -> None:
        """Store plain JSON data over what was there; the last writer wins."""
        with self._lock, transaction(self._connection):
            self._connection.execute(
                "INSERT OR REPLACE INTO measurements(config, kind, value, updated_at) VALUES (?,?,?,?)",
                (key.text(), kind, json.dumps(value, allow_nan=False), self._clock()),
            )

    def forget(self, key: MeasurementKey, kind: str | None = None) -> int:
        """Delete one kind, or all, of a configuration; returns how many."""
        with self._lock, transaction(self._connection):
            return self._connection.execute(
                "DELETE FROM measurements WHERE config = ? AND kind = coalesce(?, kind)", (key.text(), kind)
            ).rowcount

    def items(self, kind: str) -> list[tuple[MeasurementKey, Any, float]]:
        """All values of a kind with their time in seconds since 1970, newest first.

        Raises:
            LocalspecError: the database is closed or cannot be read.
        """
        rows = self._rows(
            "SELECT config, value, updated_at FROM measurements WHERE kind = ? ORDER BY updated_at DESC",
            (kind,),
        )
        return [(_key(row["config"]), json.loads(row["value"]), row["updated_at"]) for row in rows]

    def _rows(self, query: str, values: tuple[str, ...]) -> list[sqlite3.Row]:
        try:
            with self._lock:
                return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise LocalspecError(f"the measurements cannot be read: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _key(text: str) -> MeasurementKey:
    data = json.loads(text)
    return MeasurementKey(**data | {"kv": tuple(data["kv"]), "draft_kv": tuple(data["draft_kv"])})
