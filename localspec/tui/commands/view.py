"""What is shown: statistics, token marks, position, theme."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.errors import UsageError, unknown

if TYPE_CHECKING:
    from localspec.tui.commands import Handler
    from localspec.tui.screens.chat import ChatScreen


def statistics(screen: ChatScreen, argument: str) -> None:
    screen.toggle_class("statistics")


async def marks(screen: ChatScreen, argument: str) -> None:
    await screen.view.show_marks(not screen.view.marks)


def end(screen: ChatScreen, argument: str) -> None:
    screen.view.anchor()


async def older(screen: ChatScreen, argument: str) -> None:
    if not await screen.view.older():
        raise UsageError("there are no earlier messages")


def theme(screen: ChatScreen, argument: str) -> None:
    if not argument:
        screen.app.search_themes()
    elif argument not in screen.app.available_themes:
        raise unknown("theme", argument, screen.app.available_themes)
    else:
        screen.app.theme = argument


HANDLERS: dict[str, Handler] = {
    "view.statistics": statistics,
    "spec.marks": marks,
    "view.end": end,
    "view.older": older,
    "view.theme": theme,
}
