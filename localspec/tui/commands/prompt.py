"""The prompt in $EDITOR, and text files as part of a message."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from localspec.errors import UsageError
from localspec.tui.editor import edit_text

if TYPE_CHECKING:
    from localspec.tui.commands import Handler
    from localspec.tui.screens.chat import ChatScreen

ATTACHMENT_MAX_BYTES = 1 << 20


def editor(screen: ChatScreen, argument: str) -> None:
    try:
        with screen.app.suspend():
            text = edit_text(screen.prompt.text)
    except SuspendNotSupported as error:
        raise UsageError("this terminal cannot be handed to an editor") from error
    screen.app.refresh()
    screen.prompt.put(text)
    screen.prompt.focus()


def attach(screen: ChatScreen, argument: str) -> None:
    path = Path(argument).expanduser()
    screen.attachments.append((path.name, read_attachment(path)))


def detach(screen: ChatScreen, argument: str) -> None:
    if not screen.attachments:
        raise UsageError("nothing is attached")
    screen.attachments.clear()


def read_attachment(path: Path) -> str:
    """The text of a file to attach.

    Raises:
        UsageError: it cannot be read, is too large, or is no UTF-8 text.
    """
    try:
        if path.stat().st_size > ATTACHMENT_MAX_BYTES:
            raise UsageError(f"`{path}` is larger than 1 MiB, which no context takes")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"`{path}` is no UTF-8 text") from error
    except OSError as error:
        raise UsageError(f"`{path}` cannot be read: {error.strerror}") from error


def attached(name: str, text: str) -> str:
    """A file as a part of a message: its name and a fence that its text cannot close."""
    fence = "```"
    while fence in text:
        fence += "`"
    language = Path(name).suffix.removeprefix(".")
    end = "" if text.endswith("\n") else "\n"
    return f"`{name}`:\n\n{fence}{language}\n{text}{end}{fence}\n\n"


HANDLERS: dict[str, Handler] = {
    "prompt.editor": editor,
    "prompt.attach": attach,
    "prompt.detach": detach,
}
