"""The app of `localspec pick-models`: the picker alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.binding import Binding
from textual.command import CommandPalette

from localspec.config import Config, check_keymap
from localspec.engine.settings import LoadSettings
from localspec.tui.actions import BY_ID
from localspec.tui.frame import Frame
from localspec.tui.picker_factory import PickerFactory
from localspec.tui.picking.actions import PICKER_BY_ID
from localspec.tui.picking.services import Picked
from localspec.tui.screens.picker import PickerScreen

if TYPE_CHECKING:
    from textual.screen import Screen

QUIT_WITHIN_S = 2.0


class PickerApp(Frame, inherit_bindings=False):
    """Shows one `PickerScreen`."""

    CSS_PATH = ["app.tcss", "screens/picker.tcss"]  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        Binding(BY_ID[id_].keys, action, BY_ID[id_].title, show=False, priority=True, id=id_)
        for id_, action in (("app.palette", "commands"), ("app.interrupt", "interrupt"), ("app.quit", "exit"))
    ]

    def __init__(self, picker: PickerScreen) -> None:
        super().__init__(picker.services.config)
        self.picker = picker
        self._interrupted_at = float("-inf")

    def get_default_screen(self) -> Screen[Picked | None]:
        return self.picker

    def action_commands(self) -> None:
        self.push_screen(CommandPalette(id="--command-palette"))

    def action_interrupt(self) -> None:
        """Leave with the second press."""
        now = time.monotonic()
        if now - self._interrupted_at <= QUIT_WITHIN_S:
            self.exit()
        self._interrupted_at = now
        self.notify("press Ctrl+C again to quit; downloads go on at the next start", markup=False)

    def action_exit(self) -> None:
        self.exit()


def make_picker_app(factory: PickerFactory, config: Config, load: LoadSettings) -> PickerApp:
    """The app, after checking what the user configured.

    Raises:
        UsageError: a remapped key names no binding.
    """
    check_keymap(config, BY_ID | PICKER_BY_ID)
    return PickerApp(factory.screen(load, in_chat=False))
