"""Chats: new, list, rename, delete, export, import, incognito."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError, UsageError
from localspec.store import ChatStore
from localspec.store.transfer import from_json, to_json, to_markdown
from localspec.tui.commands.reply import need_idle
from localspec.tui.conversation import Conversation
from localspec.tui.screens.chats import ChatsScreen
from localspec.tui.screens.dialogs import AskText, Confirm
from localspec.tui.status import spec_state
from localspec.tui.text import counted

if TYPE_CHECKING:
    from localspec.tui.commands import Handler
    from localspec.tui.screens.chat import ChatScreen


async def show(screen: ChatScreen, conversation: Conversation) -> None:
    """Make a conversation the current one."""
    need_idle(screen)
    screen.conversation = conversation
    screen.live.begin_chat()
    screen.spec = spec_state(screen.controller.info, conversation.settings.speculation)
    screen.editing = False
    screen.attachments.clear()
    await screen.view.show(conversation)
    screen.refresh_status()
    screen.prompt.focus()


def fresh(screen: ChatScreen, store: ChatStore) -> Conversation:
    """An empty chat with the configured settings, answered by the loaded pair."""
    return Conversation(store, screen.conversation.pair, screen.setup.chat_settings, screen.setup.system)


async def new(screen: ChatScreen, argument: str) -> None:
    await show(screen, fresh(screen, screen.setup.store))


async def incognito(screen: ChatScreen, argument: str) -> None:
    await show(screen, fresh(screen, ChatStore(None)))
    screen.tell("this chat is kept in memory only")


def open_list(screen: ChatScreen, argument: str) -> None:
    need_idle(screen)

    async def chosen(chat_id: int | None) -> None:
        current = screen.conversation.chat_id
        if chat_id is not None:
            await show(screen, Conversation.resume(screen.setup.store, chat_id, screen.setup.chat_settings))
        elif current is not None and not _exists(screen, current):
            await new(screen, "")

    screen.app.push_screen(ChatsScreen(screen.setup.store), chosen)


def _exists(screen: ChatScreen, chat_id: int) -> bool:
    try:
        screen.conversation.store.load(chat_id)
    except UsageError:
        return False
    return True


def rename(screen: ChatScreen, argument: str) -> None:
    def done(title: str | None) -> None:
        if title is not None and title.strip():
            screen.conversation.rename(title)
            screen.refresh_status()

    if argument:
        done(argument)
    else:
        screen.app.push_screen(AskText("Title of this chat", screen.conversation.title), done)


def delete(screen: ChatScreen, argument: str) -> None:
    need_idle(screen)
    chat_id = screen.conversation.chat_id
    if chat_id is None:
        raise UsageError("this chat is empty")

    async def done(sure: bool | None) -> None:
        if sure:
            screen.conversation.store.delete(chat_id)
            await new(screen, "")

    screen.app.push_screen(Confirm(f"Delete the chat “{screen.conversation.title}”?"), done)


def export(screen: ChatScreen, argument: str) -> None:
    chat_id = screen.conversation.chat_id
    if chat_id is None:
        raise UsageError("this chat is empty")
    chat = screen.conversation.store.load(chat_id)
    path = Path(argument).expanduser() if argument else free_path(chat.title)
    text = to_json([chat]) if path.suffix == ".json" else to_markdown(chat)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise UsageError(f"`{path}` exists already", hint="name another file") from error
    except OSError as error:
        raise LocalspecError(f"`{path}` cannot be written: {error.strerror}") from error
    screen.tell(f"exported to {path}")


def free_path(title: str, suffix: str = ".md") -> Path:
    """A file in the current folder, named after a title, that does not exist yet."""
    stem = re.sub(r"[^\w.-]+", "-", title).strip("-.").lower() or "chat"
    number, path = 1, Path(f"{stem}{suffix}")
    while path.exists():
        number += 1
        path = Path(f"{stem}-{number}{suffix}")
    return path


def import_(screen: ChatScreen, argument: str) -> None:
    path = Path(argument).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"`{path}` cannot be read: {error}") from error
    ids = from_json(text, screen.setup.store)
    screen.tell(f"imported {counted(len(ids), 'chat')}: F6 lists what is stored")


HANDLERS: dict[str, Handler] = {
    "chats.new": new,
    "chats.incognito": incognito,
    "chats.open": open_list,
    "chats.rename": rename,
    "chats.delete": delete,
    "chats.export": export,
    "chats.import": import_,
}
