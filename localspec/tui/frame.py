"""What both apps share: the theme that is remembered, the user's keys, and an end by signal that leaves a
clean terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from typing import Any

from textual.app import App

from localspec.config import Config, set_key
from localspec.errors import LocalspecError
from localspec.tui.text import one_line

ORDERLY_END_S = 2.0


class Frame(App[None], inherit_bindings=False):
    """An app on the user's settings; `return_code` is what the process should end with."""

    TITLE = "localspec"
    ENABLE_COMMAND_PALETTE = False
    """Its key would not come from the action table."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self._handlers: dict[int, Any] = {}
        """What the signals did before."""

    def on_mount(self) -> None:
        self._end_on_signals()
        self.set_keymap(dict(self.config.keymap))
        if self.config.theme in self.available_themes:
            self.theme = self.config.theme
        self.theme_changed_signal.subscribe(self, lambda theme: self._remember(theme.name))

    def _end_on_signals(self) -> None:
        """Let SIGTERM and SIGHUP leave as a key does: an exception in the loop would lose the terminal."""
        loop = asyncio.get_running_loop()

        def end(number: int, _: object) -> None:
            # The loop may be waiting for a terminal that is gone: closing its window must not leave a
            # process that holds a model. Not the loop's own handlers, because they run in the loop.
            threading.Thread(target=self._end_at_last, args=(128 + number,), daemon=True).start()
            loop.call_soon_threadsafe(self.exit, None, 128 + number)

        for name in ("SIGTERM", "SIGHUP"):
            with suppress(AttributeError, ValueError):  # Windows, or not the main thread
                number = getattr(signal, name)
                self._handlers[number] = signal.signal(number, end)

    def on_unmount(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _end_at_last(self, code: int) -> None:
        time.sleep(ORDERLY_END_S)
        self.let_go()
        os._exit(code)

    def let_go(self) -> None:
        """End what must not outlive the app; from any thread, when the orderly way out hangs."""

    def _remember(self, theme: str) -> None:
        try:
            set_key("theme", theme, self.config.file)
        except LocalspecError as error:
            self.tell_error(error)

    def tell_error(self, error: LocalspecError) -> None:
        """Say what went wrong, in passing, with the next step."""
        hint = f" ({error.hint})" if error.hint else ""
        self.notify(one_line(error.message + hint, 400), severity="error", markup=False, timeout=8)
