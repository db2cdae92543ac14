"""The one object that writes for a command: data to stdout, narration to stderr.

It is decided once, at the edge, whether data is text or JSON, whether narration is wanted and whether a
progress bar may be drawn. It knows nothing of commands. Text of a model is written as it is, never through
anything that reads markup; on a terminal its control characters become visible symbols, because a model
must not be able to move the cursor or set the window title.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import time
import unicodedata
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

from localspec.errors import LocalspecError

Unit = Literal["", "tokens", "bytes", "memory", "requests"]
NARRATION_INTERVAL_S = 10.0
"""Seconds between progress lines when stderr is no terminal."""

_VISIBLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_VISIBLE |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


class Progress(Protocol):
    """A running piece of work that shows how far it is."""

    def update(self, done: float | None = None, label: str | None = None) -> None:
        """Report the amount done so far, or a new label, or both."""


@dataclasses.dataclass(frozen=True)
class Output:
    """Where and how a command writes."""

    out: TextIO
    err: TextIO
    json: bool = False
    """Data is JSON: one document, or one object per line where it streams."""
    quiet: bool = False
    """No narration and no progress; warnings and errors stay."""
    out_is_terminal: bool = False
    draws: bool = False
    """stderr can show a progress bar."""
    colour: bool = False
    """stderr may be coloured."""
    _bars: list[_Bar] = dataclasses.field(default_factory=list, repr=False, compare=False)
    """Bars on the screen now, the newest last."""

    @classmethod
    def decide(
        cls, out: TextIO | None, err: TextIO | None, environ: Mapping[str, str], *, json: bool = False,
        quiet: bool = False,
    ) -> Output:  # fmt: skip
        """Look at the streams and NO_COLOR / TERM once. A closed stream (None) swallows what it is given."""
        out, err = out or io.StringIO(), err or io.StringIO()
        out_is_terminal = out.isatty()
        if isinstance(out, io.TextIOWrapper) and not out_is_terminal:
            # Files and pipes are UTF-8 whatever the locale; a stray surrogate of an argument is no crash.
            encoding = None if environ.get("PYTHONIOENCODING") else "utf-8"
            out.reconfigure(encoding=encoding, errors="backslashreplace")
        draws = err.isatty() and environ.get("TERM") != "dumb"
        colour = draws and not environ.get("NO_COLOR")
        return cls(out, err, json, quiet, out_is_terminal, draws, colour)

    def text(self, piece: str) -> None:
        """Write a piece of streamed text to stdout, at once and unchanged; a bar makes room for it.

        Raises:
            BrokenPipeError: the reader has gone.
            LocalspecError: it cannot be written, for example on a full disk.
        """
        if self.out_is_terminal:
            for bar in self._bars:
                bar.stop()
        try:
            self.out.write(piece.translate(_VISIBLE) if self.out_is_terminal else piece)
            self.out.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise LocalspecError(f"cannot write to stdout: {error.strerror}") from error

    def line(self, text: str = "") -> None:
        self.text(text + "\n")

    def record(self, value: object) -> None:
        """Write one JSON object on one line to stdout."""
        self.line(to_json(value))

    def report(self, value: object, human: str) -> None:
        """Write a result to stdout: `value` as one JSON document in JSON mode, else `human`."""
        self.line(to_json(value, indent=2) if self.json else human)

    def note(self, text: str) -> None:
        """Narrate on stderr."""
        if not self.quiet:
            self._narrate(text)

    def warn(self, text: str) -> None:
        self._narrate(f"warning: {text}")

    def error(self, message: str, hint: str | None = None) -> None:
        self._narrate(f"error: {message}" + (f"\nhint: {hint}" if hint else ""))

    def _narrate(self, text: str) -> None:
        shown = text.translate(_VISIBLE)
        if self._bars:
            self._bars[-1].print_above(shown)
        else:
            self.err.write(shown + "\n")
            self.err.flush()

    @contextmanager
    def progress(
        self, label: str, total: float | None = None, unit: Unit = "", *,
        clock: Callable[[], float] = time.monotonic,
    ) -> Generator[Progress, None, None]:  # fmt: skip
        """Show progress on stderr while the block runs: a bar on a terminal, else a line every 10 s.

        `total` is in units of `unit`; None means unknown. Without a unit only the share is shown.
        """
        if self.quiet:
            yield _Silent()
        elif self.draws:
            bar = _Bar(self.err, label, total, unit, colour=self.colour)
            self._bars.append(bar)
            try:
                yield bar
            finally:
                self._bars.remove(bar)
                bar.stop()
        else:
            yield _Lines(self.note, label, total, unit, clock)


class _Silent:
    def update(self, done: float | None = None, label: str | None = None) -> None:
        pass


class _Lines:
    def __init__(
        self, write: Callable[[str], None], label: str, total: float | None, unit: Unit,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._write, self._label, self._total, self._unit, self._clock = write, label, total, unit, clock
        self._next = clock() + NARRATION_INTERVAL_S

    def update(self, done: float | None = None, label: str | None = None) -> None:
        self._label = label or self._label
        now = self._clock()
        if now < self._next:
            return
        self._next = now + NARRATION_INTERVAL_S
        self._write(f"{self._label}{self._amount(done)}")

    def _amount(self, done: float | None) -> str:
        if done is None:
            return " …"
        shown = amount(done, self._unit)
        if not self._total:
            return f": {shown}"
        percent = f"{100 * done / self._total:.0f} %"
        return f": {shown} of {amount(self._total, self._unit)} ({percent})" if self._unit else f": {percent}"


class _Bar:
    """A bar drawn by rich; labels are plain text to it."""

    def __init__(self, err: TextIO, label: str, total: float | None, unit: Unit, *, colour: bool) -> None:
        # rich costs 60 ms to import and only a terminal needs it.
        from rich import progress
        from rich.console import Console

        columns: list[progress.ProgressColumn] = [progress.TextColumn("{task.description}", markup=False)]
        if total is None:
            columns += [progress.SpinnerColumn(), progress.TimeElapsedColumn()]
        else:
            columns += [progress.BarColumn(), progress.TaskProgressColumn(), progress.TimeRemainingColumn()]
        if unit == "bytes":
            columns += [progress.DownloadColumn(), progress.TransferSpeedColumn()]
        console = Console(file=err, no_color=not colour, highlight=False)
        self._progress = progress.Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task(label, total=total)
        self._progress.start()

    def update(self, done: float | None = None, label: str | None = None) -> None:
        self._progress.update(self._task, completed=done, description=label)

    def print_above(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the bar off the screen, for good."""
        self._progress.stop()


