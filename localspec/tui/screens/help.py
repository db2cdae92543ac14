"""Help (F1): the focused part first, then every key and command, from the action table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from localspec.tui.actions import ACTIONS, PROMPT_ACTIONS, Action, keys_in_use


class HelpScreen(ModalScreen[None]):
    """Shows help until a key leaves it."""

    BINDINGS = [Binding("escape,f1,q", "dismiss", "leave")]  # noqa: RUF012

    def __init__(
        self,
        focused: Widget | None,
        keymap: Mapping[str, str],
        actions: Sequence[Action] = (*PROMPT_ACTIONS, *ACTIONS),
    ) -> None:
        super().__init__()
        self._actions = actions
        self._about = about(focused)
        self._keymap = keymap

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide"):
            yield Static("Help · Esc leaves", classes="heading", markup=False)
            yield Static(self._about, markup=False)
            yield Static("Keys and commands", classes="heading", markup=False)
            any_slash = any(action.slash for action in self._actions)
            for action in self._actions:
                keys = " ".join(map(shown, keys_in_use(action, self._keymap).split(",")))
                slash = f"/{action.slash} {action.argument}".strip() if action.slash else ""
                yield Horizontal(
                    Static(keys, classes="key", markup=False),
                    *([Static(slash, classes="slash", markup=False)] if any_slash else []),
                    Static(f"{action.title} ({action.id})", classes="about", markup=False),
                    classes="binding",
                )
            yield Static(
                "Every key can be changed in the config file by the id in brackets: [keymap]",
                classes="heading",
                markup=False,
            )

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def shown(key: str) -> str:
    """A key as it is printed: `/` for `slash`."""
    return {"slash": "/", "question_mark": "?"}.get(key.strip(), key.strip())


def about(focused: Widget | None) -> str:
    """What the focused widget, or the nearest one around it, says about itself."""
    for node in focused.ancestors_with_self if focused else ():
        text = getattr(node, "HELP", None)
        if text:
            return str(text)
    return "F1 explains the part that has the focus; Tab moves it."
