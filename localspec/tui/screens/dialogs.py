"""Small dialogs: a text, and yes or no. Esc leaves them without an answer."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea


class AskText(ModalScreen[str | None]):
    """Asks for a text; ends with None when left."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape", "dismiss(None)", "leave"),
        Binding("ctrl+s", "save", "save", priority=True),
    ]

    def __init__(self, title: str, text: str, *, lines: bool = False) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._lines = lines

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._title, classes="heading", markup=False)
            yield TextArea(self._text, soft_wrap=True) if self._lines else Input(self._text)
            keys = "Ctrl+S saves, Esc leaves" if self._lines else "Enter saves, Esc leaves"
            yield Static(keys, classes="keys", markup=False)

    def on_input_submitted(self) -> None:
        self.action_save()

    def action_save(self) -> None:
        self.dismiss(self.query_one(TextArea).text if self._lines else self.query_one(Input).value)


class Confirm(ModalScreen[bool]):
    """Asks yes or no; no is what Enter says."""

    BINDINGS = [  # noqa: RUF012
        Binding("y", "dismiss(True)", "yes"),
        Binding("n,escape,enter", "dismiss(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False)
            yield Static("y: yes   n, Enter or Esc: no", classes="keys", markup=False)
