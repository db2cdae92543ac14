"""The Textual app around the chat: keys that work everywhere, and what is said on the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.binding import Binding

from localspec.config import check_keymap
from localspec.tui.actions import ACTIONS, BY_ID
from localspec.tui.frame import Frame
from localspec.tui.palette import ActionProvider
from localspec.tui.picking.actions import PICKER_BY_ID
from localspec.tui.screens.chat import ChatScreen

if TYPE_CHECKING:
    from textual.screen import Screen

    from localspec.tui.setup import ChatSetup


class LocalspecApp(Frame, inherit_bindings=False):
    """Shows one `ChatScreen`."""

    CSS_PATH = "app.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-medium"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (22, "-tall")]  # noqa: RUF012
    COMMANDS = {ActionProvider}  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        Binding(a.keys, f"run('{a.id}')", a.title, show=False, priority=a.priority, id=a.id)
        for a in ACTIONS
        if a.everywhere
    ]

    def __init__(self, setup: ChatSetup) -> None:
        super().__init__(setup.config)
        self.setup = setup
        self.chat = ChatScreen(setup)

    def get_default_screen(self) -> Screen[None]:
        return self.chat

    def action_run(self, action_id: str) -> None:
        self.chat.run(action_id)

    def exit(self, result: None = None, return_code: int = 0, message: object = None) -> None:
        """Leave; the way back to this chat is printed once the terminal is restored."""
        self.chat.writer.settle()
        super().exit(result, return_code, message or self.resume_hint())  # type: ignore[arg-type]

    def let_go(self) -> None:
        self.chat.writer.settle()
        self.chat.controller.close()

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
    check_keymap(setup.config, BY_ID | PICKER_BY_ID)
    return LocalspecApp(setup)
