"""One message of the conversation on the screen: the user's, or a reply that grows."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.events import Click
from textual.widgets import Static

from localspec.tui.conversation import LiveTurn
from localspec.tui.text import visible
from localspec.tui.transcript import Piece
from localspec.tui.widgets.growing import MarkdownBody, TokenBody

LEGEND = "token view: underlined = a draft that was accepted, ╎ = next round"

SHOWN_LINES, SHOWN_CHARS = 60, 4000


class UserTurn(Vertical):
    """What the user wrote, as plain text."""

    HELP = "Your message. `/edit` takes the last one back into the prompt."

    def __init__(self, turn: LiveTurn) -> None:
        super().__init__(classes="turn user")
        self.turn = turn

    def compose(self) -> ComposeResult:
        yield Static("you", classes="who", markup=False)
        yield Static(Content(beginning(visible(self.turn.content))), classes="body")


def beginning(text: str) -> str:
    """As much of a question as is drawn: an attached file can be a megabyte."""
    lines = text[:SHOWN_CHARS].split("\n")[:SHOWN_LINES]
    shown = "\n".join(lines)
    rest = len(text) - len(shown)
    return f"{shown}\n… {rest} more characters were sent" if rest else shown


class ReplyTurn(Vertical):
    """A reply: reasoning folded above the text, a note below it."""

    HELP = "A reply. Ctrl+Y copies the last one, F4 shows which tokens were drafted."

    def __init__(self, turn: LiveTurn, *, marks: bool, finished: bool) -> None:
        super().__init__(classes="turn reply")
        self.turn = turn
        self._marks = marks
        self._finished = finished
        self._unfolded = False
        self._drawn = 0
        """Pieces of the transcript that are in the body."""
        self._thoughts: list[Piece] = []
        self._thoughts_drawn = 0
        self._legend = Static(LEGEND, classes="legend", markup=False)
        self._fold = Static("", classes="fold", markup=False)
        self._reasoning = MarkdownBody("reasoning")
        self._body = self._fresh_body()
        self._note = Static("", classes="note", markup=False)

    def _fresh_body(self) -> MarkdownBody | TokenBody:
        return TokenBody("body") if self._marks else MarkdownBody("body")

    def compose(self) -> ComposeResult:
        yield Static("model", classes="who", markup=False)
        yield self._legend
        yield self._fold
        yield self._reasoning
        yield self._body
        yield self._note

    async def on_mount(self) -> None:
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Draw all there is, in a body that is empty."""
        self._legend.display = self._marks
        self._note.display = False
        await self.advance()
        if self._finished:
            await self.finish()

    async def advance(self) -> None:
        """Draw what the transcript gained since the last call."""
        fresh = self.turn.transcript.pieces[self._drawn :]
        self._drawn += len(fresh)
        self._thoughts += [piece for piece in fresh if piece.channel == "reasoning"]
        shown = fresh if self._marks else [piece for piece in fresh if piece.channel == "content"]
        if shown:
            await self._body.add(shown)
        await self._show_reasoning()

    async def _show_reasoning(self) -> None:
        """Reasoning costs nothing while it is folded: only its length is shown."""
        self._fold.display = bool(self._thoughts) and not self._marks
        self._reasoning.display = self._fold.display and self._unfolded
        if self._fold.display:
            self._fold.update(f"{'▾' if self._unfolded else '▸'} reasoning · {len(self._thoughts)} tokens")
        if self._reasoning.display:
            await self._reasoning.add(self._thoughts[self._thoughts_drawn :])
            self._thoughts_drawn = len(self._thoughts)
            if self._finished:
                await self._reasoning.finish()

    async def finish(self) -> None:
        """The reply has ended: draw what was held back, and the note."""
        self._finished = True
        await self._body.finish()
        await self._show_reasoning()
        self._note.update(visible(self.turn.note))
        self._note.set_class(self.turn.ending == "error", "error")
        self._note.display = bool(self.turn.note)

    async def carry_on(self) -> None:
        """More text is coming, perhaps in the middle of a line that was drawn as a whole one."""
        self._finished = False
        await self._redraw()

    async def show_marks(self, marks: bool) -> None:
        """Change between rendered Markdown and the token view."""
        if marks != self._marks:
            self._marks = marks
            await self._redraw()

    async def _redraw(self) -> None:
        """Draw everything again, in a new body."""
        self._drawn = self._thoughts_drawn = 0
        self._thoughts = []
        old, self._body = self._body, self._fresh_body()
        await self.mount(self._body, after=old)
        await old.remove()
        await self._reasoning.clear()
        await self._catch_up()

    async def unfold(self, unfolded: bool) -> None:
        """Show or hide the reasoning."""
        self._unfolded = unfolded
        await self._show_reasoning()

    async def on_click(self, event: Click) -> None:
        if event.widget is self._fold:
            await self.unfold(not self._unfolded)
