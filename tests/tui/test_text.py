"""Nothing a model writes is obeyed by the terminal or hidden from the reader."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.tui.text import one_line, visible


@pytest.mark.parametrize(
    ("source", "drawn"),
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("a\x9bb", "a<U+009B>b"),
        ("a\rb\r\nc\n\td", "a␍b\nc\n\td"),
        ("abc\u202egpj.exe", "abc<U+202E>gpj.exe"),
        ("a\u2066b\u2069", "a<U+2066>b<U+2069>"),
        ("in\u200bvisible\ufeff", "in<U+200B>visible<U+FEFF>"),
        ("line\u2028break\x85", "line<U+2028>break<U+0085>"),
        ("\U000e0041hidden tag", "<U+E0041>hidden tag"),
        ("half \ud83d", "half <U+D83D>"),
        ("👩\u200d👩\u200d👧 فارسی\u200cها [red]x[/red]", "👩\u200d👩\u200d👧 فارسی\u200cها [red]x[/red]"),
    ],
)
def test_what_a_terminal_would_obey_or_hide_shows(source: str, drawn: str) -> None:
    assert visible(source) == drawn


@given(st.text())
def test_no_control_or_bidi_character_is_left(source: str) -> None:
    for char in visible(source):
        assert char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(char) not in (
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        )


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_ordinary_text_is_unchanged(source: str) -> None:
    assert visible(source) == source


def test_a_label_is_one_short_line() -> None:
    assert one_line("a\n  b\x1b[2J c") == "a b␛[2J c"
    assert one_line("x" * 300, 10) == "xxxxxxxxx…"
