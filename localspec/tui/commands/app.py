"""Help, log, palette, Ctrl+C and the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.command import CommandPalette

from localspec.tui.clipboard import copy
from localspec.tui.screens.help import HelpScreen
from localspec.tui.screens.log import LogScreen

if TYPE_CHECKING:
    from localspec.tui.commands import Handler
    from localspec.tui.screens.chat import ChatScreen

QUIT_WITHIN_S = 2.0


def help_(screen: ChatScreen, argument: str) -> None:
    screen.app.push_screen(HelpScreen(screen.focused, screen.setup.config.keymap))


def log(screen: ChatScreen, argument: str) -> None:
    screen.app.push_screen(LogScreen(screen.setup.log))


def palette(screen: ChatScreen, argument: str) -> None:
    screen.app.push_screen(CommandPalette(id="--command-palette"))


def interrupt(screen: ChatScreen, argument: str) -> None:
    """Ctrl+C: copy what is selected, else stop what runs, else quit with the second press."""
    selection = selected_text(screen)
    if selection:
        copy(screen.app, selection)
        screen.app.screen.clear_selection()
        screen.tell(f"copied {len(selection)} characters")
    elif screen.controller.stop():
        screen.refresh_status()
    elif screen.clock() - screen.interrupted_at <= QUIT_WITHIN_S:
        screen.app.exit()
    else:
        screen.interrupted_at = screen.clock()
        screen.tell("press Ctrl+C again to quit")


def selected_text(screen: ChatScreen) -> str:
    """The selection in the focused text field, else on the active screen."""
    field = getattr(screen.app.focused, "selected_text", "")
    return field or screen.app.screen.get_selected_text() or ""


def quit_(screen: ChatScreen, argument: str) -> None:
    screen.app.exit()


HANDLERS: dict[str, Handler] = {
    "app.help": help_,
    "app.log": log,
    "app.palette": palette,
    "app.interrupt": interrupt,
    "app.quit": quit_,
}
