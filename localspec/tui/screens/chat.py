"""The one screen to live in: conversation, prompt, status. It draws what the controller delivers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Static, TextArea

from localspec.engine.events import Loading
from localspec.errors import LocalspecError, UsageError
from localspec.tui import commands
from localspec.tui.actions import ACTIONS, completions, parse_slash
from localspec.tui.changing import Held
from localspec.tui.controller import Controller, Wish
from localspec.tui.conversation import Conversation
from localspec.tui.facts import status_of
from localspec.tui.frame import Frame
from localspec.tui.live import Live
from localspec.tui.messages import (
    EventsArrived,
    Loaded,
    LoadFailed,
    LoadNotice,
    LoadProgress,
    ReplyRefused,
)
from localspec.tui.status import spec_state
from localspec.tui.text import one_line
from localspec.tui.widgets.banner import Banner
from localspec.tui.widgets.conversation_view import ConversationView
from localspec.tui.widgets.prompt import Prompt
from localspec.tui.widgets.statistics import StatisticsPane
from localspec.tui.widgets.status_bar import StatusBar
from localspec.tui.writing import ReplyWriter

if TYPE_CHECKING:
    from localspec.tui.setup import ChatSetup

TICK_S = 0.5
IMMEDIATE = frozenset({"reply.stop"})
"""Actions that must not wait behind a flush that is being drawn."""


class ChatScreen(Screen[None]):
    """Holds the chat's state; what the keys do is in `commands`."""

    AUTO_FOCUS = "#prompt"
    BINDINGS = [  # noqa: RUF012
        Binding(
            a.keys, f"run('{a.id}')", a.footer or a.title, show=bool(a.footer), priority=a.priority, id=a.id,
            tooltip=a.title,
        )
        for a in ACTIONS
        if a.keys and not a.everywhere
    ]  # fmt: skip

    class Run(Message):
        """Run an action, after what is being drawn."""

        def __init__(self, action_id: str, argument: str = "") -> None:
            super().__init__()
            self.action_id = action_id
            self.argument = argument

    def __init__(self, setup: ChatSetup) -> None:
        super().__init__()
        self.setup = setup
        self.clock = setup.clock
        self.controller = Controller(setup.make_session, self.post_message)
        self.conversation = Conversation(setup.store, "", setup.chat_settings, setup.system)
        self.load_settings = setup.load_settings
        """As they will be after the next load; `controller.wish.load` is what holds now."""
        self.interrupted_at = -math.inf
        self.live = Live(setup.clock)
        self.spec = spec_state(None, self.conversation.settings.speculation)
        self.queued: str | None = setup.initial_prompt
        self.attachments: list[tuple[str, str]] = []
        """(name, text) of files for the next message."""
        self._sent: tuple[str, str, list[tuple[str, str]]] = ("", "", [])
        """The last question: as sent, as typed, and its files."""
        self.editing = False
        """The prompt holds the last message, to replace it."""
        self.writer = ReplyWriter(self)
        self._loading = ""

    # -- layout -----------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with Horizontal(id="main"):
            yield ConversationView(id="conversation")
            yield StatisticsPane(id="statistics")
        yield Banner(id="banner")
        yield Static(id="hints", markup=False)
        yield Prompt(id="prompt")
        yield StatusBar(id="status")
        yield Footer(compact=True, show_command_palette=False)

    async def on_mount(self) -> None:
        if self.setup.resume is not None:
            self.conversation = Conversation.resume(
                self.setup.store, self.setup.resume, self.setup.chat_settings
            )
        self.prompt.earlier = list(self.setup.store.recent_prompts())
        await self.view.show(self.conversation)
        self.refresh_status()
        self.set_interval(TICK_S, self._tick)
        if self.setup.pick_first:
            self.run("models.open")
        else:
            await self.load(Wish(load=self.load_settings))

    @property
    def prompt(self) -> Prompt:
        return self.query_one("#prompt", Prompt)

    @property
    def view(self) -> ConversationView:
        return self.query_one("#conversation", ConversationView)

    @property
    def banner(self) -> Banner:
        return self.query_one("#banner", Banner)

    # -- actions ----------------------------------------------------------------------------------

    def action_run(self, action_id: str) -> None:
        self.run(action_id)

    def run(self, action_id: str, argument: str = "") -> None:
        """Do what an id of the action table says."""
        if action_id in IMMEDIATE:
            commands.stop(self)
        else:
            self.post_message(self.Run(action_id, argument))

    @on(Run)
    async def _run_action(self, message: Run) -> None:
        try:
            await commands.run(self, message.action_id, message.argument)
        except LocalspecError as error:
            self.tell_error(error)
        self.refresh_status()

    @on(Banner.Pressed)
    def _banner_pressed(self, message: Banner.Pressed) -> None:
        self.prompt.focus()
        self.run(message.action_id)

    @property
    def held(self) -> Held:
        return Held(self.conversation.settings, self.load_settings)

    def hold(self, held: Held) -> None:
        """Take over changed settings."""
        self.load_settings = held.load
        if held.chat != self.conversation.settings:
            self.conversation.set_settings(held.chat)

    def tell(self, text: str) -> None:
        """Say something in passing."""
        self.notify(one_line(text, 400), markup=False)

    def tell_error(self, error: LocalspecError) -> None:
        """Say what went wrong, in passing, with the next step."""
        assert isinstance(self.app, Frame)
        self.app.tell_error(error)

    def warn(self, text: str) -> None:
        """Say something that deserves a longer look."""
        self.notify(one_line(text, 400), severity="warning", markup=False, timeout=10)

    async def show_error(self, error: LocalspecError) -> None:
        """Show an error that stays until something is done about it."""
        if self.controller.state == "failed":
            self.spec = spec_state(None, self.conversation.settings.speculation)
        await self.banner.show_error(error, commands.remedies(error))

    # -- prompt -----------------------------------------------------------------------------------

    @on(Prompt.Sent)
    async def _prompt_sent(self, message: Prompt.Sent) -> None:
        try:
            slash = parse_slash(message.text)
        except UsageError as error:
            self.prompt.give_back(message.text)
            self.tell_error(error)
            return
        if slash is not None:
            self.run(slash[0].id, slash[1])
            return
        text = message.text[1:] if message.text.startswith("//") else message.text
        self.prompt.remember(text)
        await self.send(text)

    async def send(self, text: str) -> None:
        """Ask, or queue the text until the model is free."""
        if self.writer.busy or self.controller.state == "loading":
            self.queued = text if self.queued is None else f"{self.queued}\n{text}"
            self.refresh_status()
            return
        if self.controller.state != "ready":
            self.prompt.give_back(text)
            self.tell_error(UsageError("no model is loaded", hint="/reload or F2"))
            return
        if self.editing:
            self.editing = False
            old = self.conversation.turns[-2 if self.conversation.last_reply else -1 :]
            self.conversation.take_back()
            await self.view.drop(*old)
        whole = "".join(commands.attached(name, body) for name, body in self.attachments) + text
        self._sent = (whole, text, self.attachments)
        self.attachments = []
        reply = self.conversation.ask(whole)
        await self.view.add(*self.conversation.turns[-2:])
        self.view.anchor()
        self.writer.begin(reply)

    def return_question(self, whole: str) -> None:
        """A question that got no answer returns to the prompt, its files beside it."""
        sent, text, files = self._sent
        if whole == sent:
            self.attachments = files + self.attachments
            self.prompt.give_back(text)
        else:
            self.prompt.give_back(whole)

    @on(Prompt.NewestWanted)
    def _newest_wanted(self) -> None:
        self.view.anchor()

    @on(Prompt.PageWanted)
    def _page_wanted(self, message: Prompt.PageWanted) -> None:
        turn = self.view.scroll_page_up if message.up else self.view.scroll_page_down
        turn(animate=False)

    @on(TextArea.Changed, "#prompt")
    def _prompt_changed(self) -> None:
        self.refresh_hints()

    @on(Prompt.CompletionWanted)
    def _completion_wanted(self) -> None:
        found = completions(self.prompt.text)
        if found:
            self.prompt.put(f"/{found[0].slash}" + (" " if found[0].argument else ""))

    def refresh_hints(self) -> None:
        """The line above the prompt: completions, attachments, what is queued or edited."""
        lines = []
        if self.editing:
            lines.append("editing your last message: Enter replaces it, Esc leaves it as it was")
        if self.attachments:
            names = ", ".join(one_line(name, 40) for name, _ in self.attachments)
            lines.append(f"attached: {names} (/detach takes off)")
        if self.queued is not None:
            lines.append("queued: " + one_line(self.queued, 70))
        lines += [
            f"/{action.slash} {action.argument}".ljust(24) + action.title
            for action in completions(self.prompt.text)[:5]
        ]
        hints = self.query_one("#hints", Static)
        hints.display = bool(lines)
        hints.update("\n".join(lines))

    # -- model ------------------------------------------------------------------------------------

    async def load(self, wish: Wish) -> None:
        """Load a model, ending the one that is there."""
        self._loading = "loading"
        await self.banner.show_load(Loading(wish.pair or "the model", None))
        self.spec = spec_state(None, self.conversation.settings.speculation)
        self.controller.load(wish)
        self.refresh_status()

    @on(LoadProgress)
    async def _load_progress(self, message: LoadProgress) -> None:
        if self.controller.state != "loading":
            return
        fraction = message.event.fraction
        self._loading = "loading" if fraction is None else f"loading {100 * fraction:.0f} %"
        await self.banner.show_load(message.event)
        self.refresh_status()

    @on(LoadNotice)
    def _load_notice(self, message: LoadNotice) -> None:
        if self.setup.config.notices:
            self.warn(message.notice.reason)

    @on(Loaded)
    async def _loaded(self, message: Loaded) -> None:
        self.banner.hide()
        self.live = Live(self.clock)
        before, self.conversation.pair = self.conversation.pair, message.info.pair
        if before and before != message.info.pair:
            self.tell(f"this chat was written with {before}, {message.info.pair} carries on")
        self.spec = spec_state(message.info, self.conversation.settings.speculation)
        self.refresh_status()
        await self.send_queued()

    @on(LoadFailed)
    async def _load_failed(self, message: LoadFailed) -> None:
        self.give_back()
        if message.stopped:
            await self.banner.show_remark("the load was stopped", ["models.reload", "models.open"])
        else:
            await self.show_error(message.error)
        self.refresh_status()

    # -- reply ------------------------------------------------------------------------------------

    @on(EventsArrived)
    def _events_arrived(self) -> None:
        self.writer.schedule()

    @on(ReplyRefused)
    async def _reply_refused(self, message: ReplyRefused) -> None:
        await self.writer.refused(message.error)
        self.refresh_status()

    async def send_queued(self) -> None:
        """The model is free: send what waited for it."""
        queued, self.queued = self.queued, None
        if queued is not None:
            await self.send(queued)

    def give_back(self) -> None:
        """What was queued returns to the prompt."""
        queued, self.queued = self.queued, None
        if queued is not None:
            self.prompt.give_back(queued)

    # -- numbers ----------------------------------------------------------------------------------

    async def _tick(self) -> None:
        death = self.controller.death()
        if death is not None:
            await self.show_error(death)
        if death is not None or self.controller.busy:
            self.refresh_status()

    def refresh_status(self) -> None:
        """Title, hints, status line and statistics as they are now."""
        self.refresh_hints()
        title = self.conversation.title or "new chat"
        mark = "incognito · " if self.conversation.store.incognito else ""
        self.query_one("#title", Static).update(f"localspec · {mark}{one_line(title, 60)}")
        self.query_one("#status", StatusBar).status = status_of(
            self.controller, self.live, self.spec, loading=self._loading
        )
        if self.has_class("statistics"):
            self.query_one("#statistics", StatisticsPane).show(self.live, self.controller.info)
