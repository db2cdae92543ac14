"""Settings (F7), one field for each row of the table of settings; a change counts when its field is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from localspec.errors import UsageError
from localspec.tui.changing import CHANGEABLE, changed, shown, value_of

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen

TITLES = {
    "sampling": "Sampling, from the next reply",
    "speculation": "Speculation, from the next reply",
    "request": "Replies, from the next one",
    "load": "Model, after /reload",
}


class SettingsScreen(ModalScreen[None]):
    """Edits the settings that a chat screen holds."""

    BINDINGS = [Binding("escape,f7", "leave", "leave")]  # noqa: RUF012

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__()
        self._chat = chat

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide"):
            yield Static("Settings · empty = default · Esc leaves", classes="heading", markup=False)
            for section, title in TITLES.items():
                yield Static(title, classes="heading", markup=False)
                for key, setting in CHANGEABLE.items():
                    if setting.section == section:
                        yield self._row(key, setting.help)

    def _row(self, key: str, about: str) -> Horizontal:
        value = self._shown(key)
        lines = value.count("\n") + 1
        field = Input(
            value if lines == 1 else f"({lines} lines, from the config file)", name=key, compact=True,
            placeholder="default", disabled=lines > 1,
        )  # fmt: skip
        return Horizontal(
            Static(key, classes="key", markup=False), field, Static(about, classes="about", markup=False),
            classes="setting",
        )  # fmt: skip

    def _shown(self, key: str) -> str:
        return shown(key, value_of(self._chat.held, key))

    def on_mount(self) -> None:
        self.query(Input).first().focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._take(event.input)

    def on_input_blurred(self, event: Input.Blurred) -> None:
        self._take(event.input)

    def action_leave(self) -> None:
        for field in self.query(Input):
            self._take(field)
        self.dismiss()

    def _take(self, field: Input) -> None:
        """Apply a field if it differs; a bad value is named and the field returns to what holds."""
        key = field.name or ""
        if field.disabled or field.value == self._shown(key):
            return
        try:
            self._chat.hold(changed(self._chat.held, key, field.value))
        except UsageError as error:
            self._chat.tell_error(error)
        field.value = self._shown(key)
