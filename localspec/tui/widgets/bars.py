"""Horizontal bars as text: a histogram, a curve over positions, and the memory of a device in parts.

Each bar has its number beside it, so no reading needs colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int) -> str:
    """A bar of at most `width` cells for a share of 0…1, exact to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, part = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[part] if part else "")


def histogram(counts: Sequence[int], width: int) -> Content:
    """One line per index: index, bar relative to the largest count, count."""
    if not counts:
        return Content("no rounds with a draft yet")
    top = max(counts) or 1
    labels = [str(i) for i in range(len(counts))]
    room = _room(width, labels, [str(count) for count in counts])
    return _lines([(name, count / top, str(count)) for name, count in zip(labels, counts, strict=True)], room)


def curve(shares: Sequence[float | None], width: int) -> Content:
    """One line per draft position: its acceptance of those tested, `–` where none was."""
    if not shares:
        return Content("no draft tested yet")
    labels = [str(i + 1) for i in range(len(shares))]
    values = ["–" if share is None else f"{100 * share:.0f} %" for share in shares]
    room = _room(width, labels, values)
    rows = zip(labels, shares, values, strict=True)
    return _lines([(name, share or 0.0, value) for name, share, value in rows], room)


def _room(width: int, labels: Sequence[str], values: Sequence[str]) -> int:
    return max(1, width - max(map(len, labels)) - max(map(len, values)) - 2)


def _lines(rows: Sequence[tuple[str, float, str]], room: int) -> Content:
    wide = max(len(label) for label, _, _ in rows)
    return Content("\n").join(
        Content.assemble(
            (label.rjust(wide) + " ", "$text-muted"), (bar(share, room), "$primary"), " " + value
        )
        for label, share, value in rows
    )


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """A share of a device's memory."""

    name: str
    size_bytes: int
    style: str
    fill: str
    """One character that tells the part from its neighbours without colour."""


def memory_bar(parts: Sequence[MemoryPart], total_bytes: int, width: int) -> Content:
    """One bar of all parts in order; a part that is there is never drawn as nothing."""
    pieces: list[tuple[str, str]] = []
    used = 0
    cells_used = 0
    for part in parts:
        used += part.size_bytes
        cells = round(min(1.0, used / total_bytes) * width) - cells_used if total_bytes else 0
        if part.size_bytes and cells_used < width:
            cells = max(1, cells)
        cells = max(0, min(cells, width - cells_used))
        cells_used += cells
        pieces.append((part.fill * cells, part.style))
    pieces.append(("·" * (width - cells_used), "$text-muted"))
    return Content.assemble(*[piece for piece in pieces if piece[0]])
