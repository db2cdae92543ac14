"""`chat` and `demo` at the edge: which word is the pair, what the prompt is, what reaches the session."""

from __future__ import annotations

import io
import json
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from localspec import cli
from localspec.cli.chat import joined, pair_and_prompt, piped_text
from localspec.engine.events import Loading, Notice
from localspec.engine.settings import LoadSettings, Message, Request
from localspec.errors import UsageError
from localspec.interfaces import PairFiles
from localspec.locations import locations
from localspec.store import ChatStore
from localspec.tui.controller import Wish
from tests.kit.ggufs import syn
from tests.kit.scripted import ScriptedSession, words_as_events

Run = tuple[int, str, str]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("words", "prompt", "has_target", "result"),
    [
        ((), None, False, (None, None)),
        (("demo",), None, False, ("demo", None)),
        (("demo", "say", "hi"), None, False, ("demo", "say hi")),
        (("demo",), "say hi", False, ("demo", "say hi")),
        ((), "say hi", False, (None, "say hi")),
        (("say", "hi"), None, True, (None, "say hi")),
        ((), None, True, (None, None)),
    ],
)
def test_the_first_word_is_the_pair_unless_a_target_is_given(
    words: tuple[str, ...], prompt: str | None, has_target: bool, result: tuple[str | None, str | None]
) -> None:
    assert pair_and_prompt(words, prompt, has_target=has_target) == result


def test_two_prompts_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="given twice"):
        pair_and_prompt(("demo", "say", "hi"), "say ho", has_target=False)


def test_piped_text_comes_before_the_argument() -> None:
    assert joined("a file\n", "summarise it") == "a file\n\nsummarise it"
    assert joined("a file\n", None) == "a file"
    assert joined("", "say hi") == "say hi"
    with pytest.raises(UsageError, match="no prompt"):
        joined("\n", None)


