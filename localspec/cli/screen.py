"""The chat screen: the session in a worker process, chats in their database, options in every request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from localspec.cli.options import Asked
from localspec.engine.events import Loading
from localspec.engine.settings import Request
from localspec.interfaces import PairFiles, Reply, SessionInfo, SessionLike
from localspec.locations import locations

if TYPE_CHECKING:
    from localspec.tui.controller import Wish


@dataclass(frozen=True, slots=True)
class Screen:
    """How the chat screen is to open."""

    resume: int | None = None
    """Id of a stored chat."""
    incognito: bool = False
    inline: bool = False


@dataclass(frozen=True, slots=True)
class WithOptions:
    """A session whose every request carries what only the command line can say."""

    session: SessionLike
    base: Request

    @property
    def info(self) -> SessionInfo:
        return self.session.info

    def reply(self, request: Request) -> Reply:
        base = self.base
        return self.session.reply(
            replace(request, stop=base.stop, ignore_eog=base.ignore_eog, template_args=base.template_args)
        )

    def close(self) -> None:
        self.session.close()


def run_screen(files: PairFiles | None, asked: Asked, prompt: str | None, how: Screen) -> int:
    """Draw the chat until the user leaves; returns the exit code.

    Args:
        files: the pair to begin with; None begins with the picker.
    """
    from localspec.pairs import resolve
    from localspec.store import ChatStore
    from localspec.tui import run_chat
    from localspec.worker import WorkerSession

    base, load = asked.request(), asked.load()

    def make_session(wish: Wish, notify: Callable[[Loading], None]) -> SessionLike:
        wanted = files if wish.pair is None and files is not None else resolve(wish.pair)
        return WithOptions(WorkerSession(wanted, wish.load or load, on_event=notify), base)

    return run_chat(
        make_session,
        config=asked.effective(),
        store=ChatStore(None if how.incognito else locations().chats_db),
        initial_prompt=prompt,
        resume=how.resume,
        inline=how.inline,
        pick_first=files is None,
        system=base.messages[0].content if base.messages else "",
    )
