"""The scrolling column of turns. It follows the newest text until the reader scrolls up."""

from __future__ import annotations

from textual.containers import VerticalScroll
from textual.widgets import Static

from localspec.tui.conversation import Conversation, LiveTurn
from localspec.tui.widgets.turns import ReplyTurn, UserTurn

PAGE = 12
"""Turns that are mounted at once; earlier ones come with `older`."""
WELCOME = (
    "Write a message and press Enter. Esc stops a reply.\n"
    "F1 keys and commands · F2 models · F4 what was drafted · F8 statistics"
)


class ConversationView(VerticalScroll):
    """Shows a conversation; the caller says what changed."""

    HELP = "The conversation. Scroll up to read: it stays. End goes to the newest text and follows it."

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.marks = False
        self._unfolded = False
        self._conversation: Conversation | None = None
        self._first = 0

    async def show(self, conversation: Conversation) -> None:
        """Show the last turns of a conversation."""
        self._conversation = conversation
        self._first = max(0, len(conversation.turns) - PAGE)
        await self.remove_children()
        await self._mount_notice()
        await self.mount_all(self._view(turn) for turn in conversation.turns[self._first :])
        self.anchor()

    async def _mount_notice(self) -> None:
        text = ""
        if self._first:
            text = f"{self._first} earlier messages: /older shows more of them"
        elif self._conversation is not None and not self._conversation.turns:
            text = WELCOME
        if text:
            await self.mount(Static(text, classes="notice", markup=False), before=0)

    async def older(self) -> bool:
        """Mount an earlier page; returns whether there was one."""
        if self._conversation is None or not self._first:
            return False
        first = max(0, self._first - PAGE)
        page = self._conversation.turns[first : self._first]
        self._first = first
        await self.query(".notice").remove()
        await self.mount_all([self._view(turn) for turn in page], before=0)
        await self._mount_notice()
        self.release_anchor()
        self.scroll_home(animate=False)
        return True

    async def add(self, *turns: LiveTurn) -> None:
        """Show new turns below; the last one is a reply that will grow."""
        await self.query(".notice").remove()
        await self.mount_all(self._view(turn, growing=turn is turns[-1]) for turn in turns)
        await self._prune()

    async def _prune(self) -> None:
        """In a long chat the earliest turns leave the screen, because each one makes every layout dearer."""
        views = self._views()
        if len(views) > 2 * PAGE:
            gone = views[: len(views) - PAGE]
            self._first += len(gone)
            await self.remove_children(gone)
            await self._mount_notice()

    def _views(self) -> list[UserTurn | ReplyTurn]:
        return [view for view in self.children if isinstance(view, UserTurn | ReplyTurn)]

    async def drop(self, *turns: LiveTurn) -> None:
        """Take turns off the screen."""
        for view in self._views():
            if any(view.turn is turn for turn in turns):
                await view.remove()

    def view_of(self, turn: LiveTurn) -> ReplyTurn | None:
        """The widget of a reply, if it is mounted."""
        replies = (view for view in reversed(self._views()) if isinstance(view, ReplyTurn))
        return next((view for view in replies if view.turn is turn), None)

    async def finish(self, turn: LiveTurn) -> None:
        """A reply has ended."""
        view = self.view_of(turn)
        if view is not None:
            await view.finish()

    async def show_marks(self, marks: bool) -> None:
        """Token view on or off, for all replies."""
        self.marks = marks
        for view in self.query(ReplyTurn):
            await view.show_marks(marks)

    async def unfold(self) -> None:
        """Unfold all reasoning, or fold it when it is unfolded."""
        self._unfolded = not self._unfolded
        for view in self.query(ReplyTurn):
            await view.unfold(self._unfolded)

    def _view(self, turn: LiveTurn, *, growing: bool = False) -> UserTurn | ReplyTurn:
        if turn.role == "user":
            return UserTurn(turn)
        return ReplyTurn(turn, marks=self.marks, finished=not growing)
