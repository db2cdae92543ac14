"""Two bodies that a reply's text can be drawn in while it grows: Markdown, and tokens with their origin.

Both are append-only columns of parts of bounded size: a flush touches the last part only, however long
the text is.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.containers import Vertical

from localspec.tui.blocks import MAX_CHARS, MAX_LINES, Part, Splitter
from localspec.tui.transcript import Piece
from localspec.tui.widgets.parts import CodePart, PartView, TextPart, TokenPart


class MarkdownBody(Vertical):
    """A Markdown text that grows."""

    def __init__(self, classes: str) -> None:
        super().__init__(classes=classes)
        self._splitter = Splitter()
        self._views: list[tuple[Part, PartView]] = []

    async def clear(self) -> None:
        """Begin an empty text."""
        self._splitter = Splitter()
        await self._draw()

    async def add(self, pieces: Sequence[Piece]) -> None:
        """Draw more text."""
        self._splitter.feed("".join(piece.text for piece in pieces))
        await self._draw()

    async def finish(self) -> None:
        """The text is complete."""
        self._splitter.finish()
        await self._draw()

    async def _draw(self) -> None:
        parts = [part for part in self._splitter.parts if part.lines or part.tail]
        kept = len(self._views)
        while kept and (kept > len(parts) or self._views[kept - 1][0] is not parts[kept - 1]):
            kept -= 1
        for _, view in self._views[kept:]:
            await view.remove()
        del self._views[kept:]
        if kept:
            self._views[kept - 1][1].changed()
        fresh: list[PartView] = []
        for part in parts[kept:]:
            view = TextPart(part) if part.kind == "text" else CodePart(part)
            if part.continued and self._views:
                self._views[-1][1].styles.margin = (0, 0, 0, part.indent)  # one fence, drawn without a gap
            self._views.append((part, view))
            fresh.append(view)
        if fresh:
            await self.mount_all(fresh)


class TokenBody(Vertical):
    """Tokens as they came, with marks."""

    def __init__(self, classes: str) -> None:
        super().__init__(classes=classes)
        self._last: TokenPart | None = None
        self._filled = (0, 0)

    async def add(self, pieces: Sequence[Piece]) -> None:
        """Draw more tokens."""
        fresh: list[TokenPart] = []
        open_part = self._last
        for piece in pieces:
            lines, chars = self._filled
            if self._last is None or lines >= MAX_LINES or chars >= MAX_CHARS // 2:
                before = self._last.pieces[-1].round if self._last and self._last.pieces else None
                self._last = TokenPart(before)
                fresh.append(self._last)
                lines = chars = 0
            self._last.pieces.append(piece)
            self._filled = (lines + piece.text.count("\n"), chars + len(piece.text))
        if open_part is not None:
            open_part.changed()
        if fresh:
            await self.mount_all(fresh)

    async def finish(self) -> None:
        """Nothing is held back here."""
