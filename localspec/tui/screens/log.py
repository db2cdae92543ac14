"""The end of the log (F9) and where it lies: what llama.cpp said, and tracebacks."""

from __future__ import annotations

from pathlib import Path

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import RichLog, Static

from localspec.tui.text import visible

TAIL_BYTES = 50_000
REFRESH_S = 1.0


class LogScreen(ModalScreen[None]):
    """Follows the log until a key leaves it."""

    BINDINGS = [Binding("escape,f9,q", "dismiss", "leave")]  # noqa: RUF012

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._shown = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static(f"{self._path} · Esc leaves", classes="heading", markup=False)
            yield RichLog(wrap=True, min_width=20)

    def on_mount(self) -> None:
        self.query_one(RichLog).focus()
        self._refresh()
        self.set_interval(REFRESH_S, self._refresh)

    def _refresh(self) -> None:
        text = tail(self._path)
        if text != self._shown:
            self._shown = text
            log = self.query_one(RichLog)
            log.clear()
            log.write(text)


def tail(path: Path) -> str:
    """The last part of a file, made safe to draw; a sentence when there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - TAIL_BYTES))
            return visible(stream.read().decode("utf-8", "replace"))
    except OSError as error:
        return f"there is no log yet ({error.strerror})"