def test_stdin_is_utf8_and_may_be_closed() -> None:
    raw = io.TextIOWrapper(io.BytesIO("é 👍".encode() + b"\xff"), encoding="ascii")
    assert piped_text(raw) == "é 👍\ufffd"
    assert piped_text(None) == ""


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> ScriptedSession:
    """What `open_session` hands out; `loaded` records with what."""
    import localspec.pairs

    scripted = ScriptedSession([words_as_events("Hello, you")])
    scripted.loaded = []  # type: ignore[attr-defined]

    def open_session(files: PairFiles, load: LoadSettings, notify: Callable[[Any], None]) -> ScriptedSession:
        scripted.closed = False
        notify(Loading("target tiny", 0.5))
        notify(Notice("raised", "n_batch was raised to 17"))
        scripted.loaded.append((files, load))  # type: ignore[attr-defined]
        return scripted

    monkeypatch.setitem(sys.modules, "localspec.session", types.SimpleNamespace(open_session=open_session))
    monkeypatch.setattr(
        localspec.pairs, "resolve", lambda name, *_, **__: PairFiles(name or "default", syn("syn"))
    )
    return scripted


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    def call(*argv: str, stdin: io.StringIO | None = None) -> Run:
        monkeypatch.setattr(sys, "stdin", stdin or io.StringIO())
        code = cli.run(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return call


class TestChat:
    def test_a_reply_goes_to_stdout_and_everything_else_to_stderr(self, session: Any, run: Any) -> None:
        code, out, err = run(
            "chat", "demo", "say", "hi", "--system", "Be brief.", "--top-k", "3", "--ctx", "300"
        )
        assert (code, out) == (0, "Hello, you\n")
        assert err.startswith("n_batch was raised to 17\n") and "tokens" in err
        [(files, load)] = session.loaded
        assert (files.name, load.n_ctx) == ("demo", 300)
        [request] = session.requests
        assert request.messages == (Message("system", "Be brief."), Message("user", "say hi"))
        assert request.sampling.top_k == 3
        assert session.closed

    def test_quiet_leaves_the_reply_alone(self, session: Any, run: Any) -> None:
        assert run("chat", "demo", "-p", "hi", "--quiet") == (0, "Hello, you\n", "")

    def test_json_is_one_object_per_line_and_starts_with_the_run_record(self, session: Any, run: Any) -> None:
        code, out, _ = run("chat", "demo", "-p", "hi", "--json", "--seed", "5", "--method", "ngram")
        records = [json.loads(line) for line in out.splitlines()]
        assert code == 0
        assert [r["event"] for r in records[:2]] == ["run", "prefill"]
        assert records[0]["sampling"]["seed"] == 5 and records[0]["speculation"]["method"] == "ngram"
        assert records[-1]["event"] == "done"
        assert "".join(r["text"] for r in records if r["event"] == "token") == "Hello, you"

    def test_piped_text_is_the_prompt(self, session: Any, run: Any) -> None:
        run("chat", "demo", "summarise", stdin=io.StringIO("a file\n"))
        assert session.requests[0].messages == (Message("user", "a file\n\nsummarise"),)

    def test_an_empty_pipe_is_refused_before_anything_is_loaded(self, session: Any, run: Any) -> None:
        code, out, err = run("chat", "demo")
        assert (code, out) == (2, "")
        assert err.startswith("error: there is no prompt") and session.loaded == []

    def test_a_dialogue_asks_on_stderr_and_remembers(self, session: Any, run: Any) -> None:
        code, out, err = run("chat", "demo", "--plain", stdin=Terminal("one\n\ntwo\n"))
        assert (code, out) == (0, "Hello, you\nHello, you\n")
        assert err.count("> ") == 4
        assert [m.content for m in session.requests[1].messages] == ["one", "Hello, you", "two"]

    def test_a_prompt_on_a_terminal_is_answered_once(self, session: Any, run: Any) -> None:
        assert run("chat", "demo", "hi", stdin=Terminal("never read"))[:2] == (0, "Hello, you\n")
        assert len(session.requests) == 1

    def test_a_session_that_fails_is_closed_too(self, session: Any, run: Any) -> None:
        session.reply = lambda request: (_ for _ in ()).throw(
            UsageError("the prompt is longer than the context")
        )
        code, _, err = run("chat", "demo", "hi", "--quiet")
        assert (code, err) == (2, "error: the prompt is longer than the context\n")
        assert session.closed

    def test_variables_that_are_no_settings_are_named(
        self, session: Any, run: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LOCALSPEC_TOPK", "3")
        assert (
            "warning: LOCALSPEC_TOPK is no setting: did you mean LOCALSPEC_TOP_K?"
            in run("chat", "demo", "x")[2]
        )


class TestScreen:
    @pytest.fixture
    def shown(self, session: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
        """Each chat screen that was opened: its arguments, and what its first request became."""
        import localspec.tui

        opened: list[dict[str, Any]] = []

        def run_chat(make_session: Any, **how: Any) -> int:
            made = make_session(Wish(), lambda event: None)
            made.reply(Request(messages=(Message("user", "hi"),), max_tokens=7))
            made.close()
            opened.append({"request": session.requests[-1], "info": made.info, **how})
            return 0

        def worker(files: PairFiles, load: LoadSettings, *, on_event: Any) -> ScriptedSession:
            session.closed = False
            session.loaded.append((files, load))
            return session  # type: ignore[no-any-return]

        monkeypatch.setattr(localspec.tui, "why_no_screen", lambda: None)
        monkeypatch.setattr(localspec.tui, "run_chat", run_chat)
        monkeypatch.setattr("localspec.worker.WorkerSession", worker)
        return opened

    def test_every_option_reaches_it(self, shown: Any, session: Any, run: Any) -> None:
        argv = ["--ctx=300", "--k=33", "--top-k=3", "--method=ngram", "--max-tokens=5", "--system=Be brief."]
        argv += ["--stop=END", "--template-arg=a=1", "--ignore-eos", "--resume=4", "--inline", "--incognito"]
        assert run("chat", "demo", "say", "hi", *argv)[0] == 0
        [how] = shown
        assert how["config"].sampling == {"top_k": 3}
        assert how["config"].speculation == {"k": 33, "method": "ngram"}
        assert how["config"].request == {"max_tokens": 5}
        assert (how["system"], how["initial_prompt"]) == ("Be brief.", "say hi")
        assert (how["resume"], how["inline"], how["pick_first"]) == (4, True, False)
        assert how["store"].incognito
        request = how["request"]
        assert (request.stop, request.template_args, request.ignore_eog) == (("END",), (("a", 1),), True)
        assert (request.max_tokens, request.messages) == (7, (Message("user", "hi"),))
        [(files, load)] = session.loaded
        assert (files.name, load.n_ctx, load.k_max) == ("demo", 300, 33)
        assert how["info"] is session.info and session.closed

    def test_without_a_pair_it_begins_with_the_picker(self, shown: Any, run: Any) -> None:
        assert run()[0] == 0
        assert shown[0]["pick_first"] is True
        assert not shown[0]["store"].incognito

    def test_a_resumed_chat_goes_on_with_its_own_pair(
        self, shown: Any, session: Any, run: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import localspec.pairs

        store = ChatStore(locations().chats_db)
        for pair in ("demo", "gone"):
            store.create(title="a chat", pair=pair)
        store.close()
        assert run("chat", "--resume=1")[0] == 0
        assert run("chat", "other", "--resume=1")[0] == 0
        assert [files.name for files, _ in session.loaded] == ["demo", "other"]
        found = localspec.pairs.resolve

        def resolve(name: Any, *rest: Any, **options: Any) -> PairFiles:
            if name == "gone":
                raise UsageError("unknown pair `gone`")
            return found(name, *rest, **options)

        monkeypatch.setattr(localspec.pairs, "resolve", resolve)
        assert run("chat", "--resume=2")[0] == 0
        assert [(how["resume"], how["pick_first"]) for how in shown] == [(1, False), (1, False), (2, True)]
        code, _, err = run("chat", "--resume=9")
        assert code == 2 and "there is no chat 9" in err

    def test_an_unknown_pair_is_said_before_the_screen(
        self, shown: Any, run: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        monkeypatch.setattr("localspec.tui.why_no_screen", lambda: None)
        code, _, err = run("chat", "nosuch")
        assert code == 2 and err.startswith("error: unknown pair `nosuch`")

    def test_plain_and_json_stream_also_on_a_terminal(self, shown: Any, run: Any) -> None:
        assert run("chat", "demo", "hi", "--plain")[1] == "Hello, you\n"
        assert run("chat", "demo", "hi", "--json")[0] == 0
        assert shown == []

    @pytest.mark.parametrize("option", ["--resume=3", "--inline"])
    def test_what_needs_a_screen_says_so(self, session: Any, run: Any, option: str) -> None:
        code, _, err = run("chat", "demo", "hi", option)
        assert code == 2 and "need the chat screen" in err
        assert session.loaded == []


def test_a_first_word_that_is_no_pair_gets_the_way_out(run: Any) -> None:
    code, out, err = run("chat", "what", "is", "it's", "name")
    assert (code, out) == (2, "")
    assert err.startswith("error: unknown pair `what`\nhint: ")
    assert "localspec chat -p 'what is it'\"'\"'s name'" in err


def test_demo_hands_its_options_on(session: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import localspec.demo

    seen: list[Any] = []

    def run_demo(session: Any, out: Any, *, method: str, quick: bool) -> int:
        seen.append((method, quick, out.json))
        return 0

    monkeypatch.setattr(localspec.demo, "run_demo", run_demo)
    assert run("demo", "--method", "ngram", "--quick", "--json")[0] == 0
    assert run("demo")[0] == 0
    assert seen == [("ngram", True, True), ("auto", False, False)]
    assert session.loaded[0][0].name == "demo" and session.closed
