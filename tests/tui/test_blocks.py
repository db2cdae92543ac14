"""Parts stay small, do not depend on how the text was fed, and hold every line of it."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from localspec.tui.blocks import MAX_CHARS, MAX_LINES, Part, Splitter

LINES = st.sampled_from(
    ["", "text", "- item", "  - nested", "1. one", "   continued", "```", "```python", "~~~", "   ```",
     "> quote", "| a | b |", "|---|---|", "# title", "x = 1", "    indented", "`code` and ``more``", "```` ",
     "- ```sh"]
)  # fmt: skip
TEXTS = st.lists(LINES, max_size=150).map("\n".join)


def split(*pieces: str) -> list[Part]:
    splitter = Splitter()
    for piece in pieces:
        splitter.feed(piece)
    splitter.finish()
    return [part for part in splitter.parts if part.lines]


@given(TEXTS, st.lists(st.integers(0, 3000), max_size=12))
def test_parts_do_not_depend_on_how_the_text_was_fed(text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert split(*pieces) == split(text) == split(*text)


@given(TEXTS)
def test_no_part_is_large_and_no_line_is_lost(text: str) -> None:
    parts = split(text)
    for part in parts:
        assert len(part.lines) <= MAX_LINES
        assert len(part.source) <= MAX_CHARS + 300

    def words(lines: list[str]) -> list[str]:
        """Lines that are neither blank, nor marks of a fence, nor a bullet in front of one."""
        stripped = (line.strip() for line in lines)
        return [
            line for line in stripped if line not in ("", "-") and "```" not in line and "~~~" not in line
        ]

    assert words([line for part in parts for line in part.lines]) == words(text.split("\n"))


@given(TEXTS)
def test_only_the_last_part_changes_while_text_arrives(text: str) -> None:
    splitter = Splitter()
    frozen: dict[int, list[str]] = {}
    for char in text:
        splitter.feed(char)
        for index, part in enumerate(splitter.parts[:-1]):
            assert frozen.setdefault(id(part), list(part.lines)) == part.lines, index
            assert part.tail == ""


def test_a_fence_is_code_of_its_language() -> None:
    parts = split("before\n```python title=x\na = 1\n\nb = 2\n```\nafter")
    assert [(part.kind, part.language, part.lines) for part in parts] == [
        ("text", "", ["before"]),
        ("code", "python", ["a = 1", "", "b = 2"]),
        ("text", "", ["after"]),
    ]


def test_a_long_fence_is_drawn_in_closed_parts() -> None:
    parts = split("```c\n" + "line\n" * 130 + "```\n")
    assert [len(part.lines) for part in parts] == [60, 60, 10]
    assert [part.continued for part in parts] == [False, True, True]
    assert {part.language for part in parts} == {"c"}


def test_a_fence_in_a_list_keeps_its_place() -> None:
    parts = split("1. do this:\n   ```sh\n   ls\n     -l\n   ```\n2. then that")
    assert [(part.kind, part.lines) for part in parts] == [
        ("text", ["1. do this:"]),
        ("code", ["ls", "  -l"]),
        ("text", ["2. then that"]),
    ]
    assert parts[1].indent == 3


def test_an_inner_fence_does_not_close_a_longer_one() -> None:
    parts = split("````markdown\n```python\nx\n```\n````\nafter")
    assert parts[0].lines == ["```python", "x", "```"]
    assert parts[1].lines == ["after"]


def test_an_open_fence_shows_the_unfinished_line() -> None:
    splitter = Splitter()
    splitter.feed("```python\nx = 1\ny = ")
    assert splitter.parts[-1].source == "x = 1\ny = "
    splitter.feed("2\n``")
    assert splitter.parts[-1].source == "x = 1\ny = 2"  # it may become the end of the fence
    splitter.finish()
    assert splitter.parts[-1].source == "x = 1\ny = 2\n``"


def test_a_line_without_end_is_cut_at_spaces() -> None:
    parts = split("word " * 5000)
    assert max(len(part.source) for part in parts) <= MAX_CHARS + 300
    assert " ".join(part.source for part in parts).split() == ["word"] * 5000


def test_a_long_list_is_cut_between_items() -> None:
    parts = split("\n".join(f"- item {i}\n  more" for i in range(100)))
    assert all(part.lines[0].startswith("- ") for part in parts)
    assert len(parts) > 2
