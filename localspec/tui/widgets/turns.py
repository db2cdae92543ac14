"""One message of the conversation on the screen: the user's, or a reply that grows."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from localspec.tui.conversation import LiveTurn
from localspec.tui.text import visible
from localspec.tui.widgets.growing import MarkdownBody, TokenBody

LEGEND = "token view: underlined = drafted and accepted, the rest is the target's own, ╎ = next round"


class UserTurn(Vertical):
    """What the user wrote, as plain text."""

    HELP = "Your message. `/edit` takes the last one back into the prompt."

    def __init__(self, turn: LiveTurn) -> None:
        super().__init__(classes="turn user")
        self.turn = turn

    def compose(self) -> ComposeResult:
        yield Static("you", classes="who", markup=False)
        yield Static(Content(visible(self.turn.content)), classes="body")


class ReplyTurn(Vertical):
    """A reply: reasoning folded above the text, a note below it."""

    HELP = "A reply. Ctrl+Y copies the last one, F4 shows which tokens were drafted."

    def __init__(self, turn: LiveTurn, *, marks: bool, finished: bool) -> None:
        super().__init__(classes="turn reply")
        self.turn = turn
        self._marks = marks
        self._finished = finished
        self._drawn = 0
        self._reasoning_drawn = 0
        self._unfolded = False

    def compose(self) -> ComposeResult:
        yield Static("model", classes="who", markup=False)
        yield Static(LEGEND, classes="legend", markup=False)
        yield Static("", classes="fold", markup=False)
        yield MarkdownBody()
        yield TokenBody() if self._marks else MarkdownBody()
        yield Static("", classes="note", markup=False)

    async def on_mount(self) -> None:
        self.query_one(".legend").display = self._marks
        self._reasoning.add_class("reasoning")
        self._reasoning.display = False
        self.query_one(".fold").display = False
        await self.advance()
        if self._finished:
            await self.finish()

    @property
    def _reasoning(self) -> MarkdownBody:
        return self.query(MarkdownBody).first()

    @property
    def _body(self) -> MarkdownBody | TokenBody:
        return self.query(".body").last(MarkdownBody if not self._marks else TokenBody)  # type: ignore[return-value]

    async def advance(self) -> None:
        """Draw what the transcript gained since the last call."""
        pieces = self.turn.transcript.pieces
        fresh = pieces[self._drawn :]
        self._drawn = len(pieces)
        if not self._marks:
            fresh = [piece for piece in fresh if piece.channel == "content"]
        if fresh:
            await self._body.add(fresh)
        await self._advance_reasoning()

    async def _advance_reasoning(self) -> None:
        """Reasoning costs nothing while it is folded: only its length is shown."""
        reasoning = [piece for piece in self.turn.transcript.pieces if piece.channel == "reasoning"]
        fold = self.query_one(".fold", Static)
        fold.display = bool(reasoning) and not self._marks
        if not fold.display:
            return
        fold.update(f"{'▾' if self._unfolded else '▸'} reasoning · {len(reasoning)} tokens")
        if self._unfolded:
            await self._reasoning.add(reasoning[self._reasoning_drawn :])
            self._reasoning_drawn = len(reasoning)

    async def finish(self) -> None:
        """The reply has ended: draw what was held back, and the note."""
        self._finished = True
        await self._body.finish()
        note = self.query_one(".note", Static)
        note.update(visible(self.turn.note))
        note.set_class(self.turn.ending == "error", "error")
        note.display = bool(self.turn.note)

    def carry_on(self) -> None:
        """More text is coming."""
        self._finished = False
        self.query_one(".note").display = False

    async def show_marks(self, marks: bool) -> None:
        """Change between rendered Markdown and the token view."""
        if marks == self._marks:
            return
        old = self._body
        self._marks = marks
        self._drawn = 0
        self.query_one(".legend").display = marks
        self._reasoning.display = self._unfolded and not marks
        await self.mount(TokenBody() if marks else MarkdownBody(), after=old)
        await old.remove()
        await self.advance()
        if self._finished:
            await self.finish()

    async def unfold(self, unfolded: bool) -> None:
        """Show or hide the reasoning."""
        self._unfolded = unfolded
        self._reasoning.display = unfolded and not self._marks
        await self._advance_reasoning()

    async def on_click(self, event: object) -> None:
        if getattr(event, "widget", None) is self.query_one(".fold"):
            await self.unfold(not self._unfolded)
