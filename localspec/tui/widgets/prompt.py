"""The prompt: grows with its text, sends with Enter, walks back through earlier prompts."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.widgets import TextArea

from localspec.tui.actions import PROMPT_ACTIONS

KEYS_OF_THE_SCREEN = ("f6", "f7")
"""A text area selects with them."""


class Prompt(TextArea):
    """A text area that posts `Sent`; a paste of many lines stays one text."""

    HELP = (
        "Write here. Enter sends; Shift+Enter or Ctrl+J starts a new line. Up in an empty prompt brings "
        "back earlier prompts, Page Up turns back in the conversation. A line that starts with / is a "
        "command, Tab completes it; // sends a text that starts with a slash. You can write on while a "
        "reply runs: Enter then queues the message."
    )

    BINDINGS = [  # noqa: RUF012 (Textual's way)
        Binding(
            a.keys,
            a.id.partition(".")[2],
            a.footer or a.title,
            show=bool(a.footer),
            priority=True,
            id=a.id,
            tooltip=a.title,
        )
        for a in PROMPT_ACTIONS
    ]

    class Sent(Message):
        """The user wants to send the text."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Act(Message):
        """Do one of the prompt's own actions, after the keys that came before."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    class CompletionWanted(Message):
        """Tab was pressed behind a half-typed command."""

    class NewestWanted(Message):
        """End was pressed where there is no text to the right."""

    class PageWanted(Message):
        """Page up or down where the whole text is in sight: the conversation is what can turn."""

        def __init__(self, *, up: bool) -> None:
            super().__init__()
            self.up = up

    def __init__(self, id: str) -> None:
        super().__init__(
            id=id, compact=True, soft_wrap=True, show_line_numbers=False, highlight_cursor_line=False,
            placeholder="Message (Enter sends, / for commands, F1 for help)",
        )  # fmt: skip
        for key in KEYS_OF_THE_SCREEN:
            self._bindings.key_to_bindings.pop(key)
        self.earlier: list[str] = []
        self._at: int | None = None
        """Position in the history while walking through it."""

    def put(self, text: str) -> None:
        """Replace the text and go to its end."""
        self.text = text
        self.move_cursor(self.document.end)

    # A key with a priority binding overtakes the letters typed before it, which wait in this widget's
    # queue. So these actions queue up behind them instead of acting at once.

    def action_send(self) -> None:
        self.post_message(self.Act("send"))

    def action_newline(self) -> None:
        self.post_message(self.Act("newline"))

    def action_quit_if_empty(self) -> None:
        self.post_message(self.Act("quit_if_empty"))

    def on_prompt_act(self, message: Act) -> None:
        message.stop()
        match message.name:
            case "send" if self.text.strip():
                text = self.text
                self.put("")  # at once: what is typed from now on is another text
                self._at = None
                self.post_message(self.Sent(text))
            case "newline":
                self.insert("\n")
            case "quit_if_empty" if self.text:
                self.action_delete_right()
            case "quit_if_empty":
                self.app.exit()

    def give_back(self, text: str) -> None:
        """A text that could not be sent returns, before whatever was typed since."""
        self.put(f"{text}\n{self.text}" if self.text else text)

    def remember(self, text: str) -> None:
        """Make a text the newest of the history."""
        if text in self.earlier:
            self.earlier.remove(text)
        self.earlier.append(text)
        self._at = None

    def action_cursor_up(self, select: bool = False) -> None:
        walking = self._at is not None and self.text == self.earlier[self._at]
        if select or not self.earlier or not (walking or not self.text) or not self.cursor_at_first_line:
            super().action_cursor_up(select)
            return
        self._at = max(0, self._at - 1) if walking and self._at is not None else len(self.earlier) - 1
        self.put(self.earlier[self._at])
        self.move_cursor((0, 0))

    def action_cursor_down(self, select: bool = False) -> None:
        walking = self._at is not None and self.text == self.earlier[self._at]
        if select or not walking or not self.cursor_at_last_line or self._at is None:
            super().action_cursor_down(select)
            return
        if self._at + 1 < len(self.earlier):
            self._at += 1
            self.put(self.earlier[self._at])
        else:
            self._at = None
            self.put("")

    @property
    def _whole(self) -> bool:
        return self.wrapped_document.height <= self.content_size.height

    def action_cursor_page_up(self) -> None:
        if self._whole:
            self.post_message(self.PageWanted(up=True))
        else:
            super().action_cursor_page_up()

    def action_cursor_page_down(self) -> None:
        if self._whole:
            self.post_message(self.PageWanted(up=False))
        else:
            super().action_cursor_page_down()

    def action_cursor_line_end(self, select: bool = False) -> None:
        if not select and self.cursor_location == self.document.end:
            self.post_message(self.NewestWanted())
        else:
            super().action_cursor_line_end(select)

    async def on_key(self, event: events.Key) -> None:
        if event.key == "tab" and self.text.startswith("/"):
            event.stop()
            event.prevent_default()
            self.post_message(self.CompletionWanted())
