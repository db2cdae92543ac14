"""Draws one part of a Markdown text as a single piece of content for a given width.

Textual's own Markdown widget builds several widgets per list item and rebuilds the whole list with every
append: 0.2-0.7 s per flush for 25-60 items on two slow cores. One content per part costs 2-10 ms. Parsing
is markdown-it's; raw HTML stays text. Links are shown with their address and never open by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from textual.content import Content

CODE = "$text-warning on $warning 10%"
LINK = "underline $text-accent"
FAINT = "$text-muted"
HEADINGS = {
    "h1": "bold underline $text-primary", "h2": "bold $text-primary", "h3": "bold underline",
    "h4": "bold", "h5": "bold italic", "h6": "italic",
}  # fmt: skip
INLINE = {"strong_open": "bold", "em_open": "italic", "s_open": "strike"}
BULLETS = "•◦▪"
RULE = "─"


@cache
def parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def render(source: str, width: int) -> Content:
    """The content of a text part, hard-wrapped only where wrapped lines hang under a bullet or quote."""
    blocks = list(_Walker(parser().parse(source), max(width, 8)).blocks())
    lines: list[Content] = []
    for gap, block in blocks:
        if gap and lines:
            lines.append(Content(""))
        lines += block
    return Content("\n").join(lines)


class _Walker:
    """Turns the parser's flat token list into (gap before, lines) pairs."""

    def __init__(self, tokens: Sequence[Token], width: int) -> None:
        self._tokens = tokens
        self._width = width
        self._first = ""
        """What the next line of the innermost item starts with, its bullet."""
        self._indents: list[str] = []
        self._counters: list[int | None] = []
        self._tight = False

    def blocks(self) -> Iterator[tuple[bool, list[Content]]]:
        at = 0
        tokens = self._tokens
        while at < len(tokens):
            token = tokens[at]
            at += 1
            match token.type:
                case "bullet_list_open":
                    self._counters.append(None)
                case "ordered_list_open":
                    self._counters.append(int(token.attrs.get("start", 1)))
                case "bullet_list_close" | "ordered_list_close":
                    self._counters.pop()
                case "list_item_open":
                    self._open_item()
                case "list_item_close" | "blockquote_close":
                    self._indents.pop()
                case "blockquote_open":
                    self._indents.append("▌ ")
                case "inline":
                    opener = tokens[at - 2]
                    self._tight = opener.hidden
                    yield self._gap(), self._paragraph(token, HEADINGS.get(opener.tag, ""))
                case "fence" | "code_block":
                    text = token.content.rstrip("\n").split("\n")
                    yield self._gap(), self._hang([Content.styled(line, CODE) for line in text])
                case "hr":
                    yield self._gap(), self._hang([Content.styled(RULE * self._room(), FAINT)])
                case "table_open":
                    end = next(i for i in range(at, len(tokens)) if tokens[i].type == "table_close")
                    yield self._gap(), self._hang(_table(tokens[at:end], self._room()))
                    at = end + 1

    def _open_item(self) -> None:
        number = self._counters[-1]
        if number is None:
            depth = sum(counter is None for counter in self._counters) - 1
            self._first = f"{BULLETS[depth % len(BULLETS)]} "
        else:
            self._first = f"{number}. "
            self._counters[-1] = number + 1
        self._indents.append(" " * len(self._first))

    def _gap(self) -> bool:
        return not (self._indents and self._tight)

    def _room(self) -> int:
        return max(8, self._width - sum(map(len, self._indents)))

    def _paragraph(self, token: Token, style: str) -> list[Content]:
        content = inline(token.children or [])
        if style:
            content = content.stylize(style)
        if not self._indents:
            return [content]
        return self._hang([line for part in content.split("\n") for line in part.wrap(self._room())])

    def _hang(self, lines: list[Content]) -> list[Content]:
        """Lines behind their indentation; the first one behind a fresh bullet."""
        indent = "".join(self._indents)
        first, self._first = self._first, ""
        start = indent[: len(indent) - len(first)] + first if first else indent
        return [Content.styled(start if i == 0 else indent, FAINT) + line for i, line in enumerate(lines)]


def inline(tokens: Sequence[Token]) -> Content:
    """Content of a paragraph's inline tokens."""
    pieces: list[tuple[str, str]] = []
    styles: list[str] = []
    addresses: list[str] = []
    for token in tokens:
        style = " ".join(styles)
        match token.type:
            case "text" | "text_special":
                pieces.append((token.content, style))
            case "softbreak" | "hardbreak":
                pieces.append(("\n" if token.type == "hardbreak" else " ", style))
            case "code_inline":
                pieces.append((token.content, CODE))
            case "image":
                pieces.append((f"[image: {token.content}] ({token.attrs.get('src', '')})", LINK))
            case "link_open":
                addresses.append(str(token.attrs.get("href", "")))
                styles.append(LINK)
            case "link_close":
                styles.pop()
                address = addresses.pop()
                if address and address != "".join(piece for piece, _ in pieces[-1:]):
                    pieces.append((f" ({address})", FAINT))
            case "strong_close" | "em_close" | "s_close":
                styles.pop()
            case kind if kind in INLINE:
                styles.append(INLINE[kind])
    return Content.assemble(*[piece for piece in pieces if piece[0]])


def _table(tokens: Sequence[Token], room: int) -> list[Content]:
    """A table with its columns side by side, cells wrapped when the columns must shrink."""
    rows: list[list[Content]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(inline(token.children or []))
    count = max(map(len, rows))
    for row in rows:
        row.extend([Content("")] * (count - len(row)))
    widths = _fit(
        [max(1, *(row[i].cell_length for row in rows)) for i in range(count)], room - 3 * (count - 1)
    )
    lines: list[Content] = []
    for number, row in enumerate(rows):
        cells = [cell.stylize("bold") if number == 0 else cell for cell in row]
        lines += _table_row(cells, widths)
        if number == 0:
            lines.append(Content.styled("─┼─".join("─" * width for width in widths), FAINT))
    return lines


def _table_row(cells: Sequence[Content], widths: Sequence[int]) -> list[Content]:
    wrapped = [cell.wrap(width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, wrapped))
    bar = Content.styled(" │ ", FAINT)
    return [
        bar.join(
            (lines[y] if y < len(lines) else Content("")).pad_right(
                width - (lines[y].cell_length if y < len(lines) else 0)
            )
            for lines, width in zip(wrapped, widths, strict=True)
        )
        for y in range(height)
    ]


def _fit(widths: list[int], room: int) -> list[int]:
    """Column widths that fit the room, taken from the widest ones."""
    widths = list(widths)
    while sum(widths) > room and max(widths) > 4:
        widest = widths.index(max(widths))
        widths[widest] -= 1
    return widths
