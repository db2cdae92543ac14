"""What both apps share: the theme that is remembered, the user's keys, and an end by signal that leaves a
clean terminal."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress

from textual.app import App

from localspec.config import Config, set_key
from localspec.errors import LocalspecError
from localspec.tui.text import one_line


class Frame(App[None], inherit_bindings=False):
    """An app on the user's settings; `return_code` is what the process should end with."""

    TITLE = "localspec"
    ENABLE_COMMAND_PALETTE = False
    """Its key would not come from the action table."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    def on_mount(self) -> None:
        self._end_on_signals()
        self.set_keymap(dict(self.config.keymap))
        if self.config.theme in self.available_themes:
            self.theme = self.config.theme
        self.theme_changed_signal.subscribe(self, lambda theme: self._remember(theme.name))

    def _end_on_signals(self) -> None:
        """Let SIGTERM and SIGHUP leave as a key does: an exception in the loop would lose the terminal."""
        loop = asyncio.get_running_loop()
        for name in ("SIGTERM", "SIGHUP"):
            with suppress(
                AttributeError, NotImplementedError, RuntimeError
            ):  # Windows, or not the main thread
                number = getattr(signal, name)
                loop.add_signal_handler(number, self.exit, None, 128 + number)

    def _remember(self, theme: str) -> None:
        try:
            set_key("theme", theme, self.config.file)
        except LocalspecError as error:
            self.tell_error(error)

    def tell_error(self, error: LocalspecError) -> None:
        """Say what went wrong, in passing, with the next step."""
        hint = f" ({error.hint})" if error.hint else ""
        self.notify(one_line(error.message + hint, 400), severity="error", markup=False, timeout=8)
