"""Dialogs of the picker: choose one of several, and describe a new pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Static

from localspec.tui.text import one_line


class Choose(ModalScreen[int | None]):
    """Ends with the number of the chosen row, or None."""

    BINDINGS = [Binding("escape", "dismiss(None)", "leave")]  # noqa: RUF012

    def __init__(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> None:
        """`empty` is said where there is no row."""
        super().__init__()
        self._title = title
        self._columns = columns
        self._rows = rows
        self._empty = empty

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static(self._title, classes="heading", markup=False)
            yield DataTable(cursor_type="row", id="choices")
            yield Static(self._empty if not self._rows else "", markup=False)
            yield Static("Enter chooses · Esc leaves", classes="keys", markup=False)

    def on_mount(self) -> None:
        table: DataTable[Text] = self.query_one("#choices", DataTable)
        table.add_columns(*self._columns)
        for number, row in enumerate(self._rows):
            table.add_row(*(Text(one_line(cell, 60)) for cell in row), key=str(number))
        table.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.dismiss(int(event.row_key.value or 0))


@dataclass(frozen=True, slots=True)
class NewPair:
    """A pair as a person describes it; paths, or `owner/repo:file`."""

    name: str = ""
    target: str = ""
    draft: str = ""
    """Empty: the target drafts for itself, or n-grams do."""


class AddPair(ModalScreen[NewPair | None]):
    """Asks for name, target and draft; ends with None when left."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape", "dismiss(None)", "leave"),
        Binding("ctrl+s", "save", "save", priority=True),
    ]
    FIELDS = (
        ("name", "name of the pair: small letters, digits, . _ -"),
        ("target", "target: /path/to/file.gguf or owner/repo:file.gguf"),
        ("draft", "draft, may stay empty: n-grams draft then"),
    )

    def __init__(self, pair: NewPair) -> None:
        super().__init__()
        self._pair = pair

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Add a pair", classes="heading", markup=False)
            for field, about in self.FIELDS:
                yield Static(about, markup=False)
                yield Input(getattr(self._pair, field), id=f"new-{field}", compact=True)
            yield Static(id="new-missing", markup=False)
            yield Static("Enter: next field, then save · Esc leaves", classes="keys", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "new-draft":
            self.action_save()
        else:
            self.focus_next()

    def action_save(self) -> None:
        pair = NewPair(
            **{field: self.query_one(f"#new-{field}", Input).value.strip() for field, _ in self.FIELDS}
        )
        if pair.name and pair.target:
            self.dismiss(pair)
        else:
            self.query_one("#new-missing", Static).update("a name and a target are needed")
