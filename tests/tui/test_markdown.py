"""Markdown is drawn readable, completely, and without obeying what it says."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.content import Content

from localspec.tui.markdown import CODE, render


def drawn(source: str, width: int = 40) -> str:
    return "\n".join(line.rstrip() for line in render(textwrap.dedent(source), width).plain.split("\n"))


def styles(content: Content, text: str) -> set[str]:
    start = content.plain.index(text)
    return {str(span.style) for span in content.spans if span.start <= start < span.end}


def test_inline_marks_become_styles() -> None:
    content = render("**bold** *it* ~~no~~ `code` plain", 80)
    assert content.plain == "bold it no code plain"
    assert styles(content, "bold") == {"bold"}
    assert styles(content, "it") == {"italic"}
    assert styles(content, "no") == {"strike"}
    assert styles(content, "code") == {CODE}
    assert styles(content, "plain") == set()


def test_lists_hang_under_their_bullets() -> None:
    assert drawn(
        """\
        1. first item that is long enough to wrap
           - nested
        2. second
        """,
        24,
    ) == textwrap.dedent("""\
        1. first item that is
           long enough to wrap
           • nested
        2. second""")


def test_numbering_goes_on_where_the_list_says() -> None:
    assert drawn("7. seven\n8. eight") == "7. seven\n8. eight"


def test_quotes_and_rules() -> None:
    assert drawn("> said that\n> and this\n\n---", 20) == "▌ said that and this\n\n" + "─" * 20


def test_a_table_keeps_its_columns_in_a_narrow_terminal() -> None:
    lines = drawn("| name | text |\n|---|---|\n| a | some words that wrap |\n| bb | x |", 20).split("\n")
    assert max(map(len, lines)) <= 20
    assert lines[0] == "name │ text"
    assert lines[2:4] == ["a    │ some words", "     │ that wrap"]
    assert lines[4] == "bb   │ x"


def test_html_and_markup_stay_text() -> None:
    source = "<script>alert(1)</script> a<br>b [red]not markup[/red] [/]"
    assert drawn(source, 100) == source


def test_links_show_where_they_go_and_do_nothing() -> None:
    content = render("[click](http://x.y/z) [js](javascript:x) ![pic](http://x/y.png) <http://a.b>", 100)
    assert content.plain == "click (http://x.y/z) [js](javascript:x) [image: pic] (http://x/y.png) http://a.b"
    assert not any("@click" in str(span.style) for span in content.spans)


@pytest.mark.parametrize("level", range(1, 7))
def test_headings(level: int) -> None:
    content = render("#" * level + " Title\n\ntext", 40)
    assert content.plain == "Title\n\ntext"
    assert styles(content, "Title")


@given(st.text(alphabet="ab \n#*_`~>|-1.)[](<!\\&", max_size=120), st.integers(1, 100))
def test_any_text_is_drawn_without_a_crash(source: str, width: int) -> None:
    content = render(source, width)
    assert sum(char in "ab" for char in content.plain) >= 0
    content.get_height({}, width)


@given(st.lists(st.sampled_from(["alpha", "beta", "**gamma**", "`delta`", "*eps*"]), min_size=1, max_size=30))
def test_no_word_of_a_paragraph_is_lost(words: list[str]) -> None:
    assert render(" ".join(words), 30).plain.split() == [word.strip("*`") for word in words]
