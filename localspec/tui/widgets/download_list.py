"""Running and waiting downloads: bar, share, rate, time left and state, one line each."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import DataTable

from localspec.output import amount
from localspec.tui.picking.downloads import Transfer
from localspec.tui.picking.rows import NAME_WIDTH
from localspec.tui.text import one_line
from localspec.tui.widgets.bars import bar

BAR = 10


class DownloadList(DataTable[Text]):
    """Shows transfers; hidden while there is none."""

    HELP = (
        "Downloads, oldest first. p pauses, r resumes, x cancels the marked one. They go on when the picker "
        "is left and, after a restart, from where they were."
    )

    def __init__(self, **values: str) -> None:
        super().__init__(cursor_type="row", show_header=False, **values)  # type: ignore[arg-type]

    def on_mount(self) -> None:
        self.add_column("line", key="line")

    def show(self, transfers: Sequence[Transfer]) -> None:
        """Draw the transfers; the marked one stays marked."""
        self.display = bool(transfers)
        wanted = [transfer.name for transfer in transfers]
        if [row.value for row in self.rows] == wanted:
            for transfer in transfers:
                self.update_cell(transfer.name, "line", Text(line(transfer)), update_width=True)
            return
        marked = self.marked
        self.clear()
        for transfer in transfers:
            self.add_row(Text(line(transfer)), key=transfer.name)
        if marked in wanted:
            self.move_cursor(row=wanted.index(marked))

    @property
    def marked(self) -> str | None:
        """Name of the marked unit."""
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value


def line(transfer: Transfer) -> str:
    """One download in one line; what matters most comes first, because a narrow terminal cuts the end."""
    share = transfer.share
    drawn = bar(share, BAR).ljust(BAR, "·") if share is not None else "?" * BAR
    percent = f"{100 * share:3.0f} %" if share is not None else "  – %"
    parts = [one_line(transfer.name, NAME_WIDTH)]
    if transfer.rate_bps > 0:
        parts.append(f"{amount(transfer.rate_bps, 'bytes')}/s")
    else:
        parts.append(transfer.state)
    if transfer.eta_s is not None:
        parts.append(f"{eta_text(transfer.eta_s)} left")
    if transfer.remark:
        parts.append(one_line(transfer.remark, 200))
    total = "?" if transfer.total is None else amount(transfer.total, "bytes")
    parts.append(f"{amount(transfer.done, 'bytes')} of {total}")
    return f"{drawn} {percent} " + " · ".join(parts)


def eta_text(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
