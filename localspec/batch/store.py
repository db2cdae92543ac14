"""Keeps results on disk: an append-only journal that survives any kill, and the output in order.

`OUT.journal` gets one line per result, synced before the next request starts; `OUT` is written behind it,
as far as the order allows, and can always be rebuilt. The journal goes away when the batch is complete.
Its first line says what the answers come from, so that two models never mix in one file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from localspec.atomic import replace_file
from localspec.batch.lines import Item
from localspec.batch.results import Result, parse_line
from localspec.download.lock import FileLock
from localspec.errors import LocalspecError, UsageError

VERSION = 1
OTHER_OUT = "choose another -o, or start over with --no-resume"


class Sequencer:
    """Lets lines through in the order of their items, or at once when order does not matter."""

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered
        self._waiting: dict[int, str] = {}
        self._next = 0

    def put(self, index: int, line: str) -> list[str]:
        """Take a line; the lines that may be written now."""
        if not self._ordered:
            return [line]
        self._waiting[index] = line
        ready: list[str] = []
        while self._next in self._waiting:
            ready.append(self._waiting.pop(self._next))
            self._next += 1
        return ready


class Store:
    """The output file of one run. Use it as a context manager: it holds a lock."""

    def __init__(self, out: Path, items: list[Item], source: dict[str, Any], *, ordered: bool) -> None:
        """
        Args:
            out: The output file.
            items: The whole input.
            source: What answers and how; a later run must say the same to go on with this file.
            ordered: Lines in the order of the input instead of the order in which they finish.
        """
        self._out_path = out
        self._journal_path = out.with_name(out.name + ".journal")
        self._items = {item.key: item for item in items}
        self._source = source
        self._sequencer = Sequencer(ordered=ordered)
        self._lock = FileLock(out.with_name(out.name + ".lock"))
        self._journal: BinaryIO | None = None
        self._out: BinaryIO | None = None
        self.done: dict[str, bool] = {}
        """Key → success of every finished item."""

    def __enter__(self) -> Store:
        with _disk(self._out_path):
            owner = self._lock.try_acquire()
        if owner is not None:
            raise UsageError(
                f"process {owner.pid} is writing `{self._out_path}`", hint="wait for it, or stop it"
            )
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self._journal, self._out):
            if stream is not None:
                stream.close()
        self._lock.release()

    def open(self, *, resume: bool) -> None:
        """Find what is finished and get ready to add to it; without `resume` start over.

        Raises:
            UsageError: the file holds results of another input, model or options.
            LocalspecError: it cannot be read or written.
        """
        with _disk(self._out_path):
            if not resume:
                self._journal_path.unlink(missing_ok=True)
                self._out_path.unlink(missing_ok=True)
            finished = self._read_journal()
            if finished is None:
                finished = self._read_output()
                self._begin_journal(finished.values())
            # What a kill left of OUT may lag behind or end in half a line; the journal knows better.
            ready: list[str] = []
            for key, line in finished.items():
                ready += self._sequencer.put(self._items[key].index, line)
            replace_file(self._out_path, _joined(ready))
            self._journal = self._journal_path.open("ab")
            self._out = self._out_path.open("ab")

    def add(self, result: Result) -> None:
        """Keep a result; when this returns it survives a power cut."""
        assert self._journal is not None and self._out is not None
        line = result.line()
        with _disk(self._out_path):
            self._journal.write(_joined([line]))
            _sync(self._journal)
            self.done[result.item.key] = result.ok
            self._out.write(_joined(self._sequencer.put(result.item.index, line)))
            self._out.flush()

    def finish(self) -> None:
        """The batch is complete: make the output durable and drop the journal."""
        assert self._journal is not None and self._out is not None
        with _disk(self._out_path):
            _sync(self._out)
            self._journal.close()
            self._journal_path.unlink()

    def _begin_journal(self, lines: Iterable[str]) -> None:
        head = json.dumps({"localspec_batch": VERSION, "source": self._source})
        with self._journal_path.open("wb") as journal:
            journal.write(_joined([head, *lines]))
            _sync(journal)

    def _read_journal(self) -> dict[str, str] | None:
        """Finished lines by key; None without a journal or with one that was killed in its first line."""
        try:
            data = self._journal_path.read_bytes()
        except FileNotFoundError:
            return None
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return None
        if len(whole) < len(data):
            os.truncate(self._journal_path, len(whole))
        head, *lines = whole.decode("utf-8", "replace").split("\n")
        begun = _source(head)
        if begun != self._source:
            raise UsageError(
                f"`{self._out_path}` was begun with {_short(begun)}, this run uses {_short(self._source)}",
                hint=OTHER_OUT,
            )
        return self._results(lines, self._journal_path)

    def _read_output(self) -> dict[str, str]:
        """Finished lines of a complete earlier run; empty without one."""
        try:
            text = self._out_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return {}
        return self._results(text.split("\n"), self._out_path)

    def _results(self, lines: Iterable[str], where: Path) -> dict[str, str]:
        found: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            parsed = parse_line(line)
            if parsed is None or parsed[0] not in self._items:
                raise UsageError(f"`{where}` line {number} is no result of this input", hint=OTHER_OUT)
            key, ok = parsed
            self.done[key] = ok
            found[key] = line
        return found


def _source(head: str) -> Any:
    try:
        value = json.loads(head)
    except ValueError:
        return None
    return (
        value.get("source") if isinstance(value, dict) and value.get("localspec_batch") == VERSION else None
    )


def _short(source: Any) -> str:
    return json.dumps(source, ensure_ascii=False)[:200]


def _joined(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


def _sync(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalspecError(f"cannot write `{path}`: {error.strerror}") from error
