"""Everything the chat can do, once: keys, slash commands, palette and help are made from this table.

An id is what a keymap remaps and what a handler is registered under. Knows no widgets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from localspec.errors import UsageError, unknown


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do."""

    id: str
    title: str
    """For palette, footer and help."""
    keys: str = ""
    """Comma separated, as Textual names them; "" = none."""
    slash: str = ""
    """Name of the slash command without the slash; "" = none."""
    argument: str = ""
    """What the slash command takes, in words: `[path]` when it may be left out."""
    footer: str = ""
    """Short label for the footer; "" = not there."""
    priority: bool = False
    """The key beats the focused widget's own use of it."""
    everywhere: bool = False
    """Works in dialogs, too."""


ACTIONS: tuple[Action, ...] = (
    *(
        Action(id_, title, keys, slash, footer=footer, priority=True)
        for id_, title, keys, slash, footer in (
            ("app.help", "Help: keys, commands and the focused part", "f1", "help", "help"),
            ("models.open", "Choose a model pair", "f2", "models", "models"),
            ("spec.toggle", "Speculation on or off, from the next reply", "f3", "spec", "spec"),
            ("spec.marks", "Token view: show which tokens were drafted", "f4", "marks", "marks"),
            ("reply.regenerate", "Write the last reply again", "f5", "regenerate", "again"),
            ("chats.open", "Chats: list, search, rename, delete, export", "f6", "chats", "chats"),
            ("settings.open", "Settings of this chat and of the model", "f7", "settings", "settings"),
            ("view.statistics", "Statistics pane", "f8", "statistics", "stats"),
        )
    ),
    Action("app.log", "Log of the model process", "f9", "log"),
    Action("reply.stop", "Stop the reply or the load", "escape", "stop"),
    Action("reply.continue", "Carry on the last reply where it ended", "", "continue"),
    Action("reply.edit", "Edit your last message and send it again", "", "edit"),
    Action("reply.copy", "Copy the last reply", "ctrl+y", "copy", priority=True),
    Action("reply.copy_code", "Copy the last code block", "", "copycode"),
    Action("reply.reasoning", "Fold or unfold reasoning", "ctrl+r", "reasoning"),
    Action("prompt.editor", "Write the prompt in $EDITOR", "ctrl+e,ctrl+g", "editor", priority=True),
    Action("prompt.attach", "Attach a text file to the next message", "", "attach", "path"),
    Action("prompt.detach", "Take the attached files off again", "", "detach"),
    Action("chats.new", "New chat", "ctrl+n", "new", priority=True),
    Action("chats.rename", "Rename this chat", "", "rename", "[title]"),
    Action("chats.delete", "Delete this chat", "", "delete"),
    Action("chats.export", "Export this chat: a path ending in .md or .json", "", "export", "[path]"),
    Action("chats.import", "Import chats from a JSON export", "", "import", "path"),
    Action("chats.incognito", "Start a chat that is not saved", "", "incognito"),
    Action("models.use", "Load another pair by name", "", "use", "pair"),
    Action("models.reload", "Load the model again, with changed settings", "", "reload"),
    Action("models.anyway", "Load even though it does not seem to fit", "", "anyway"),
    Action("spec.method", "Draft with this method", "", "method", "method"),
    Action("spec.k", "Draft this many tokens a round; auto adapts", "", "k", "number|auto"),
    Action("settings.set", "Set one setting", "", "set", "key value"),
    Action("settings.system", "System prompt of this chat", "", "system", "[text]"),
    Action("view.end", "Jump to the newest text and follow it", "ctrl+end", "end"),
    Action("view.older", "Show earlier messages of this chat", "", "older"),
    Action("view.theme", "Choose a theme", "", "theme", "[name]"),
    Action("app.palette", "All commands", "ctrl+p", "", priority=True, everywhere=True),
    Action(
        "app.interrupt", "Copy the selection, else stop, else quit", "ctrl+c", priority=True, everywhere=True
    ),
    Action("app.quit", "Quit", "ctrl+q", "quit", priority=True, everywhere=True),
)

PROMPT_ACTIONS: tuple[Action, ...] = (
    Action("prompt.send", "Send", "enter", footer="send"),
    Action("prompt.newline", "New line", "shift+enter,ctrl+j"),
    Action("prompt.quit_if_empty", "Quit, when the prompt is empty", "ctrl+d"),
)
"""Keys of the prompt alone; they have no slash command."""

BY_ID: dict[str, Action] = {action.id: action for action in (*ACTIONS, *PROMPT_ACTIONS)}
BY_SLASH: Mapping[str, Action] = {action.slash: action for action in ACTIONS if action.slash}


def keys_in_use(action: Action, keymap: Mapping[str, str]) -> str:
    """The keys that run an action, remapped ones included."""
    return keymap.get(action.id, action.keys)


def parse_slash(line: str) -> tuple[Action, str] | None:
    """The action and argument of a slash command; None when the text is no command.

    `//` at the start sends a text that begins with a slash.

    Raises:
        UsageError: there is no such command, or its argument is missing or unwanted.
    """
    if not line.startswith("/") or line.startswith("//") or "\n" in line.strip():
        return None
    name, _, argument = line.strip()[1:].partition(" ")
    argument = argument.strip()
    action = BY_SLASH.get(name)
    if action is None:
        error = unknown("command", f"/{name}", [f"/{slash}" for slash in BY_SLASH])
        raise UsageError(error.message, hint=f"{error.hint}; start with // to send it as text")
    if argument and not action.argument:
        raise UsageError(f"/{name} takes nothing after it")
    if not argument and action.argument and not action.argument.startswith("["):
        raise UsageError(f"/{name} needs: {action.argument}")
    return action, argument


def completions(line: str) -> list[Action]:
    """Commands that a half-typed one may become, best first."""
    if not line.startswith("/") or line.startswith("//") or " " in line or "\n" in line:
        return []
    word = line[1:]
    starts = [action for slash, action in BY_SLASH.items() if slash.startswith(word)]
    return sorted(starts, key=lambda action: action.slash)
