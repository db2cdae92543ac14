"""Stop, write again, continue, edit, copy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from localspec.errors import UsageError
from localspec.tui.clipboard import copy
from localspec.tui.conversation import LiveTurn

if TYPE_CHECKING:
    from localspec.tui.commands import Handler
    from localspec.tui.screens.chat import ChatScreen

_CODE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n]*\n(.*?)(?:^[ \t]*\1|\Z)", re.MULTILINE | re.DOTALL)


def need_ready(screen: ChatScreen) -> None:
    """Refuse while the model is not free.

    Raises:
        UsageError: with what it is doing.
    """
    need_idle(screen)
    if screen.controller.state == "loading":
        raise UsageError("the model is still loading", hint="Esc stops it")
    if screen.controller.state != "ready":
        raise UsageError("no model is loaded", hint="/reload or F2")


def need_idle(screen: ChatScreen) -> None:
    """Refuse while a reply runs: the chat cannot change under it."""
    if screen.writer.busy:
        raise UsageError("a reply is running", hint="Esc stops it")


def stop(screen: ChatScreen, argument: str = "") -> None:
    """Stop the reply or the load; with nothing to stop, leave the edit or let go of what is queued."""
    if not screen.controller.stop() and screen.editing:
        screen.editing = False
        screen.prompt.put("")
    screen.refresh_status()


async def regenerate(screen: ChatScreen, argument: str) -> None:
    need_ready(screen)
    old = screen.conversation.last_reply
    reply = screen.conversation.again()
    screen.writer.replaced = old
    if old is not None:
        await screen.view.drop(old)
    await screen.view.add(reply)
    screen.writer.begin(reply)


async def carry_on(screen: ChatScreen, argument: str) -> None:
    need_ready(screen)
    reply = screen.conversation.carry_on()
    view = screen.view.view_of(reply)
    if view is not None:
        await view.carry_on()
    screen.writer.begin(reply, continue_last=True)


def edit(screen: ChatScreen, argument: str) -> None:
    """Put the last message into the prompt; sending it replaces the exchange."""
    need_idle(screen)
    questions = [turn for turn in screen.conversation.turns if turn.role == "user"]
    if not questions:
        raise UsageError("there is no message to edit yet")
    screen.editing = True
    screen.prompt.put(questions[-1].content)
    screen.prompt.focus()


def copy_reply(screen: ChatScreen, argument: str) -> None:
    reply = _last_reply(screen)
    copy(screen.app, reply.content)
    screen.tell(f"copied the reply, {len(reply.content)} characters")


def copy_code(screen: ChatScreen, argument: str) -> None:
    blocks = [match[2] for match in _CODE.finditer(_last_reply(screen).content)]
    if not blocks:
        raise UsageError("the last reply has no code block")
    copy(screen.app, blocks[-1])
    screen.tell(f"copied the last code block, {len(blocks[-1].splitlines())} lines")


def _last_reply(screen: ChatScreen) -> LiveTurn:
    for turn in reversed(screen.conversation.turns):
        if turn.role == "assistant" and turn.content:
            return turn
    raise UsageError("there is no reply to copy yet")


async def reasoning(screen: ChatScreen, argument: str) -> None:
    """Unfold all reasoning, or fold it again."""
    await screen.view.unfold()


HANDLERS: dict[str, Handler] = {
    "reply.stop": stop,
    "reply.regenerate": regenerate,
    "reply.continue": carry_on,
    "reply.edit": edit,
    "reply.copy": copy_reply,
    "reply.copy_code": copy_code,
    "reply.reasoning": reasoning,
}
