"""What each action does. A handler takes the chat screen and the argument of a slash command, "" by key."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from localspec.errors import DoesNotFitError, LocalspecError, PromptTooLongError
from localspec.tui.commands import app, chats, models, prompt, reply, settings, view
from localspec.tui.commands.prompt import attached
from localspec.tui.commands.reply import stop

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen

__all__ = ["HANDLERS", "attached", "remedies", "run", "stop"]

Handler = Callable[["ChatScreen", str], Awaitable[None] | None]
HANDLERS: dict[str, Handler] = {
    **app.HANDLERS, **chats.HANDLERS, **models.HANDLERS, **prompt.HANDLERS, **reply.HANDLERS,
    **settings.HANDLERS, **view.HANDLERS,
}  # fmt: skip


async def run(screen: ChatScreen, action_id: str, argument: str) -> None:
    """Run the handler of an action.

    Raises:
        LocalspecError: it cannot be done now, with the reason.
    """
    outcome = HANDLERS[action_id](screen, argument)
    if inspect.isawaitable(outcome):
        await outcome


def remedies(error: LocalspecError) -> list[str]:
    """Actions worth a button beside an error."""
    if isinstance(error, PromptTooLongError):
        return ["settings.open", "models.reload", "chats.new"]
    anyway = ["models.anyway"] if isinstance(error, DoesNotFitError) else []
    return [*anyway, "models.reload", "models.open", "app.log"]
