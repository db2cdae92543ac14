"""The list of chats (F6): search, open, rename, delete, export."""

from __future__ import annotations

from datetime import datetime

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Static

from localspec.errors import LocalspecError
from localspec.store import ChatStore
from localspec.store.transfer import to_json
from localspec.tui.screens.dialogs import AskText, Confirm
from localspec.tui.text import counted, one_line


class ChatsScreen(ModalScreen[int | None]):
    """Ends with the id of the chat to open, or None. Letters are keys only while the table has focus."""

    BINDINGS = [  # noqa: RUF012
        Binding("escape", "dismiss(None)", "leave"),
        Binding("slash", "search", "search"),
        Binding("r", "rename", "rename"),
        Binding("d,delete", "delete", "delete"),
        Binding("e", "export_all", "export all"),
    ]

    def __init__(self, store: ChatStore) -> None:
        super().__init__()
        self._store = store

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Input(placeholder="search titles and texts", id="chats-search")
            yield DataTable(cursor_type="row", id="chats-table")
            yield Static(id="chats-note", markup=False)
            yield Static(
                "Enter opens · / search · r rename · d delete · e export all · Esc leaves",
                classes="keys",
                markup=False,
            )

    def on_mount(self) -> None:
        table = self._table
        table.add_column("changed", width=16)
        table.add_column("title")
        table.add_column("pair")
        table.add_column("messages")
        self._fill()
        table.focus()

    @property
    def _table(self) -> DataTable[Text]:
        return self.query_one("#chats-table", DataTable)

    def _fill(self) -> None:
        query = self.query_one("#chats-search", Input).value
        table, row = self._table, self._table.cursor_row
        table.clear()
        chats = self._store.find(query)
        for chat in chats:
            changed = datetime.fromtimestamp(chat.updated_at).strftime("%Y-%m-%d %H:%M")
            # A Text, because a table reads a str as markup.
            cells = [changed, one_line(chat.title, 60), one_line(chat.pair, 30), str(chat.turns)]
            table.add_row(*(Text(cell) for cell in cells), key=str(chat.id))
        table.move_cursor(row=min(row, max(0, len(chats) - 1)))
        note = "" if chats else f"no chat has “{query}”" if query else "no chats yet"
        self.query_one("#chats-note", Static).update(note)

    def _current(self) -> int | None:
        if not self._table.row_count:
            return None
        key = self._table.coordinate_to_cell_key(self._table.cursor_coordinate).row_key
        return int(key.value or 0)

    def on_input_changed(self) -> None:
        self._fill()

    def on_input_submitted(self) -> None:
        self._table.focus()

    def on_data_table_row_selected(self) -> None:
        self.dismiss(self._current())

    def action_search(self) -> None:
        self.query_one("#chats-search", Input).focus()

    def action_rename(self) -> None:
        chat_id = self._current()
        if chat_id is None:
            return

        def done(title: str | None) -> None:
            if title is not None and title.strip():
                self._store.rename(chat_id, title)
                self._fill()

        self.app.push_screen(AskText("Title", self._store.load(chat_id).title), done)

    def action_delete(self) -> None:
        chat_id = self._current()
        if chat_id is None:
            return

        def done(sure: bool | None) -> None:
            if sure:
                self._store.delete(chat_id)
                self._fill()

        self.app.push_screen(Confirm(f"Delete “{self._store.load(chat_id).title}”?"), done)

    def action_export_all(self) -> None:
        """Write every listed chat into one JSON file in the current folder."""
        from localspec.tui.commands.chats import free_path

        path = free_path("localspec-chats", ".json")
        chats = [self._store.load(row.id) for row in self._store.find(self.query_one(Input).value)]
        try:
            path.write_text(to_json(chats), encoding="utf-8")
        except OSError as error:
            self.notify(f"{path} cannot be written: {error.strerror}", severity="error", markup=False)
        except LocalspecError as error:
            self.notify(error.message, severity="error", markup=False)
        else:
            self.notify(f"exported {counted(len(chats), 'chat')} to {path}", markup=False)
