"""The picker's part of the command palette."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from textual.command import DiscoveryHit, Hit, Hits, Provider

from localspec.tui.actions import Action, keys_in_use
from localspec.tui.picking.actions import PICKER_ACTIONS
from localspec.tui.screens.help import shown

if TYPE_CHECKING:
    from localspec.tui.screens.picker import PickerScreen


class PickerProvider(Provider):
    """Finds the actions of the picker that the palette was opened on."""

    async def discover(self) -> Hits:
        for action in PICKER_ACTIONS:
            yield DiscoveryHit(self._title(action), partial(self._picker.run, action.id), help=action.id)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in PICKER_ACTIONS:
            title = self._title(action)
            score = max(matcher.match(title), matcher.match(action.id))
            if score > 0:
                yield Hit(
                    score, matcher.highlight(title), partial(self._picker.run, action.id), help=action.id
                )

    @property
    def _picker(self) -> PickerScreen:
        from localspec.tui.screens.picker import PickerScreen

        assert isinstance(self.screen, PickerScreen)
        return self.screen

    def _title(self, action: Action) -> str:
        keys = keys_in_use(action, self._picker.services.config.keymap)
        known = ", ".join(map(shown, keys.split(","))) if keys else ""
        return f"{action.title} ({known})" if known else action.title