def amount(value: float, unit: Unit = "") -> str:
    """A quantity for people: `300 tokens`, `1.5 GB` of a file, `1.4 GiB` of memory."""
    if unit == "memory":
        return f"{value / 2**30:.1f} GiB"
    if unit != "bytes":
        return f"{value:g} {unit}".rstrip()
    size = float(value)
    for prefix in ("", "k", "M", "G"):
        if size < 1000 or prefix == "G":
            break
        size /= 1000
    return f"{size:.0f} {prefix}B" if prefix in ("", "k") else f"{size:.1f} {prefix}B"


def to_json(value: object, *, indent: int | None = None) -> str:
    """JSON text of plain data, dataclasses, paths and named tuples. A number that is not finite is null."""
    return json.dumps(_plain(value), ensure_ascii=False, indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return os.fspath(value) if isinstance(value, Path) else value


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> str:
    """Aligned columns for a terminal or a file; the column numbers in `right` are aligned to the right.

    A table is never cut to the width of the terminal: what was measured must stay readable in a pipe.
    """
    cells = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(width(row[column]) for row in cells) for column in range(len(headers))]

    def pad(cell: str, column: int) -> str:
        gap = " " * (widths[column] - width(cell))
        return gap + cell if column in right else cell + gap

    lines = ["  ".join(pad(cell, column) for column, cell in enumerate(row)).rstrip() for row in cells]
    lines.insert(1, "  ".join("─" * size for size in widths))
    return "\n".join(lines)


def width(text: str) -> int:
    """Terminal cells a text takes: wide characters two, combining ones none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
