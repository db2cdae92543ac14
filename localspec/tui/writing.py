"""One reply from question to end: takes the controller's events, grows the turn, draws it at a pace.

Belongs to a chat screen, which it asks for its view, prompt and banner.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from localspec.engine.events import Done, Event, Notice, Text, Token
from localspec.errors import LocalspecError
from localspec.tui.collecting import SETTLE_S
from localspec.tui.conversation import LiveTurn
from localspec.tui.ending import note_of
from localspec.tui.pacing import Pacer
from localspec.tui.status import spec_state

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen

AUTOSAVE_S = 5.0
FLUSH_EVENTS = 256
"""Most events drawn at once: a burst of thousands must not keep a key waiting."""
SHORTEST_WAIT_S = 0.001


class ReplyWriter:
    """Writes at most one reply at a time."""

    def __init__(self, screen: ChatScreen) -> None:
        self.replaced: LiveTurn | None = None
        """The reply that is being written again; it comes back if the new one stays empty."""
        self._screen = screen
        self._growing: LiveTurn | None = None
        self._pacer = Pacer(screen.clock)
        self._flush_due = False
        self._saved_at = 0.0

    @property
    def busy(self) -> bool:
        """Whether a reply is being written, its last events not yet drawn included."""
        return self._growing is not None

    def begin(self, reply: LiveTurn, *, continue_last: bool = False) -> None:
        """Let the model write a reply whose view is mounted."""
        screen = self._screen
        self._growing = reply
        self._saved_at = screen.clock()
        screen.banner.hide()  # what it said was about the request before
        screen.spec = spec_state(screen.controller.info, screen.conversation.settings.speculation)
        screen.live.begin_reply()
        screen.controller.ask(screen.conversation.request(continue_last=continue_last))
        screen.refresh_status()

    def schedule(self) -> None:
        """Something arrived: draw it at once after a pause, else when the pacer allows."""
        if not self._flush_due:
            self._flush_due = True
            self._screen.set_timer(max(SHORTEST_WAIT_S, self._pacer.wait_s()), self._flush)

    async def _flush(self) -> None:
        """Draw all that arrived; the next flush waits in proportion to what this one cost."""
        screen = self._screen
        self._flush_due = False
        started = screen.clock()
        done: Done | None = None
        for event in screen.controller.take(FLUSH_EVENTS):
            self._observe(event)
            done = event if isinstance(event, Done) else done
        view = screen.view.view_of(self._growing) if self._growing else None
        if view is not None:
            await view.advance()
        if done is not None:
            await self._ended(done)
        elif screen.clock() - self._saved_at > AUTOSAVE_S:
            self._saved_at = screen.clock()
            screen.conversation.save_reply()
        screen.refresh_status()
        screen.call_after_refresh(lambda: self._drawn(screen.clock() - started))

    def _drawn(self, seconds: float) -> None:
        self._pacer.spent(seconds)
        if self._screen.controller.inbox:
            self.schedule()

    def _observe(self, event: Event) -> None:
        """Count an event; add its text to the reply."""
        screen = self._screen
        screen.live.observe(event)
        match event:
            case Token() | Text():
                if self._growing is not None:
                    self._growing.transcript.add(event)
            case Notice():
                screen.spec = screen.spec.noticed(event)
                remark = event.kind in ("raised", "info", "off") and screen.setup.config.notices
                if event.kind in ("alarm", "reset") or remark:
                    screen.warn(event.reason)

    async def _ended(self, done: Done) -> None:
        screen = self._screen
        reply, self._growing = self._growing, None
        if reply is None:
            return
        screen.set_timer(SETTLE_S, self._tidy)
        reply.ending = done.reason
        reply.note = note_of(done, None if screen.spec.plain else screen.live.speedup())
        if reply.transcript.pieces:
            screen.conversation.save_reply()
            await screen.view.finish(reply)
        else:
            await self._undo(reply)
        self.replaced = None
        if done.reason == "error":
            await screen.show_error(LocalspecError(done.error or "the reply failed"))
        if done.reason in ("cancelled", "error"):
            screen.give_back()
        else:
            await screen.send_queued()

    def _tidy(self) -> None:
        """Free what the reply's drawing left behind, unless the next one is being drawn."""
        if not self.busy:
            gc.collect()

    async def refused(self, error: LocalspecError) -> None:
        """The session did not start the reply."""
        reply, self._growing = self._growing, None
        if reply is not None and reply.transcript.pieces:
            await self._screen.view.finish(reply)  # it was to be continued
        elif reply is not None:
            await self._undo(reply)
        self.replaced = None
        self._screen.give_back()
        await self._screen.show_error(error)

    async def _undo(self, reply: LiveTurn) -> None:
        """A reply without text: the old one comes back, or the question returns to the prompt."""
        screen = self._screen
        await screen.view.drop(reply)
        if self.replaced is not None:
            screen.conversation.turns[-1] = self.replaced
            await screen.view.add(self.replaced)
            await screen.view.finish(self.replaced)
            return
        question = screen.conversation.turns[-2]
        text = screen.conversation.take_back()
        screen.conversation.forget_if_empty()
        await screen.view.drop(question)
        screen.return_question(text)

    def settle(self) -> None:
        """The program ends: keep what the running reply has said so far."""
        for event in self._screen.controller.take(sys.maxsize):
            if isinstance(event, Token | Text) and self._growing is not None:
                self._growing.transcript.add(event)
        if self._growing is not None:
            self._growing.ending = "cancelled"
            self._screen.conversation.save_reply()
