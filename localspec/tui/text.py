"""Makes a model's text safe to draw without losing sight of what is in it.

A terminal obeys escape characters, and bidi controls reorder what the reader sees. The drawn text shows
both as visible symbols; the source text is never touched, so copies and exports stay exact.
"""

from __future__ import annotations

_CONTROL_PICTURES = 0x2400
_KEPT = "\n\t"
_INVISIBLE = (
    0x00AD, 0x061C, 0x180E, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2065),
    *range(0x2066, 0x2070), 0xFEFF, *range(0xFFF9, 0xFFFC),
)  # fmt: skip
"""Bidi controls and zero-width characters; joiners (U+200C, U+200D) shape scripts and emoji and stay."""

_TABLE: dict[int, str] = {code: chr(_CONTROL_PICTURES + code) for code in range(32) if chr(code) not in _KEPT}
_TABLE[0x7F] = "␡"
_TABLE |= {code: f"<U+{code:04X}>" for code in (*range(0x80, 0xA0), 0x2028, 0x2029, *_INVISIBLE)}
_TABLE |= {code: f"<U+{code:04X}>" for code in range(0xD800, 0xE000)}
_TABLE |= {code: f"<U+{code:05X}>" for code in range(0xE0000, 0xE0080)}  # tag characters


def visible(text: str) -> str:
    """`text` with every character that a terminal would obey or hide replaced by one that shows."""
    return text.replace("\r\n", "\n").translate(_TABLE)


def one_line(text: str, limit: int = 200) -> str:
    """`text` for a label: visible, in one line, cut with an ellipsis."""
    line = " ".join(visible(text[: limit * 4]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def counted(count: int, what: str) -> str:
    """`1 chat`, `2 chats`."""
    return f"{count} {what}" + ("" if count == 1 else "s")
