"""`chat --plain`: text and nothing else on stdout, numbers on stderr, the right exit code."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

from localspec.engine.events import Done, Notice, Prefill, Token
from localspec.engine.settings import Message, Request
from localspec.output import Output
from localspec.plain import run_plain, stats_line
from tests.kit.scripted import ScriptedSession, summary, words_as_events


def output(json: bool = False) -> tuple[Output, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Output(out, err, json=json), out, err


def answers(*lines: str) -> Callable[[], str]:
    left = list(lines)

    def ask() -> str:
        if not left:
            raise EOFError
        return left.pop(0)

    return ask


def test_the_reply_goes_to_stdout_and_its_numbers_to_stderr() -> None:
    out, stdout, stderr = output()
    session = ScriptedSession([words_as_events("one two three four")])
    assert run_plain(session, Request(), "hi", out) == 0
    assert stdout.getvalue() == "one two three four\n"
    assert "4 tokens" in stderr.getvalue() and "tok/s" in stderr.getvalue()
    assert session.requests[0].messages == (Message("user", "hi"),)


def test_a_dialogue_keeps_its_turns_and_the_system_prompt() -> None:
    out, stdout, _ = output()
    session = ScriptedSession([words_as_events("first answer"), words_as_events("second answer")])
    request = Request(messages=(Message("system", "be brief"),))
    assert run_plain(session, request, None, out, ask=answers("q1", "", "q2")) == 0
    assert [m.content for m in session.requests[1].messages] == ["be brief", "q1", "first answer", "q2"]
    assert stdout.getvalue() == "first answer\nsecond answer\n"


def test_json_lines_hold_every_event_and_the_run_record() -> None:
    out, stdout, _ = output(json=True)
    session = ScriptedSession([words_as_events("one two")])
    run_plain(session, Request(messages=(Message("system", "s"),)), "hi", out)
    lines = [json.loads(line) for line in stdout.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["run", "prefill", "token", "token", "round", "done"]
    record = lines[0]
    assert record["load"]["kv"] == ["f16", "f16"] and record["load"]["draft_kv"] == ["f16", "f16"]
    assert record["system"] == "s" and record["sampling"]["top_k"] == 40
    assert record["speculation"]["method"] == "auto"


def test_exit_codes_tell_how_it_ended() -> None:
    for reason, code in (("stop", 0), ("length", 0), ("context", 0), ("error", 1), ("cancelled", 130)):
        out, _, stderr = output()
        done = Done(reason, summary(1), "it broke" if reason == "error" else None)  # type: ignore[arg-type]
        session = ScriptedSession([[Prefill(1, 1, 0), Token(1, "x", "content", False, "off", 0), done]])
        assert run_plain(session, Request(), "hi", out) == code
        if reason in ("length", "context"):
            assert "was cut" in stderr.getvalue()


def test_a_cut_and_an_error_are_said() -> None:
    out, _, stderr = output()
    session = ScriptedSession([[Prefill(1, 1, 0), Done("error", summary(0), "the cache broke")]])
    assert run_plain(session, Request(), "hi", out) == 1
    assert "the cache broke" in stderr.getvalue()


def test_notices_are_loud_where_they_must_be() -> None:
    """Known fault 105: speculation that stops is said, with its reason."""
    out, _, stderr = output()
    script = [
        Prefill(1, 1, 0),
        Notice("off", "the draft failed"),
        Notice("alarm", "none of 24"),
        Notice("paused", "slower than plain here (0.90×)"),
        Done("stop", summary(0)),
    ]
    run_plain(ScriptedSession([script]), Request(), "hi", out)
    assert "warning: speculation off: the draft failed" in stderr.getvalue()
    assert "warning: speculation alarm: none of 24" in stderr.getvalue()
    assert "speculation paused: slower than plain here (0.90×)" in stderr.getvalue()


def test_on_a_terminal_a_notice_waits_for_the_end_of_the_text() -> None:
    """Both streams end on one screen there, and a notice stood in the middle of a word."""
    screen = io.StringIO()
    script = words_as_events("one two three four")
    script[5:5] = [Notice("paused", "slower than plain here (0.90×)")]
    run_plain(ScriptedSession([script]), Request(), "hi", Output(screen, screen, out_is_terminal=True))
    lines = screen.getvalue().splitlines()
    assert lines[:2] == ["one two three four", "speculation paused: slower than plain here (0.90×)"]


def test_the_numbers_name_their_denominators() -> None:
    """Known faults 65, 79: accepted of tested and of drafted, both named."""
    line = stats_line(summary(12, drafted=8, accepted=4, rounds=6))
    assert "accepted 4 of 8 tested (50 %), of 8 drafted (50 %)" in line
    assert "2.00 tokens/round" in line
    assert "nothing was drafted" in stats_line(summary(3))
