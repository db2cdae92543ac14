"""The Textual app around the chat: keys that work everywhere, theme, and what is said on the way out."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from textual.app import App
from textual.binding import Binding

from localspec.config import check_keymap, set_key
from localspec.errors import LocalspecError
from localspec.tui.actions import ACTIONS, BY_ID
from localspec.tui.palette import ActionProvider
from localspec.tui.screens.chat import ChatScreen

if TYPE_CHECKING:
    from textual.screen import Screen

    from localspec.tui.setup import ChatSetup


class LocalspecApp(App[None], inherit_bindings=False):
    """Shows one `ChatScreen`; `return_code` is what the process should end with."""

    CSS_PATH = "app.tcss"
    TITLE = "localspec"
    COMMANDS = {ActionProvider}  # noqa: RUF012
    ENABLE_COMMAND_PALETTE = False
    """Its key would not come from the action table; `app.palette` opens it."""
    BINDINGS = [  # noqa: RUF012
        Binding(a.keys, f"run('{a.id}')", a.title, show=False, priority=a.priority, id=a.id)
        for a in ACTIONS
        if a.everywhere
    ]

    def __init__(self, setup: ChatSetup) -> None:
        super().__init__()
        self.setup = setup
        self.chat = ChatScreen(setup)

    def get_default_screen(self) -> Screen[None]:
        return self.chat

    def on_mount(self) -> None:
        self._end_on_signals()
        self.set_keymap(dict(self.setup.config.keymap))
        theme = self.setup.config.theme
        if theme in self.available_themes:
            self.theme = theme
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
            set_key("theme", theme, self.setup.config.file)
        except LocalspecError as error:
            self.chat.tell_error(error)

    def action_run(self, action_id: str) -> None:
        self.chat.run(action_id)

    def exit(self, result: None = None, return_code: int = 0, message: object = None) -> None:
        """Leave; the way back to this chat is printed once the terminal is restored."""
        self.chat.writer.settle()
        super().exit(result, return_code, message or self.resume_hint())  # type: ignore[arg-type]

    def resume_hint(self) -> str | None:
        """How to come back to this chat; None when there is nothing to come back to."""
        conversation = self.chat.conversation
        if conversation.chat_id is None or conversation.store.incognito:
            return None
        return f"resume this chat: localspec chat --resume {conversation.chat_id}"


def make_app(setup: ChatSetup) -> LocalspecApp:
    """The app, after checking what the user configured.

    Raises:
        UsageError: a remapped key names no binding.
    """
    check_keymap(setup.config, BY_ID)
    return LocalspecApp(setup)
