"""Change settings: of the chat from the next reply, of the model with the next load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.errors import UsageError
from localspec.tui.changing import RELOAD_SECTION, changed, setting_of
from localspec.tui.screens.dialogs import AskText
from localspec.tui.screens.settings import SettingsScreen

if TYPE_CHECKING:
    from localspec.tui.commands import Handler
    from localspec.tui.screens.chat import ChatScreen


def set_one(screen: ChatScreen, argument: str) -> None:
    key, _, text = argument.partition(" ")
    if not text.strip():
        raise UsageError("/set needs a key and a value", hint="for example /set temperature 0.2")
    screen.hold(changed(screen.held, key, text))
    when = ": /reload applies it" if setting_of(key).section == RELOAD_SECTION else " from the next reply"
    screen.tell(f"{key} = {text.strip()}{when}")


def open_settings(screen: ChatScreen, argument: str) -> None:
    """Show all settings; each change that leaves its field counts."""
    before = screen.held.load

    def closed(_: None) -> None:
        if screen.held.load != before:
            screen.tell("some changes need the model loaded again: /reload")
        screen.refresh_status()

    screen.app.push_screen(SettingsScreen(screen), closed)


def system(screen: ChatScreen, argument: str) -> None:
    def done(text: str | None) -> None:
        if text is not None:
            screen.conversation.set_system(text.strip())
            screen.tell("system prompt set, from the next reply" if text.strip() else "system prompt removed")

    if argument:
        done(argument)
    else:
        screen.app.push_screen(AskText("System prompt", screen.conversation.system, lines=True), done)


HANDLERS: dict[str, Handler] = {
    "settings.set": set_one,
    "settings.open": open_settings,
    "settings.system": system,
}
