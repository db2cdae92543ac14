"""The chat as a person uses it: send, stop, edit, copy, look, leave."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from textual.widgets import TextArea

from localspec.engine.events import Done, Loading, Notice, Prefill, Text, Token
from localspec.errors import DoesNotFitError, EngineError, PromptTooLongError
from localspec.store import ChatStore
from localspec.tui import commands
from localspec.tui.widgets.turns import ReplyTurn
from tests.kit.scripted import INFO, ScriptedSession, summary, words_as_events
from tests.tui.kit import RICH_INFO, Chat, SteppedSession, chatting, config, reply_of

HELLO = words_as_events("Hello there, how are you")


def stored(chat: Chat) -> list[tuple[str, str]]:
    store = ChatStore(chat.screen.setup.store.path)
    rows = store.find()
    turns = store.load(rows[0].id).turns if rows else ()
    store.close()
    return [(turn.content, turn.ending) for turn in turns]


class TestSending:
    async def test_a_message_is_answered_stored_and_counted(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            assert "Write a message" in chat.text()
            await chat.ask("Hi [bold]you[/bold]")
            text = chat.text()
            for part in ("Hi [bold]you[/bold]", "Hello there, how are you", "5 tokens", "spec on"):
                assert part in text
            assert "Write a message" not in text
            assert stored(chat) == [("Hi [bold]you[/bold]", "stop"), ("Hello there, how are you", "stop")]
            assert chat.screen.prompt.text == ""
            request = chat.session.requests[0]
            assert [message.content for message in request.messages] == ["Hi [bold]you[/bold]"]

    async def test_the_footer_names_the_keys_in_their_order(self, tmp_path: Path) -> None:
        async with chatting(tmp_path) as chat:
            footer = chat.text().splitlines()[-1].split()
            keys = [word for word in footer if word[0] == "f" and word[1:].isdigit()]
            assert keys == [f"f{number}" for number in range(1, 9)]
            assert footer[:2] == ["⏎", "send"]

    async def test_enter_sends_and_other_keys_make_lines(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            await chat.pilot.press("a", "shift+enter", "b", "ctrl+j", "c")
            assert chat.screen.prompt.text == "a\nb\nc"
            await chat.pilot.press("enter")
            await chat.finished()
            assert chat.session.requests[0].messages[0].content == "a\nb\nc"

    async def test_a_paste_of_many_lines_is_one_message(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            from textual import events

            lines = "\n".join(f"line {i}" for i in range(50))
            chat.app.post_message(events.Paste(lines))
            await chat.wait(lambda: chat.screen.prompt.text == lines, "the paste")
            assert not chat.session.requests
            await chat.pilot.press("enter")
            await chat.finished()
            assert [request.messages[0].content for request in chat.session.requests] == [lines]

    async def test_up_in_an_empty_prompt_walks_back(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            for text in ("first", "second\nline"):
                await chat.ask(text)
            await chat.pilot.press("up")
            assert chat.screen.prompt.text == "second\nline"
            await chat.pilot.press("up")
            assert chat.screen.prompt.text == "first"
            await chat.pilot.press("up")
            assert chat.screen.prompt.text == "first"
            await chat.pilot.press("down")
            assert chat.screen.prompt.text == "second\nline"
            await chat.pilot.press("x", "up")  # changed: the cursor moves, the text stays
            assert chat.screen.prompt.text == "second\nlinex"

    async def test_history_outlives_the_program(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            await chat.ask("remember me")
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            await chat.pilot.press("up")
            assert chat.screen.prompt.text == "remember me"

    async def test_a_message_sent_while_a_reply_runs_waits_and_goes_next(self, tmp_path: Path) -> None:
        session = SteppedSession([HELLO])
        async with chatting(tmp_path, lambda: session) as chat:
            reply = await chat.begin("one")
            await chat.type("two")
            assert "queued: two" in chat.text()
            reply.let_all()
            await chat.wait(lambda: len(session.replies) == 2, "the queued message is sent")
            session.replies[1].let_all()
            await chat.finished()
            assert [message.content for message in session.requests[1].messages] == [
                "one", "Hello there, how are you", "two",
            ]  # fmt: skip

    async def test_a_message_sent_before_the_last_tokens_are_drawn_waits_for_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("localspec.tui.pacing.BASE_S", 0.4)
        monkeypatch.setattr("localspec.tui.pacing.LONGEST_S", 0.4)
        session = SteppedSession([HELLO])
        async with chatting(tmp_path, lambda: session) as chat:
            reply = await chat.begin("one")
            reply.let(3)
            await chat.wait_text("Hello there,")
            reply.let_all()
            await chat.wait(lambda: chat.screen.controller.state == "ready", "the end of the reply")
            assert chat.screen.writer.busy  # its last events wait for the next flush
            (await chat.begin("two")).let_all()
            await chat.finished()
            assert session.requests[1].messages[1].content == "Hello there, how are you"

    async def test_a_queued_message_returns_to_the_prompt_when_stopped(self, tmp_path: Path) -> None:
        session = SteppedSession([HELLO])
        async with chatting(tmp_path, lambda: session) as chat:
            reply = await chat.begin("one")
            reply.let(3)
            await chat.wait_text("Hello there,")
            await chat.type("two")
            await chat.pilot.press("escape")
            await chat.finished()
            assert chat.screen.prompt.text == "two"
            assert len(session.requests) == 1

    async def test_the_first_message_waits_for_the_model(self, tmp_path: Path) -> None:
        async with chatting(
            tmp_path, lambda: ScriptedSession([HELLO]), initial_prompt="from the command line"
        ) as chat:
            await chat.wait_text("Hello there, how are you")
            assert stored(chat)[0] == ("from the command line", "stop")


class TestStopping:
    async def test_a_stopped_reply_is_kept_and_the_chat_goes_on(self, tmp_path: Path) -> None:
        session = SteppedSession([HELLO, words_as_events("Second reply")])
        async with chatting(tmp_path, lambda: session) as chat:
            reply = await chat.begin("one")
            reply.let(4)
            await chat.wait_text("Hello there,")
            await chat.pilot.press("escape")
            await chat.finished()
            assert "stopped" in chat.text()
            assert stored(chat)[1] == ("Hello there, how", "cancelled")
            (await chat.begin("two")).let_all()
            await chat.finished()
            assert session.requests[1].messages[1].content == "Hello there, how"
            assert "Second reply" in chat.text()

    async def test_stop_in_prefill_shows_within_50_ms_and_gives_the_text_back(self, tmp_path: Path) -> None:
        session = SteppedSession([[Prefill(100, 4000, 0), Prefill(200, 4000, 0), *HELLO]])
        async with chatting(tmp_path, lambda: session) as chat:
            reply = await chat.begin("a long prompt")
            reply.let(2)
            await chat.wait_text("reading 200/4000")
            start = time.monotonic()
            chat.screen.run("reply.stop")
            while "stopping…" not in chat.text() and chat.screen.controller.busy:
                await chat.pilot.pause(0)
            assert time.monotonic() - start < 0.2  # 50 ms where nothing else runs: see the script
            cancelled_at = reply.cancelled_at
            assert cancelled_at is not None and cancelled_at - start < 0.05
            await chat.finished()
            assert chat.screen.prompt.text == "a long prompt"
            assert chat.screen.conversation.turns == [] and stored(chat) == []

    async def test_ctrl_c_stops_then_warns_then_quits(self, tmp_path: Path) -> None:
        session = SteppedSession([HELLO])
        async with chatting(tmp_path, lambda: session) as chat:
            reply = await chat.begin("one")
            reply.let(3)
            await chat.wait_text("Hello")
            await chat.pilot.press("ctrl+c")
            await chat.finished()
            assert "stopped" in chat.text()
            await chat.pilot.press("ctrl+c")
            await chat.wait_text("press Ctrl+C again to quit")
            assert chat.app.is_running
            await chat.pilot.press("ctrl+c")
            await chat.wait(lambda: not chat.app.is_running, "the end")

    async def test_ctrl_c_copies_a_selection_first(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            chat.screen.prompt.put("some words")
            chat.screen.prompt.select_all()
            await chat.pilot.press("ctrl+c")
            await chat.wait_text("copied 10 characters")
            assert chat.app.clipboard == "some words"
            assert chat.app.is_running

    async def test_text_of_a_reply_can_be_selected_with_the_mouse_and_copied(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            await chat.ask("one")
            part = chat.screen.query(".part").last()
            await chat.pilot.mouse_down(part, offset=(0, 0))
            await chat.pilot.hover(part, offset=(5, 0))
            await chat.pilot.mouse_up(part, offset=(5, 0))
            await chat.pilot.press("ctrl+c")
            await chat.wait(lambda: chat.app.clipboard.startswith("Hello"), "the copy")

    @pytest.mark.parametrize("key", ["ctrl+q", "ctrl+d"])
    async def test_leaving_keeps_the_half_written_reply(self, tmp_path: Path, key: str) -> None:
        session = SteppedSession([HELLO])
        async with chatting(tmp_path, lambda: session) as chat:
            reply = await chat.begin("one")
            reply.let(3)
            await chat.wait_text("Hello there,")
            await chat.pilot.press(key)
            await chat.wait(lambda: not chat.app.is_running, "the end")
            assert stored(chat)[1] == ("Hello there,", "cancelled")
            assert chat.app.resume_hint() == "resume this chat: localspec chat --resume 1"

    async def test_ctrl_d_deletes_while_there_is_text(self, tmp_path: Path) -> None:
        async with chatting(tmp_path) as chat:
            chat.screen.prompt.put("ab")
            await chat.pilot.press("home", "ctrl+d")
            assert chat.screen.prompt.text == "b" and chat.app.is_running


class TestChanging:
    async def test_regenerate_replaces_the_reply(self, tmp_path: Path) -> None:
        session = ScriptedSession([HELLO, words_as_events("Another answer")])
        async with chatting(tmp_path, lambda: session) as chat:
            await chat.ask("one")
            await chat.pilot.press("f5")
            await chat.wait_text("Another answer")
            await chat.finished()
            assert "Hello there" not in chat.text()
            assert stored(chat) == [("one", "stop"), ("Another answer", "stop")]
            assert session.requests[0].messages == session.requests[1].messages

    async def test_a_regeneration_that_fails_brings_the_old_reply_back(self, tmp_path: Path) -> None:
        session = SteppedSession([HELLO, EngineError("the worker died")])
        async with chatting(tmp_path, lambda: session) as chat:
            (await chat.begin("one")).let_all()
            await chat.finished()
            await chat.pilot.press("f5")
            await chat.wait_text("the worker died")
            await chat.wait_text("Hello there, how are you")
            assert stored(chat) == [("one", "stop"), ("Hello there, how are you", "stop")]

    async def test_edit_replaces_the_exchange_when_sent_and_not_before(self, tmp_path: Path) -> None:
        session = ScriptedSession([HELLO, words_as_events("Better answer")])
        async with chatting(tmp_path, lambda: session) as chat:
            await chat.ask("bad question")
            await chat.type("/edit")
            await chat.wait(lambda: chat.screen.prompt.text == "bad question", "the text to edit")
            assert "editing your last message" in chat.text()
            await chat.pilot.press("escape")
            assert chat.screen.prompt.text == "" and len(stored(chat)) == 2
            await chat.type("/edit")
            await chat.wait(lambda: chat.screen.editing, "editing")
            chat.screen.prompt.put("good question")
            await chat.pilot.press("enter")
            await chat.wait_text("Better answer")
            await chat.finished()
            assert stored(chat) == [("good question", "stop"), ("Better answer", "stop")]
            assert "bad question" not in chat.text().replace("localspec · bad question", "")

    async def test_a_cut_reply_can_be_continued(self, tmp_path: Path) -> None:
        cut = [
            *reply_of("half", " an"),
        ]
        cut[-1] = Done("length", summary(2))
        session = ScriptedSession([cut, reply_of(" answer")])
        async with chatting(tmp_path, lambda: session) as chat:
            await chat.ask("one")
            assert "cut at max_tokens" in chat.text()
            await chat.type("/continue")
            await chat.wait_text("half an answer")
            await chat.finished()
            assert session.requests[1].continue_last
            assert stored(chat) == [("one", "stop"), ("half an answer", "stop")]

    async def test_a_continuation_goes_on_in_the_middle_of_a_line_of_code(self, tmp_path: Path) -> None:
        cut = reply_of("```python\n", "value = comp", done=Done("length", summary(2)))
        session = ScriptedSession([cut, reply_of("ute(1)\n", "```")])
        async with chatting(tmp_path, lambda: session) as chat:
            await chat.ask("one")
            await chat.type("/continue")
            await chat.finished()
            await chat.wait_text("value = compute(1)")

    async def test_a_continuation_that_is_refused_leaves_the_reply(self, tmp_path: Path) -> None:
        cut = reply_of("half", " an", done=Done("length", summary(2)))
        session = SteppedSession([cut, PromptTooLongError("the context is full")])
        async with chatting(tmp_path, lambda: session) as chat:
            (await chat.begin("one")).let_all()
            await chat.finished()
            await chat.type("/continue")
            await chat.wait_text("the context is full")
            assert "half an" in chat.text() and "cut at max_tokens" in chat.text()
            assert stored(chat)[1] == ("half an", "length")

    async def test_copy_gives_the_source_and_not_what_is_drawn(self, tmp_path: Path) -> None:
        source = "# Title\n\n**bold** \x1b[31m\n\n```python\nx = 1\n```\n"
        events = [
            Prefill(1, 1, 0),
            Token(1, source, "content", True, "draft", 0),
            Done("stop", summary(1)),
        ]
        async with chatting(tmp_path, lambda: ScriptedSession([events])) as chat:
            await chat.ask("one")
            await chat.pilot.press("f4", "ctrl+y")
            await chat.wait(lambda: chat.app.clipboard == source, "the copy")
            await chat.type("/copycode")
            await chat.wait(lambda: chat.app.clipboard == "x = 1\n", "the code")

    async def test_files_are_attached_to_the_next_message_only(self, tmp_path: Path) -> None:
        note = tmp_path / "note.py"
        note.write_text("print('```')\n")
        (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
        session = ScriptedSession([HELLO])
        async with chatting(tmp_path, lambda: session) as chat:
            await chat.type(f"/attach {note}")
            await chat.wait_text("attached: note.py")
            await chat.type(f"/attach {tmp_path / 'binary'}")
            await chat.wait_text("is no UTF-8 text")
            await chat.ask("explain")
            await chat.ask("more")
            first, second = (
                session.requests[0].messages[0].content,
                session.requests[1].messages[-1].content,
            )
            assert first == "`note.py`:\n\n````py\nprint('```')\n````\n\nexplain"
            assert second == "more"

    async def test_files_can_be_taken_off_again_after_a_refusal_which_the_next_reply_forgets(
        self, tmp_path: Path
    ) -> None:
        note = tmp_path / "note.txt"
        note.write_text("long")
        session = SteppedSession([PromptTooLongError("the prompt has 9000 tokens"), HELLO])
        async with chatting(tmp_path, lambda: session) as chat:
            await chat.type("/detach")
            await chat.wait_text("nothing is attached")
            await chat.type(f"/attach {note}")
            await chat.wait_text("attached: note.txt (/detach takes off)")
            await chat.type("explain")
            await chat.wait_text("the prompt has 9000 tokens")
            await chat.wait_text("attached: note.txt")
            assert chat.screen.prompt.text == "explain"
            chat.screen.prompt.put("")
            await chat.type("/detach")
            await chat.wait(lambda: "attached: note" not in chat.text(), "no file")
            (await chat.begin("explain")).let_all()
            await chat.finished()
            assert session.requests[1].messages[-1].content == "explain"
            assert "9000 tokens" not in chat.text()

    async def test_the_system_prompt_is_sent_and_remembered(self, tmp_path: Path) -> None:
        session = ScriptedSession([HELLO])
        async with chatting(tmp_path, lambda: session) as chat:
            await chat.type("/system Answer in French")
            await chat.wait_text("system prompt set")
            await chat.ask("one")
            assert session.requests[0].messages[0].content == "Answer in French"
            await chat.type("/system")
            await chat.wait_text("Ctrl+S saves")
            chat.app.screen.query_one(TextArea).select_all()
            await chat.pilot.press("X", "ctrl+s")
            await chat.wait(lambda: chat.screen.conversation.system == "X", "the new system prompt")

    async def test_reasoning_is_folded_until_asked_for(self, tmp_path: Path) -> None:
        events = [
            Prefill(1, 1, 0),
            Token(1, "secret thought", "reasoning", False, "off", 0),
            Token(2, "the answer", "content", False, "off", 1),
            Done("stop", summary(2)),
        ]
        async with chatting(tmp_path, lambda: ScriptedSession([events])) as chat:
            await chat.ask("one")
            assert "▸ reasoning · 1 tokens" in chat.text() and "secret thought" not in chat.text()
            await chat.pilot.press("ctrl+r")
            await chat.wait_text("secret thought")
            await chat.pilot.press("ctrl+r")
            await chat.wait(lambda: "secret thought" not in chat.text(), "folded")
            await chat.pilot.click(".fold")
            await chat.wait_text("secret thought")


class TestErrors:
    async def test_a_refused_prompt_returns_to_the_box(self, tmp_path: Path) -> None:
        error = PromptTooLongError("the prompt has 9000 tokens, the context 4096", hint="shorten it")
        async with chatting(tmp_path, lambda: SteppedSession([error])) as chat:
            await chat.type("very long")
            await chat.wait_text("the prompt has 9000 tokens, the context 4096")
            assert chat.screen.prompt.text == "very long"
            assert chat.screen.conversation.turns == []

    async def test_files_of_a_refused_message_stay_attached(self, tmp_path: Path) -> None:
        (tmp_path / "big.txt").write_text("x" * 5000)
        session = SteppedSession([PromptTooLongError("too long"), HELLO])
        async with chatting(tmp_path, lambda: session) as chat:
            await chat.type(f"/attach {tmp_path / 'big.txt'}")
            await chat.type("summarise")
            await chat.wait_text("too long")
            await chat.wait_text("attached: big.txt")
            assert chat.screen.prompt.text == "summarise"
            assert chat.screen.setup.store.find() == [] and "new chat" in chat.text()
            await chat.pilot.press("enter")
            await chat.wait(lambda: session.replies, "the reply")
            session.replies[0].let_all()
            await chat.finished()
            assert len(session.requests[1].messages[0].content) > 5000
            assert "more characters were sent" in chat.text()

    async def test_a_reply_that_breaks_keeps_its_text_and_says_why(self, tmp_path: Path) -> None:
        broken = Done("error", summary(3), "the model process was killed; the log is /x/log")
        events = [*HELLO[:4], broken]
        async with chatting(tmp_path, lambda: ScriptedSession([events])) as chat:
            await chat.ask("one")
            text = chat.text()
            assert "Hello there, how" in text and "the model process was killed" in text and "/x/log" in text
            assert stored(chat)[1] == ("Hello there, how", "error")

    async def test_a_model_that_does_not_fit_can_be_loaded_anyway(self, tmp_path: Path) -> None:
        def make(wish: object, notify: object) -> ScriptedSession:
            if not wish.force:  # type: ignore[attr-defined]
                raise DoesNotFitError("the pair needs 30.1 GiB, 22.0 GiB are free", hint="--ctx 4096 fits")
            return ScriptedSession([HELLO])

        async with chatting(tmp_path, make_session=make, wait_ready=False) as chat:
            await chat.wait_text("needs 30.1 GiB, 22.0 GiB are free")
            await chat.wait_text("--ctx 4096 fits")
            assert "no model" in chat.text()
            await chat.type("hello")
            await chat.wait_text("no model is loaded")
            assert chat.screen.prompt.text == "hello"
            await chat.pilot.click("#banner-buttons Button")
            await chat.ready()
            assert [wish.force for wish in chat.wishes] == [False, True]
            assert "needs 30.1 GiB" not in chat.text()

    async def test_loading_shows_progress_and_can_be_stopped(self, tmp_path: Path) -> None:
        import threading

        gate = threading.Event()

        def make(wish: object, notify: object) -> ScriptedSession:
            notify(Loading("target SmolLM2", 0.43))  # type: ignore[operator]
            gate.wait(5)
            return ScriptedSession([HELLO])

        async with chatting(tmp_path, make_session=make, wait_ready=False) as chat:
            await chat.wait_text("loading target SmolLM2")
            assert "loading 43 %" in chat.text()
            await chat.pilot.press("escape")
            await chat.wait_text("the load was stopped")
            gate.set()
            await chat.type("/reload")
            await chat.ready()


class TestSpeculation:
    async def test_f3_switches_speculation_for_the_next_reply(self, tmp_path: Path) -> None:
        session = ScriptedSession([HELLO])
        async with chatting(tmp_path, lambda: session, size=(120, 30)) as chat:
            await chat.pilot.press("f3")
            await chat.wait_text("spec off: switched off (F3 turns it on)")
            await chat.ask("one")
            await chat.pilot.press("f3")
            await chat.wait_text("spec on")
            await chat.ask("two")
            assert [request.speculation.method for request in session.requests] == ["off", "auto"]

    async def test_a_switch_during_a_reply_says_from_when_it_counts(self, tmp_path: Path) -> None:
        """Known fault 106: a setting that is read at load and changes nothing until then."""

        session = SteppedSession([HELLO])
        async with chatting(tmp_path, lambda: session) as chat:
            await chat.begin("one")
            await chat.pilot.press("f3")
            await chat.wait_text("speculation off from the next reply")
            assert "spec on" in chat.text()

    async def test_method_and_k_change_live_and_say_where_a_reload_is_needed(self, tmp_path: Path) -> None:
        session = ScriptedSession([HELLO])
        async with chatting(tmp_path, lambda: session, size=(120, 30)) as chat:
            await chat.type("/method ngram")
            await chat.wait_text("no reload needed")
            await chat.type("/k 5")
            await chat.wait_text("without pauses")
            await chat.ask("one")
            assert (session.requests[0].speculation.method, session.requests[0].speculation.k) == (
                "ngram",
                5,
            )
            await chat.type("/method eagle3")
            await chat.wait_text("`eagle3` is not loaded with this pair")
            await chat.type("/k 40")
            await chat.wait_text("/set k_max 40, then /reload")
            await chat.type("/set ctx 2048")
            await chat.wait_text("/reload applies it")
            await chat.type("/reload")
            await chat.wait(lambda: len(chat.wishes) == 2, "a reload")
            await chat.ready()
            assert chat.wishes[1].load is not None and chat.wishes[1].load.n_ctx == 2048

    async def test_the_state_follows_the_notices(self, tmp_path: Path) -> None:
        paused = Notice("paused", "slower than plain here (0.93×)")
        off = Notice("off", "the draft failed in round 3")
        session = ScriptedSession([[HELLO[0], paused, *HELLO[1:]], [HELLO[0], off, *HELLO[1:]], HELLO])
        async with chatting(tmp_path, lambda: session, size=(120, 30)) as chat:
            await chat.ask("one")
            assert "spec paused: slower than plain here (0.93×)" in chat.text()
            await chat.ask("two")
            assert "spec off: the draft failed in round 3" in chat.text()
            await chat.ask("three")
            assert "spec on" in chat.text()

    async def test_a_pair_without_a_draft_says_why(self, tmp_path: Path) -> None:
        from dataclasses import replace

        info = replace(INFO, off_reason="the draft could not be loaded: truncated", drafts=())
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO], info=info)) as chat:
            assert "spec off: the draft could not be loaded: truncated" in chat.text()
            await chat.ask("one")
            assert "Hello there" in chat.text()

    async def test_marks_show_which_tokens_were_drafted_without_changing_the_text(
        self, tmp_path: Path
    ) -> None:
        events = reply_of("The", " cat", " sat", drafted=(False, True, False))
        async with chatting(tmp_path, lambda: ScriptedSession([events])) as chat:
            await chat.ask("one")
            await chat.pilot.press("f4")
            await chat.wait_text("The╎ cat╎ sat")
            part = chat.screen.query(".part").last()
            drafted = [span for span in part.render().spans if "underline" in str(span.style)]
            plain = part.render().plain
            assert [plain[span.start : span.end] for span in drafted] == [" cat"]
            assert stored(chat)[1] == ("The cat sat", "stop")
            await chat.pilot.press("f4")
            await chat.wait_text("The cat sat")

    async def test_marks_of_a_stored_chat_are_still_there(self, tmp_path: Path) -> None:
        events = reply_of("The", " cat", " sat", drafted=(False, True, False))
        async with chatting(tmp_path, lambda: ScriptedSession([events])) as chat:
            await chat.ask("one")
        async with chatting(tmp_path, resume=1) as chat:
            await chat.pilot.press("f4")
            await chat.wait_text("The╎ cat╎ sat")

    async def test_the_statistics_pane_has_every_number(self, tmp_path: Path) -> None:
        session = ScriptedSession([HELLO], info=RICH_INFO)
        async with chatting(tmp_path, lambda: session, size=(130, 60)) as chat:
            assert "VRAM 17.5/24 GiB" in chat.text()
            await chat.pilot.press("f8")
            await chat.ask("one")
            await chat.wait_text("accepted  3")
            text = chat.text()
            for part in ("drafted   3", "rejected  0", "of tested 100 %", "acceptance by draft position",
                         "accepted tokens per round", "VRAM CUDA0: 17.50 of 24.0 GiB",
                         "target 14.00 GiB", "draft 1.00 GiB", "KV 2.00 GiB", "buffers 0.50 GiB",
                         "free 6.00 GiB"):  # fmt: skip
                assert part in text
            await chat.pilot.press("f8")
            await chat.wait(lambda: "drafted   3" not in chat.text(), "the pane is gone")

    async def test_alarms_are_shown(self, tmp_path: Path) -> None:
        alarm = Notice("alarm", "none of 24 tested draft tokens was accepted")
        session = ScriptedSession([[HELLO[0], alarm, *HELLO[1:]]])
        async with chatting(tmp_path, lambda: session, config=config(tmp_path, notices=False)) as chat:
            await chat.ask("one")
            await chat.wait_text("none of 24 tested draft tokens was accepted")


class TestReading:
    async def test_a_page_key_turns_what_is_longer_than_its_place(self, tmp_path: Path) -> None:
        text = "\n\n".join(f"word{i}" for i in range(120))
        async with chatting(tmp_path, lambda: ScriptedSession([reply_of(text)]), size=(80, 24)) as chat:
            await chat.ask("one")
            view, prompt = chat.screen.view, chat.screen.prompt
            await chat.pilot.press("pageup", "pageup", "pagedown")
            await chat.wait(lambda: 0 < view.scroll_y < view.max_scroll_y, "a page back")
            at = view.scroll_y
            prompt.put("\n".join(f"line {i}" for i in range(40)))
            await chat.pilot.pause()
            await chat.pilot.press("pageup")
            await chat.wait(lambda: prompt.cursor_location[0] < 39, "a page back in the prompt")
            assert view.scroll_y == at

    async def test_the_view_follows_until_the_reader_scrolls(self, tmp_path: Path) -> None:
        words = [f"word{i}\n\n" for i in range(120)]
        session = SteppedSession([reply_of(*words)])
        async with chatting(tmp_path, lambda: session, size=(80, 24)) as chat:
            reply = await chat.begin("one")
            reply.let(100)
            await chat.wait_text("word48")
            view = chat.screen.view
            assert view.scroll_y == view.max_scroll_y > 0
            await chat.pilot.press("pageup")  # with the prompt in focus
            await chat.wait(lambda: view.scroll_y < view.max_scroll_y - 15, "a page back")
            at = view.scroll_y
            reply.let(100)
            await chat.wait(lambda: view.max_scroll_y > at + 60, "more text")
            await chat.pilot.pause(0.2)
            assert view.scroll_y == at
            await chat.pilot.press("end")
            await chat.wait(lambda: view.scroll_y == view.max_scroll_y, "at the end")
            reply.let_all()
            await chat.finished()
            await chat.wait_text("word119")

    async def test_a_long_chat_mounts_its_last_page_first(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            for i in range(10):
                await chat.ask(f"question {i}")
        async with chatting(tmp_path, resume=1) as chat:
            assert len(chat.screen.query(ReplyTurn)) == 6
            await chat.type("/older")
            await chat.wait(lambda: len(chat.screen.query(ReplyTurn)) == 10, "all turns")
            await chat.type("/older")
            await chat.wait_text("there are no earlier messages")

    async def test_the_earliest_turns_of_a_long_session_leave_the_screen(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("localspec.tui.widgets.conversation_view.PAGE", 2)

        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            for i in range(3):
                await chat.ask(f"question {i}")
            assert len(chat.screen.query(".turn")) == 2
            assert "4 earlier messages" in chat.text() and "question 0" not in chat.text().split("\n", 1)[1]
            await chat.type("/older")
            await chat.wait_text("question 1")
            assert len(stored(chat)) == 6

    async def test_held_back_text_at_the_end_is_drawn(self, tmp_path: Path) -> None:
        events = [
            *reply_of("a b"),
        ]
        events.insert(-1, Text(" held", "content"))
        async with chatting(tmp_path, lambda: ScriptedSession([events])) as chat:
            await chat.ask("one")
            assert "a b held" in chat.text()
            assert stored(chat)[1] == ("a b held", "stop")


def test_errors_offer_what_helps() -> None:
    assert commands.remedies(DoesNotFitError("x"))[0] == "models.anyway"
    assert "models.anyway" not in commands.remedies(EngineError("x"))
    assert commands.remedies(PromptTooLongError("x")) == ["settings.open", "models.reload", "chats.new"]
