"""The status line: one row that always says whether speculation works and how fast the text comes."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from localspec.tui.status import Status, status_line


class StatusBar(Widget):
    """Shows a `Status`, shortened to the width."""

    HELP = (
        "The status line: target + draft, context used, decode rate, speed-up against plain decoding "
        "measured in this session at this context length (– until 32 plain tokens were measured), share of "
        "tested draft tokens that the target accepted, memory, and the state of speculation. F8 shows more."
    )

    status: reactive[Status] = reactive(Status())

    def render(self) -> Content:
        return Content(status_line(self.status, self.content_size.width or 80))
