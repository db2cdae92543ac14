"""The model picker (F2, `pick-models`): which pair fits, why, and how far its download is.

The screen draws and keeps the state; what the keys do is in `commands.picking`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static
from textual.worker import Worker

from localspec.errors import LocalspecError
from localspec.planning import PairPlan
from localspec.tui.background import in_background
from localspec.tui.commands import picking as commands
from localspec.tui.picking.actions import PICKER_ACTIONS
from localspec.tui.picking.downloads import Downloads, Transfer
from localspec.tui.picking.palette import PickerProvider
from localspec.tui.picking.question import Question
from localspec.tui.picking.rows import ORDERS, Row, make_rows, matching
from localspec.tui.picking.services import Picked, Services
from localspec.tui.text import one_line
from localspec.tui.widgets.download_list import DownloadList
from localspec.tui.widgets.pair_detail import PairDetail
from localspec.tui.widgets.pair_table import PairTable

TICK_S = 0.5
DETAIL_AFTER_S = 0.25
"""A row must stay marked for so long before its full plan is worked out."""


class PickerScreen(Screen[Picked | None]):
    """Ends with what was picked; outside a chat picking makes a pair the default and the screen stays."""

    CSS_PATH = "picker.tcss"
    AUTO_FOCUS = "#picker-table"
    COMMANDS = {PickerProvider}  # noqa: RUF012
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (80, "-medium"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (22, "-tall"), (30, "-tall30")]  # noqa: RUF012
    BINDINGS = [  # noqa: RUF012
        Binding(
            a.keys,
            f"run('{a.id}')",
            a.footer,
            show=bool(a.footer),
            priority=a.priority,
            id=a.id,
            tooltip=a.title,
        )
        for a in PICKER_ACTIONS
        if a.keys
    ]

    def __init__(
        self,
        services: Services,
        downloads: Downloads,
        question: Question,
        *,
        in_chat: bool,
        first: bool = False,
    ) -> None:
        """Args:
        in_chat: a pick loads the pair.
        first: there is no default pair yet.
        """
        super().__init__()
        self.services = services
        self.downloads = downloads
        self.question = question
        self.in_chat = in_chat
        self.first = first
        self.order = next(iter(ORDERS))
        self.rows: list[Row] = []
        """All rows, in the catalogue's order."""
        self._plans: Sequence[PairPlan] = ()
        self._details: dict[tuple[Question, str], PairPlan] = {}
        self._mark: str | None = None
        self._note = "reading devices and files…"
        self._finished = len(downloads.finished)

    # -- layout -----------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield Static(id="picker-title", markup=False)
        yield Static(commands.FIRST, id="picker-first", markup=False)
        yield Input(placeholder="name, fit, method, licence or state", id="picker-filter", compact=True)
        yield PairTable(id="picker-table")
        yield Static(id="picker-note", markup=False)
        yield PairDetail(id="picker-detail")
        yield DownloadList(id="picker-downloads")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self.filter_field.display = False
        self.services.forget_machine()
        self.downloads.wake()
        self.refresh_rows()
        self.plan()
        self.set_interval(TICK_S, self._tick)

    @property
    def table(self) -> PairTable:
        return self.query_one("#picker-table", PairTable)

    @property
    def filter_field(self) -> Input:
        return self.query_one("#picker-filter", Input)

    @property
    def download_list(self) -> DownloadList:
        return self.query_one("#picker-downloads", DownloadList)

    @property
    def current(self) -> Row | None:
        """The marked row, with its full plan when that is known."""
        name = self.table.marked
        row = next((row for row in self.rows if row.name == name), None)
        full = self._details.get((self.question, name or ""))
        return replace(row, plan=full) if row and full else row

    def row(self, name: str) -> Row | None:
        """The row of this pair."""
        return next((row for row in self.rows if row.name == name), None)

    # -- actions ----------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A key that comes first is a character where text is typed."""
        first = any(parameters == (a.id,) for a in PICKER_ACTIONS if a.priority)
        return not (first and isinstance(self.focused, Input))

    def action_run(self, action_id: str) -> None:
        self.run(action_id)

    def run(self, action_id: str) -> None:
        """Do what an id of the picker's action table says: at once, or in a worker when it asks or waits."""
        handler = commands.HANDLERS[action_id]
        if inspect.iscoroutinefunction(handler):
            self._beside("action", partial(self._wait_for, handler), exclusive=False)
            return
        try:
            handler(self)
        except LocalspecError as error:
            self.tell_error(error)
        if self.is_attached:
            self.refresh_rows()

    async def _wait_for(self, handler: Callable[[PickerScreen], Awaitable[None]]) -> None:
        try:
            await handler(self)
        except LocalspecError as error:
            self.tell_error(error)
        if self.is_attached:
            self.refresh_rows()

    def _beside(
        self, group: str, work: Callable[[], Coroutine[None, None, None]], *, exclusive: bool = True
    ) -> Worker[None]:
        """Run a coroutine beside the screen, instead of what runs in its group when exclusive."""
        # A function, not its coroutine: one that is replaced before it begins would never be awaited.
        return self.run_worker(work, group=group, exclusive=exclusive)

    def tell(self, text: str) -> None:
        """Say something in passing."""
        self.notify(one_line(text, 400), markup=False)

    def tell_error(self, error: LocalspecError) -> None:
        """Say what went wrong, in passing, with the next step."""
        hint = f" ({error.hint})" if error.hint else ""
        self.notify(one_line(error.message + hint, 400), severity="error", markup=False, timeout=8)

    # -- plans ------------------------------------------------------------------------------------

    class Planned(Message):
        """The plans of a question, or why there are none."""

        def __init__(self, question: Question, outcome: Sequence[PairPlan] | LocalspecError) -> None:
            super().__init__()
            self.question = question
            self.outcome = outcome

    def ask(self, question: Question) -> None:
        """Measure the pairs against something else."""
        self.question = question
        self.plan()

    def plan(self, *, mark: str | None = None) -> None:
        """Work all plans out again, beside the screen.

        Args:
            mark: the pair to mark then, instead of the one that is.
        """
        self._mark = mark or self._mark
        self._details.clear()
        self._note = "working it out…"
        self._show_title()
        self._beside("plan", partial(self._plan, self.question))

    async def _plan(self, question: Question) -> None:
        try:
            plans = await in_background(lambda: self.services.plans(question))
        except LocalspecError as error:
            self.post_message(self.Planned(question, error))
        else:
            self.post_message(self.Planned(question, plans))

    @on(Planned)
    def _planned(self, message: Planned) -> None:
        if message.question != self.question:
            return
        self._note = ""
        if isinstance(message.outcome, LocalspecError):
            self.tell_error(message.outcome)
        else:
            self._plans = message.outcome
        self.refresh_rows()
        self._want_detail()

    def _want_detail(self) -> None:
        row = self.current
        if row is not None and (self.question, row.name) not in self._details:
            self._beside("detail", partial(self._detail, self.question, row.name))

    async def _detail(self, question: Question, name: str) -> None:
        """The full plan of one pair: suggestions and verdict cost time that a list cannot spend."""
        await asyncio.sleep(DETAIL_AFTER_S)
        try:
            plan = await in_background(lambda: self.services.detail(name, question))
        except LocalspecError as error:
            self.tell_error(error)
            return
        self.keep(question, plan)

    def keep(self, question: Question, plan: PairPlan) -> None:
        """Show a full plan from now on."""
        self._details[question, plan.name] = plan
        if self.is_attached:  # the user may have left meanwhile
            self._show_detail()

    # -- drawing ----------------------------------------------------------------------------------

    def refresh_rows(self) -> None:
        """Draw the table, the detail and the downloads as they are now."""
        transfers = self.downloads.transfers()
        self.rows = make_rows(self.services.catalog, self._plans, transfers, self.services.default)
        query = self.filter_field.value
        shown = sorted(matching(self.rows, query), key=ORDERS[self.order])
        self.query_one("#picker-first").display = self.first and self.services.default is None
        self.table.show(shown, self._mark)
        if any(row.name == self._mark for row in shown):
            self._mark = None
        note = self.query_one("#picker-note", Static)
        note.display = bool(self.rows and not shown)
        note.update(f"0 of {len(self.rows)} match “{one_line(query, 40)}”: Esc clears the filter")
        self._show_title(len(shown))
        self._show_detail(transfers)

    def _show_title(self, shown: int | None = None) -> None:
        count = (
            f"{len(self.rows)} pairs"
            if shown in (None, len(self.rows))
            else f"{shown} of {len(self.rows)} pairs"
        )
        compared = {plan.compared_with for plan in self._plans}
        machine = " (RAM, no GPU)" if self.question.budget is None and compared == {"CPU"} else ""
        parts = [f"models · {self.question.memory}{machine}", self.question.text, count, f"by {self.order}"]
        self.query_one("#picker-title", Static).update(
            " · ".join([*parts, self._note] if self._note else parts)
        )

    def _show_detail(self, transfers: Sequence[Transfer] | None = None) -> None:
        self.query_one("#picker-detail", PairDetail).show(self.current, self._note)
        if transfers is not None:
            self.download_list.show(transfers)

    def _tick(self) -> None:
        """Follow downloads, also those of other processes; a finished one changes what is installed."""
        finished = len(self.downloads.finished)
        if finished != self._finished:
            for name in self.downloads.finished[self._finished :]:
                self.tell(f"{name} is downloaded and verified")
            self._finished = finished
            self.plan()
        elif self.downloads.transfers() or self.download_list.display:
            self.refresh_rows()

    # -- events of widgets ------------------------------------------------------------------------

    @on(DataTable.RowHighlighted, "#picker-table")
    def _marked(self) -> None:
        self._show_detail()
        self._want_detail()

    @on(DataTable.RowSelected, "#picker-table")
    def _selected(self) -> None:
        self.run("picker.use")

    @on(Input.Changed, "#picker-filter")
    def _filter_changed(self) -> None:
        self.refresh_rows()

    @on(Input.Submitted, "#picker-filter")
    def _filter_done(self) -> None:
        self.table.focus()

    @on(Input.Blurred, "#picker-filter")
    def _filter_left(self) -> None:
        self.filter_field.display = bool(self.filter_field.value)
