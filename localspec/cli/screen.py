"""The chat screen: the session in a worker process, chats in their database, options in every request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from localspec.cli.options import Asked
from localspec.engine.events import Loading, Notice
from localspec.engine.settings import Request
from localspec.errors import LocalspecError
from localspec.interfaces import PairFiles, Reply, SessionInfo, SessionLike
from localspec.locations import locations

if TYPE_CHECKING:
    from localspec.planning.speeds import Rates
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
    loaded: Callable[[SessionInfo], None]
    """Told what is loaded, whenever it is asked for."""

    @property
    def info(self) -> SessionInfo:
        info = self.session.info
        self.loaded(info)
        return info

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
    from localspec.cli.planned import catalogue
    from localspec.pairs import resolve
    from localspec.planning import Recording, settle
    from localspec.store import ChatStore
    from localspec.tui import run_chat
    from localspec.tui.picker_factory import PickerFactory
    from localspec.worker import WorkerSession

    base, load, config = asked.request(), asked.load(), asked.effective()

    def make_session(wish: Wish, notify: Callable[[Loading | Notice], None]) -> SessionLike:
        first = files if wish.pair is None else None
        wanted = first or resolve(wish.pair, models_dir=config.models_dir)
        settled = settle(wanted, wish.load or load, force=wish.force or (first is not None and asked.force))
        session = WorkerSession(wanted, settled, on_event=notify)

        def loaded(info: SessionInfo) -> None:
            try:
                pickers.remember(wanted, info)
            except LocalspecError as error:  # the pair runs all the same
                notify(Notice("info", error.message))

        def keep(rates: Rates) -> None:
            try:
                pickers.keep_rates(wanted, session.info, rates)
            except LocalspecError as error:
                notify(Notice("info", error.message))

        return WithOptions(Recording(session, keep), base, loaded)

    pickers = PickerFactory(catalogue(), config)
    try:
        return run_chat(
            make_session,
            config=config,
            store=ChatStore(None if how.incognito else locations().chats_db),
            initial_prompt=prompt,
            resume=how.resume,
            inline=how.inline,
            pick_first=files is None,
            system=base.messages[0].content if base.messages else "",
            picker=lambda load, info: pickers.screen(load, info, in_chat=True),
        )
    finally:
        pickers.close()
