"""Streams: data on stdout and exact, narration on stderr, nothing drawn where nobody can see it."""

from __future__ import annotations

import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.settings import LoadSettings, SamplingSettings
from localspec.errors import LocalspecError
from localspec.output import Output, amount, table, to_json, width


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def pipe(**mode: bool) -> Output:
    return Output.decide(io.StringIO(), io.StringIO(), {}, **mode)


def written(stream: Any) -> str:
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


@given(st.text())
def test_text_reaches_a_pipe_unchanged(text: str) -> None:
    out = pipe()
    out.text(text)
    assert written(out.out) == text


def test_markup_and_escapes_of_a_model_are_plain_text_on_a_terminal() -> None:
    out = Output.decide(Terminal(), Terminal(), {"TERM": "xterm"})
    out.text("[/] [red]x[/red] \x1b[31m\x1b]0;title\x07 \x9b2J\r\u0085 é 👍\n\t")
    assert written(out.out) == "[/] [red]x[/red] ␛[31m␛]0;title␇ \ufffd2J␍\ufffd é 👍\n\t"


def test_narration_never_reaches_stdout() -> None:
    out = pipe()
    out.note("loading")
    out.warn("slow")
    out.error("the file is gone", "look for it")
    assert written(out.out) == ""
    assert written(out.err) == "loading\nwarning: slow\nerror: the file is gone\nhint: look for it\n"


def test_quiet_keeps_warnings_and_errors() -> None:
    out = pipe(quiet=True)
    out.note("loading")
    out.warn("slow")
    out.error("broken")
    assert written(out.err) == "warning: slow\nerror: broken\n"


def test_report_is_one_document_in_json_mode_and_words_otherwise() -> None:
    for is_json in (True, False):
        out = pipe(json=is_json)
        out.report({"name": "Ünïcode"}, "a table")
        assert written(out.out) == ('{\n  "name": "Ünïcode"\n}\n' if is_json else "a table\n")


def test_a_record_is_one_line() -> None:
    out = pipe(json=True)
    out.record({"text": "a\nb", "path": Path("/x"), "ids": (1, 2)})
    out.record({})
    first, second, rest = written(out.out).split("\n")
    assert json.loads(first) == {"text": "a\nb", "path": "/x", "ids": [1, 2]}
    assert (second, rest) == ("{}", "")


def test_json_of_settings_has_no_infinity() -> None:
    parsed = json.loads(to_json(SamplingSettings(logit_bias=((5, float("-inf")), (6, 1.5)))))
    assert parsed["logit_bias"] == [[5, None], [6, 1.5]]
    assert json.loads(to_json(LoadSettings()))["kv"] == ["f16", "f16"]


def test_pipes_are_utf8_whatever_the_locale_and_take_stray_surrogates(tmp_path: Path) -> None:
    with (tmp_path / "o").open("w", encoding="ascii") as file:
        Output.decide(file, None, {}).text("é 👍 \udcff")
    assert (tmp_path / "o").read_bytes() == "é 👍 \\udcff".encode()


def test_closed_streams_swallow() -> None:
    out = Output.decide(None, None, {})
    out.text("x")
    out.error("y")


class Failing(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def write(self, _: str) -> int:
        raise self.error


def test_a_full_disk_is_a_sentence_and_a_gone_reader_stays_itself() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(LocalspecError, match="cannot write to stdout: No space left on device"):
        Output.decide(Failing(full), None, {}).text("x")
    with pytest.raises(BrokenPipeError):
        Output.decide(Failing(BrokenPipeError(errno.EPIPE, "gone")), None, {}).text("x")


def test_progress_in_a_pipe_is_a_line_every_ten_seconds() -> None:
    out, now = pipe(), 0.0
    with out.progress("reading", 200.0, "tokens", clock=lambda: now) as progress:
        for second in range(25):
            now = float(second)
            progress.update(second * 8.0)
        now = 31.0
        progress.update(label="almost")
    with out.progress("loading", 1.0, clock=lambda: now) as progress:
        now = 60.0
        progress.update(0.43)
    assert written(out.err).splitlines() == [
        "reading: 80 tokens of 200 tokens (40 %)",
        "reading: 160 tokens of 200 tokens (80 %)",
        "almost …",
        "loading: 43 %",
    ]


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_bar_is_drawn_only_on_a_terminal_that_can(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    out = Output.decide(io.StringIO(), Terminal(), {"TERM": term})
    with out.progress("reading [b]x", 10.0) as progress:
        progress.update(5.0)
    drawn = written(out.err)
    assert ("50%" in drawn and "[b]x" in drawn) == (term == "xterm")
    assert written(out.out) == ""


def test_no_color_draws_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for environ, coloured in (
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, False),
    ):
        out = Output.decide(io.StringIO(), Terminal(), environ)
        with out.progress("reading", 10.0, "bytes") as progress:
            progress.update(5.0)
        assert out.colour is coloured
        assert ("\x1b[38;" in written(out.err) or "\x1b[3" in written(out.err)) is coloured


def test_a_bar_leaves_the_screen_to_text_and_lets_notes_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    out = Output.decide(screen, screen, {"TERM": "xterm"})
    with out.progress("reading", 10.0) as progress:
        progress.update(5.0)
        out.note("[a] note")
        assert "reading" in screen.getvalue() and "[a] note\n" in screen.getvalue()
        out.text("Hello")
        progress.update(6.0)
        out.text(", you")
    assert screen.getvalue().endswith("Hello, you")


def test_quiet_shows_no_progress() -> None:
    out = Output.decide(io.StringIO(), Terminal(), {"TERM": "xterm"}, quiet=True)
    with out.progress("reading", 10.0) as progress:
        progress.update(5.0)
    assert written(out.err) == ""


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(999, "bytes", "999 B"), (1_500, "bytes", "2 kB"), (1_500_000_000, "bytes", "1.5 GB"),
     (3e12, "bytes", "3000.0 GB"), (24 * 2**30, "memory", "24.0 GiB"),
     (300, "tokens", "300 tokens"), (2.5, "", "2.5")],
)  # fmt: skip
def test_amount(value: float, unit: Any, shown: str) -> None:
    assert amount(value, unit) == shown


def test_table_aligns_by_cells_and_is_never_cut() -> None:
    long = "x" * 300
    lines = table(["pair", "tok/s"], [["日本", 1.5], [long, 22]], right=[1]).splitlines()
    assert lines[0].split() == ["pair", "tok/s"]
    assert lines[1].startswith("─" * 300)
    assert {width(line) for line in (lines[0], lines[2], lines[3])} == {300 + 2 + 5}
    assert lines[3] == long + "     22"
