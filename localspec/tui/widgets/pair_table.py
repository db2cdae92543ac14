"""The table of pairs. Redrawing it keeps the mark on its pair and touches only the cells that changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.binding import Binding
from textual.widgets import DataTable

from localspec.tui.picking.rows import COLUMNS, Row


class PairTable(DataTable[Text]):
    """Shows rows in the order given."""

    HELP = (
        "Model pairs, one a row. ● fits with at least 10 % to spare, ◐ tight, ◔ partial: some layers stay on "
        "the CPU, ✗ too big, ? unknown. ~ marks what is estimated, or measured on other hardware, ✓ what was "
        "measured here. "
        "Left and right show more columns; Tab goes to the details and the downloads."
    )

    BINDINGS = [Binding("enter", "select_cursor", "use", tooltip="Use this pair")]  # noqa: RUF012

    def __init__(self, **values: str) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, fixed_columns=1, **values)  # type: ignore[arg-type]
        self._cells: dict[str, tuple[str, ...]] = {}

    def on_mount(self) -> None:
        for name in COLUMNS:
            self.add_column(name, key=name)

    @property
    def marked(self) -> str | None:
        """Name of the marked pair."""
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def show(self, rows: Sequence[Row], mark: str | None = None) -> None:
        """Draw the rows.

        Args:
            mark: the pair to mark; None keeps the mark where it is.
        """
        cells = {row.name: row.cells for row in rows}
        if list(cells) == list(self._cells) and mark not in cells:
            for name, texts in cells.items():
                for column, text, old in zip(COLUMNS, texts, self._cells[name], strict=True):
                    if text != old:
                        self.update_cell(name, column, Text(text), update_width=True)
        else:
            self._rebuild(cells, mark if mark in cells else self.marked)
        self._cells = cells

    def _rebuild(self, cells: dict[str, tuple[str, ...]], mark: str | None) -> None:
        row = self.cursor_row
        self.clear()
        for name, texts in cells.items():
            # A Text, because a table reads a str as markup.
            self.add_row(*(Text(text) for text in texts), key=name)
        names = list(cells)
        self.move_cursor(row=names.index(mark) if mark in names else min(row, max(0, len(names) - 1)))
