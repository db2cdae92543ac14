"""Draws one part of a text: Markdown prose, code, or tokens with their origin.

A part lays the screen out again only when its height changes: while a line grows it just repaints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound
from textual.content import Content
from textual.geometry import Size
from textual.highlight import highlight
from textual.widget import Widget

from localspec.tui import markdown
from localspec.tui.blocks import Part
from localspec.tui.text import visible
from localspec.tui.transcript import Piece

TAB = 4
DRAFTED = "underline $text-success"
ROUND = ("╎", "$text-muted")


class PartView(Widget):
    """Content that depends on the width; `changed` after its source did."""

    DEFAULT_CLASSES = "part"

    def __init__(self, draw: Callable[[int], Content]) -> None:
        """
        Args:
            draw: The content for a width in cells.
        """
        super().__init__()
        self._draw = draw
        self._drawn: tuple[int, Content] = (0, Content(""))

    def changed(self) -> None:
        width, old = self._drawn
        self._drawn = (0, old)
        if not width:
            self.refresh(layout=True)
            return
        fresh = self._content(width)
        self.refresh(layout=self._height(fresh, width) != self._height(old, width))

    def _height(self, content: Content, width: int) -> int:
        # As Widget.get_content_height does it: styles serve as the mapping of rules.
        return content.get_height(self.styles, width)  # type: ignore[arg-type]

    def _content(self, width: int) -> Content:
        if self._drawn[0] != width:
            self._drawn = (width, self._draw(width))
        return self._drawn[1]

    def render(self) -> Content:
        return self._content(self.content_size.width or 80)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._height(self._content(width), width) if width else 0


class TextPart(PartView):
    """A part of a Markdown text."""

    def __init__(self, part: Part) -> None:
        super().__init__(lambda width: markdown.render(visible(part.source), width))


class CodePart(PartView):
    """A part of a code fence, with colours where the language is known."""

    def __init__(self, part: Part) -> None:
        super().__init__(lambda _: _code(part))
        self.styles.margin = (0, 0, 1, part.indent)


def _code(part: Part) -> Content:
    return highlight(visible(part.source).expandtabs(TAB), language=lexer_name(part.language))


@cache
def lexer_name(language: str) -> str:
    """The language if Pygments knows it, else `text`: asking for an unknown or no name costs 60-100 ms."""
    try:
        get_lexer_by_name(language)
    except ClassNotFound:
        return "text"
    return language


class TokenPart(PartView):
    """Tokens as plain text: accepted drafts underlined, a mark between rounds."""

    def __init__(self, round_before: int | None) -> None:
        self.pieces: list[Piece] = []
        super().__init__(lambda _: Content.assemble(*token_runs(self.pieces, round_before)))


def token_runs(pieces: Sequence[Piece], round_before: int | None) -> list[tuple[str, str]]:
    """(text, style) runs of pieces; `round_before` is the round of the text before them."""
    runs: list[tuple[str, str]] = []
    last = round_before
    for piece in pieces:
        if last is not None and piece.round != last:
            runs.append(ROUND)
        last = piece.round
        style = DRAFTED if piece.from_draft else ""
        if piece.channel == "reasoning":
            style += " italic"
        runs.append((visible(piece.text), style.strip()))
    return runs
