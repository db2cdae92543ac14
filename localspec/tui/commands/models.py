"""Choose, load and reload models; what of speculation can change without a reload."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.errors import UsageError
from localspec.tui.changing import changed
from localspec.tui.commands.reply import need_idle
from localspec.tui.controller import Wish
from localspec.tui.status import spec_state

if TYPE_CHECKING:
    from localspec.tui.commands import Handler
    from localspec.tui.picking.services import Picked
    from localspec.tui.screens.chat import ChatScreen


def open_picker(screen: ChatScreen, argument: str) -> None:
    """Show the picker; the pair it ends with is loaded, with the settings chosen there."""
    need_idle(screen)
    if screen.setup.picker is None:
        raise UsageError(
            "the model picker is not available here", hint="run `localspec pick-models`, then /use PAIR"
        )

    async def chosen(picked: Picked | None) -> None:
        if picked is not None:
            screen.hold(replace(screen.held, load=picked.load))
            await screen.load(Wish(picked.pair, picked.load, picked.force))

    screen.app.push_screen(screen.setup.picker(screen.held.load, screen.controller.info), chosen)


async def use(screen: ChatScreen, argument: str) -> None:
    need_idle(screen)
    await screen.load(Wish(pair=argument, load=screen.held.load))


async def reload(screen: ChatScreen, argument: str) -> None:
    need_idle(screen)
    await screen.load(replace(screen.controller.wish, load=screen.held.load, force=False))


async def anyway(screen: ChatScreen, argument: str) -> None:
    need_idle(screen)
    await screen.load(replace(screen.controller.wish, load=screen.held.load, force=True))


def toggle(screen: ChatScreen, argument: str) -> None:
    """Speculation on or off from the next reply on, to compare by hand."""
    speculation = screen.conversation.settings.speculation
    if speculation.method == "off":
        configured = screen.setup.config.speculation.get("method", "auto")
        wanted = "auto" if configured == "off" else configured
    else:
        wanted = "off"
    screen.hold(changed(screen.held, "method", wanted))
    if screen.writer.busy:
        screen.tell(f"speculation {'off' if wanted == 'off' else 'on'} from the next reply")
    else:
        screen.spec = spec_state(screen.controller.info, screen.conversation.settings.speculation)


def method(screen: ChatScreen, argument: str) -> None:
    info = screen.controller.info
    if info is not None and argument not in info.methods:
        raise UsageError(
            f"the method `{argument}` is not loaded with this pair",
            hint=f"loaded: {', '.join(info.methods)}; another pair needs /use or F2",
        )
    screen.hold(changed(screen.held, "method", argument))
    screen.tell(f"method {argument} from the next reply, no reload needed")


def draft_length(screen: ChatScreen, argument: str) -> None:
    held = changed(screen.held, "k", argument)
    k, info = held.chat.speculation.k, screen.controller.info
    if k is not None and info is not None and k > info.effective.k_max:
        raise UsageError(
            f"the pair was loaded for drafts of at most {info.effective.k_max}",
            hint=f"/set k_max {k}, then /reload",
        )
    screen.hold(held)
    fixed = "adapts" if k is None else f"is {k}, without pauses,"
    screen.tell(f"the draft length {fixed} from the next reply, no reload needed")


HANDLERS: dict[str, Handler] = {
    "models.open": open_picker,
    "models.use": use,
    "models.reload": reload,
    "models.anyway": anyway,
    "spec.toggle": toggle,
    "spec.method": method,
    "spec.k": draft_length,
}
