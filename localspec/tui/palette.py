"""The command palette, filled from the action table. Its own entries of Textual are left out but themes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Hits, Provider

from localspec.tui.actions import ACTIONS, Action, keys_in_use

if TYPE_CHECKING:
    from localspec.tui.app import LocalspecApp


class ActionProvider(Provider):
    """Finds actions by title, slash command and id; one that needs an argument starts it in the prompt."""

    async def discover(self) -> Hits:
        for action in self._listed():
            yield DiscoveryHit(self._title(action), partial(self._run, action), help=action.id)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._listed():
            title = self._title(action)
            score = max(matcher.match(title), matcher.match(action.id))
            if score > 0:
                yield Hit(score, matcher.highlight(title), partial(self._run, action), help=action.id)

    def _listed(self) -> list[Action]:
        # On another screen, over the chat, its actions would act on what is not seen.
        chat = self.screen is self._localspec.chat
        return [a for a in ACTIONS if a.id != "app.palette" and (chat or a.everywhere)]

    @property
    def _localspec(self) -> LocalspecApp:
        from localspec.tui.app import LocalspecApp

        assert isinstance(self.app, LocalspecApp)
        return self.app

    def _title(self, action: Action) -> str:
        ways = [keys_in_use(action, self._localspec.setup.config.keymap), action.slash and f"/{action.slash}"]
        known = ", ".join(way for way in ways if way)
        return f"{action.title} ({known})" if known else action.title

    def _run(self, action: Action) -> None:
        chat = self._localspec.chat
        if action.argument and not action.argument.startswith("["):
            chat.prompt.put(f"/{action.slash} ")
            chat.prompt.focus()
        else:
            chat.run(action.id)
