"""A box above the prompt: a load with its progress, or an error with the keys that help."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Button, ProgressBar, Static

from localspec.engine.events import Loading
from localspec.errors import LocalspecError
from localspec.tui.actions import BY_ID
from localspec.tui.text import visible


class Banner(Vertical):
    """Hidden until it has something to say."""

    class Pressed(Message):
        """A button of the banner: run this action."""

        def __init__(self, action_id: str) -> None:
            super().__init__()
            self.action_id = action_id

    def compose(self) -> ComposeResult:
        yield Static(id="banner-text", markup=False)
        yield ProgressBar(id="banner-progress", show_eta=False)
        yield Horizontal(id="banner-buttons")

    def on_mount(self) -> None:
        self.display = False

    async def show_load(self, event: Loading) -> None:
        """Show how far a load is."""
        await self._show(f"loading {visible(event.what)}  (Esc stops)", "loading", [])
        bar = self.query_one(ProgressBar)
        bar.display = True
        bar.update(total=None if event.fraction is None else 1.0, progress=event.fraction or 0.0)

    async def show_error(self, error: LocalspecError, action_ids: Sequence[str]) -> None:
        """Show what went wrong, the next step, and buttons for it."""
        text = error.message + (f"\n{error.hint}" if error.hint else "")
        await self._show(visible(text), "error", action_ids)

    async def show_remark(self, text: str, action_ids: Sequence[str]) -> None:
        await self._show(visible(text), "remark", action_ids)

    def hide(self) -> None:
        self.display = False

    async def _show(self, text: str, kind: str, action_ids: Sequence[str]) -> None:
        self.display = True
        self.set_class(kind == "error", "error")
        self.query_one("#banner-text", Static).update(text)
        self.query_one(ProgressBar).display = False
        row = self.query_one("#banner-buttons", Horizontal)
        row.display = bool(action_ids)
        await row.remove_children()
        # The slash command on the button tells how to do the same without a mouse.
        await row.mount_all(
            Button(f"/{BY_ID[id_].slash}", name=id_, compact=True, tooltip=BY_ID[id_].title)
            for id_ in action_ids
        )

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        assert event.button.name is not None
        self.post_message(self.Pressed(event.button.name))
