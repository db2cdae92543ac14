"""Dialogs and surroundings: chats, settings, help, log, palette, keys, theme, sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Static

from localspec.engine.events import Notice
from localspec.engine.settings import LoadSettings
from localspec.errors import UsageError
from localspec.interfaces import SessionInfo
from localspec.store import ChatStore, Turn
from localspec.tui import why_no_screen
from localspec.tui.actions import ACTIONS, BY_ID, completions
from localspec.tui.app import make_app
from localspec.tui.controller import Wish
from localspec.tui.picking.services import Picked
from localspec.tui.screens.chats import ChatsScreen
from localspec.tui.screens.help import HelpScreen
from localspec.tui.screens.log import LogScreen
from localspec.tui.screens.settings import SettingsScreen
from tests.kit.scripted import ScriptedSession, words_as_events
from tests.tui.kit import Chat, Clock, SteppedSession, chatting, config, make_setup, reply_of

ROOT = Path(__file__).parents[2]
HELLO = words_as_events("Hello there, how are you")


def fill(folder: Path) -> ChatStore:
    """Three stored chats."""
    store = ChatStore(folder / "chats.db")
    for title, text in (
        ("Sorting", "a quicksort [in] Rust"),
        ("Poem", "a haiku"),
        ("[b]Markup[/b]", "plain"),
    ):
        chat = store.create(title=title, pair="demo")
        store.put_turn(chat, 0, Turn("user", text))
        store.put_turn(chat, 1, Turn("assistant", f"about {title}"))
    return store


async def opened(chat: Chat, kind: type[Any]) -> Any:
    await chat.wait(lambda: isinstance(chat.app.screen, kind), kind.__name__)
    await chat.pilot.pause()
    return chat.app.screen


class TestChats:
    async def test_another_chat_starts_with_numbers_of_its_own(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            await chat.ask("one")
            assert "ctx 15/4k · 250.0 tok/s" in chat.text()
            await chat.type("/new")
            await chat.wait_text("ctx 0/4k · – tok/s")
            assert "Write a message" in chat.text() and "spec on" in chat.text()

    async def test_a_chat_is_found_and_opened(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, store=fill(tmp_path)) as chat:
            await chat.pilot.press("f6")
            screen = await opened(chat, ChatsScreen)
            assert all(part in chat.text() for part in ("Sorting", "Poem", "[b]Markup[/b]", "demo"))
            await chat.pilot.press("slash", *"quick")
            await chat.wait(lambda: screen.query_one(DataTable).row_count == 1, "one match")
            await chat.pilot.press("enter", "enter")
            await chat.wait_text("about Sorting")
            assert chat.screen.conversation.title == "Sorting"
            await chat.ask("go on")
            assert [m.content for m in chat.session.requests[0].messages] == [
                "a quicksort [in] Rust", "about Sorting", "go on",
            ]  # fmt: skip

    async def test_nothing_found_says_so(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, store=fill(tmp_path)) as chat:
            await chat.pilot.press("f6")
            await opened(chat, ChatsScreen)
            await chat.pilot.press("slash", *"zzzz")
            await chat.wait_text("no chat has “zzzz”")
            await chat.pilot.press("escape")
            await chat.wait(lambda: chat.app.screen is chat.screen, "back")

    async def test_rename_and_delete(self, tmp_path: Path) -> None:
        store = fill(tmp_path)
        async with chatting(tmp_path, store=store) as chat:
            await chat.pilot.press("f6")
            await opened(chat, ChatsScreen)
            await chat.pilot.press("r")
            await chat.wait(lambda: isinstance(chat.app.focused, Input), "the title")
            chat.app.screen.query_one(Input).value = "New title"
            await chat.pilot.press("enter")
            await chat.wait_text("New title")
            await chat.pilot.press("d")
            await chat.wait_text("Delete “New title”?")
            await chat.pilot.press("enter")  # no is the default
            await chat.pilot.press("d")
            await chat.wait_text("Delete “New title”?")
            await chat.pilot.press("y")
            await chat.wait(lambda: len(store.find()) == 2, "one chat less")
            assert "New title" not in chat.text()

    async def test_export_and_import(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            await chat.type("/export")
            await chat.wait_text("this chat is empty")
            await chat.ask("What is [this]?")
            await chat.type("/export")
            await chat.wait_text("exported to what-is-this.md")
            assert "What is [this]?" in Path("what-is-this.md").read_text()
            await chat.type("/export out.json")
            await chat.wait(lambda: Path("out.json").exists(), "the JSON file")
            await chat.type("/export out.json")
            await chat.wait_text("`out.json` exists already")
            await chat.type("/import out.json")
            await chat.wait_text("imported 1 chat:")
            await chat.type("/import what-is-this.md")
            await chat.wait_text("this is no JSON")
            assert len(chat.screen.setup.store.find()) == 2
            await chat.pilot.press("f6")
            await opened(chat, ChatsScreen)
            await chat.pilot.press("e", "e")  # the second one overwrites nothing
            await chat.wait(lambda: Path("localspec-chats-2.json").exists(), "both exports of all")
            assert len(json.loads(Path("localspec-chats.json").read_text())["chats"]) == 2

    async def test_new_delete_and_incognito(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO])) as chat:
            store = chat.screen.setup.store
            await chat.ask("first")
            await chat.pilot.press("ctrl+n")
            await chat.wait_text("new chat")
            await chat.ask("second")
            assert len(store.find()) == 2
            await chat.type("/delete")
            await chat.wait_text("Delete the chat “second”?")
            await chat.pilot.press("y")
            await chat.wait(lambda: len(store.find()) == 1, "one chat less")
            await chat.type("/incognito")
            await chat.wait_text("incognito · new chat")
            await chat.ask("secret")
            assert len(store.find()) == 1 and chat.app.resume_hint() is None
            await chat.type("/rename Public")
            await chat.wait_text("incognito · Public")

    async def test_the_chat_does_not_change_under_a_running_reply(self, tmp_path: Path) -> None:
        session = SteppedSession([HELLO])
        async with chatting(tmp_path, lambda: session, store=fill(tmp_path)) as chat:
            await chat.begin("one")
            for key in ("ctrl+n", "f6", "f2", "f5"):
                await chat.pilot.press(key)
            await chat.pilot.pause()
            assert chat.app.screen is chat.screen
            assert chat.toasts().count("Esc stops it") == 4


class TestSettingsScreen:
    async def test_a_change_counts_from_the_next_reply(self, tmp_path: Path) -> None:
        session = ScriptedSession([HELLO])
        async with chatting(tmp_path, lambda: session, size=(130, 50)) as chat:
            await chat.pilot.press("f7")
            screen = await opened(chat, SettingsScreen)
            fields = {field.name: field for field in screen.query(Input)}
            assert fields["temperature"].value == "0.8" and fields["seed"].value == ""
            fields["temperature"].value = "0.1"
            fields["seed"].value = "-5"
            fields["ctx"].value = "1024"
            await chat.pilot.press("escape")
            await chat.wait_text("`seed` must be between 0 and")
            await chat.wait_text("/reload")
            await chat.ask("one")
            assert session.requests[0].sampling.temperature == 0.1
            assert session.requests[0].sampling.seed is None
            assert chat.screen.load_settings.n_ctx == 1024

    async def test_settings_belong_to_their_chat(self, tmp_path: Path) -> None:
        session = ScriptedSession([HELLO])
        settings = config(tmp_path, sampling={"temperature": 0.5}, request={"max_tokens": 32})
        async with chatting(tmp_path, lambda: session, config=settings) as chat:
            await chat.type("/set temperature 0")
            await chat.ask("one")
            await chat.pilot.press("ctrl+n")
            await chat.wait_text("new chat")
            await chat.ask("two")
            assert [r.sampling.temperature for r in session.requests] == [0.0, 0.5]
            assert [r.max_tokens for r in session.requests] == [32, 32]
        async with chatting(tmp_path, lambda: session, resume=1, config=settings) as chat:
            assert chat.screen.conversation.settings.sampling.temperature == 0.0


class TestHelp:
    async def test_help_begins_with_the_focused_part(self, tmp_path: Path) -> None:
        async with chatting(
            tmp_path, size=(120, 60), config=config(tmp_path, keymap={"spec.marks": "f12"})
        ) as chat:
            await chat.pilot.press("f1")
            screen = await opened(chat, HelpScreen)
            text = "\n".join(str(static.render()) for static in screen.query(Static))
            assert text.index("Write here.") < text.index("Keys and commands")
            for action in ACTIONS:
                assert action.id in text and action.title in text
            assert "f12" in text
            await chat.pilot.press("escape")
            chat.screen.view.focus()
            await chat.pilot.press("f1")
            await opened(chat, HelpScreen)
            await chat.wait_text("The conversation. Scroll up to read: it stays.")

    async def test_a_long_line_of_the_log_is_wrapped(self, tmp_path: Path) -> None:
        (tmp_path / "localspec.log").write_text("ERROR localspec.llama: " + "x" * 70 + " ENDING\n")
        async with chatting(tmp_path, size=(80, 24)) as chat:
            await chat.pilot.press("f9")
            await chat.wait_text("ENDING")

    async def test_the_log_is_shown_with_its_place_and_its_escapes_visible(self, tmp_path: Path) -> None:
        (tmp_path / "localspec.log").write_text("llama: loaded\n\x1b[31mGGML_ASSERT [x] failed\n")
        async with chatting(tmp_path, size=(120, 30)) as chat:
            await chat.pilot.press("f9")
            await opened(chat, LogScreen)
            await chat.wait_text("␛[31mGGML_ASSERT [x] failed")
            assert "localspec.log" in chat.text()
            (tmp_path / "localspec.log").unlink()
            await chat.wait_text("there is no log yet")

    async def test_slash_commands_are_completed(self, tmp_path: Path) -> None:
        async with chatting(tmp_path) as chat:
            await chat.pilot.press(*"/sy")
            await chat.wait_text("System prompt of this chat")
            await chat.pilot.press("tab")
            assert chat.screen.prompt.text == "/system "
            chat.screen.prompt.put("")
            await chat.type("/sistem")
            await chat.wait_text("did you mean `/system`?")
            assert chat.screen.prompt.text == "/sistem"
            chat.screen.prompt.put("")
            await chat.ask("//etc/passwd is a file")
            assert chat.session.requests[0].messages[0].content == "/etc/passwd is a file"

    async def test_the_palette_runs_actions(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, size=(120, 40)) as chat:
            await chat.pilot.press("ctrl+p")
            await chat.wait(lambda: isinstance(chat.app.screen, ModalScreen), "the palette")
            await chat.pilot.press(*"statistics")
            await chat.wait_text("Statistics pane (f8, /statistics)")
            await chat.pilot.press("enter", "enter")
            await chat.wait(lambda: chat.screen.has_class("statistics"), "the pane")
            await chat.pilot.press("ctrl+p")
            await chat.pilot.press(*"attach")
            await chat.wait_text("Attach a text file")
            await chat.pilot.press("enter", "enter")
            await chat.wait(lambda: chat.screen.prompt.text == "/attach ", "the command to complete")


class TestSurroundings:
    async def test_keys_are_remapped_by_id(self, tmp_path: Path) -> None:
        keymap = {"view.statistics": "f10", "prompt.send": "ctrl+s", "app.quit": "f12"}
        async with chatting(tmp_path, config=config(tmp_path, keymap=keymap)) as chat:
            await chat.pilot.press("f8")
            await chat.pilot.pause()
            assert not chat.screen.has_class("statistics")
            await chat.pilot.press("f10")
            await chat.wait(lambda: chat.screen.has_class("statistics"), "the pane")
            await chat.pilot.press("a", "enter", "b", "ctrl+s")
            await chat.finished()
            assert chat.session.requests[0].messages[0].content == "a\nb"
            await chat.pilot.press("f12")
            await chat.wait(lambda: not chat.app.is_running, "the end")

    def test_an_unknown_id_in_the_keymap_is_refused(self, tmp_path: Path) -> None:
        setup = make_setup(tmp_path, None, config=config(tmp_path, keymap={"spec.togle": "f3"}))
        with pytest.raises(UsageError, match="no binding") as error:
            make_app(setup)
        assert error.value.hint == "did you mean `spec.toggle`?"
        setup.store.close()
        assert set(BY_ID) >= {"reply.stop", "prompt.send", "models.open"}

    async def test_a_theme_is_remembered(self, tmp_path: Path) -> None:
        async with chatting(tmp_path) as chat:
            await chat.type("/theme dracula")
            await chat.wait(lambda: chat.app.theme == "dracula", "the theme")
            await chat.type("/theme drakula")
            await chat.wait_text("did you mean `dracula`?")
        assert tomllib.loads((tmp_path / "config.toml").read_text()) == {"theme": "dracula"}
        async with chatting(tmp_path, config=config(tmp_path, theme="dracula")) as chat:
            assert chat.app.theme == "dracula"
        async with chatting(tmp_path, config=config(tmp_path, theme="gone")) as chat:
            assert chat.app.theme != "gone"

    @pytest.mark.parametrize("theme", ["textual-light", "ansi-dark", "ansi-light", "gruvbox"])
    async def test_every_kind_of_theme_draws_code_and_prose(self, tmp_path: Path, theme: str) -> None:
        text = "**bold** `code`\n\n```python\ndef f(x):\n    return 'y'\n```\n\n> quote"
        events = [HELLO[0], HELLO[1].__class__(1, text, "content", True, "draft", 0), HELLO[-1]]
        async with chatting(
            tmp_path, lambda: ScriptedSession([events]), config=config(tmp_path, theme=theme)
        ) as chat:
            await chat.ask("one")
            assert "return 'y'" in chat.text()
            await chat.pilot.press("f4")
            await chat.wait_text("token view")

    async def test_without_a_picker_f2_says_what_to_do(self, tmp_path: Path) -> None:
        async with chatting(tmp_path) as chat:
            await chat.pilot.press("f2")
            await chat.wait_text("the model picker is not available here")
            assert "localspec pick-models" in chat.toasts()
            await chat.type("/use other")
            await chat.wait(lambda: len(chat.wishes) == 2, "the other pair")
            assert chat.wishes[1].pair == "other"

    async def test_a_registered_picker_is_opened_and_its_pair_loaded(self, tmp_path: Path) -> None:
        class Picker(ModalScreen[Picked | None]):
            def __init__(self, load: LoadSettings, info: SessionInfo | None) -> None:
                super().__init__()
                opened.append((load.n_ctx, info is not None))

            def on_mount(self) -> None:
                self.set_timer(0.05, self.pick)

            def pick(self) -> None:
                self.dismiss(Picked("picked-pair", LoadSettings(n_ctx=4096), force=True))

        opened: list[tuple[int | None, bool]] = []

        async with chatting(tmp_path, picker=Picker, pick_first=True, wait_ready=False) as chat:
            await chat.ready()
            assert chat.wishes == [Wish("picked-pair", LoadSettings(n_ctx=4096), force=True)]
            await chat.pilot.press("f2")
            await chat.wait(lambda: len(chat.wishes) == 2, "picked again")
            assert opened == [(None, False), (4096, True)]  # what was chosen stays, and what is loaded

    @pytest.mark.parametrize("size", [(60, 20), (80, 24), (160, 50)])
    async def test_it_is_usable_at_every_size(self, tmp_path: Path, size: tuple[int, int]) -> None:
        async with chatting(tmp_path, lambda: ScriptedSession([HELLO]), size=size) as chat:
            await chat.ask("one")
            await chat.pilot.press("f8")
            await chat.wait_text("Hello there, how are you")
            text = chat.text()
            assert "spec on" in text and "tok/s" in text and "Message (Enter sends" in text
            assert all(len(line) <= size[0] for line in text.split("\n"))
            assert "last minute" in text

    async def test_completions_take_one_line_each_in_a_narrow_terminal(self, tmp_path: Path) -> None:
        async with chatting(tmp_path, size=(60, 20)) as chat:
            await chat.pilot.press("slash")
            await chat.wait_text("/anyway")
            shown = [line.split()[0] for line in chat.text().splitlines() if line.startswith(" /")]
            assert shown == [f"/{action.slash}" for action in completions("/")[:5]]
            assert "Load even though it does not seem…" in chat.text()

    async def test_resizing_while_a_reply_runs(self, tmp_path: Path) -> None:
        session = SteppedSession([words_as_events(" ".join(f"word{i}" for i in range(300)))])
        async with chatting(tmp_path, lambda: session, size=(120, 40)) as chat:
            reply = await chat.begin("one")
            for size in ((60, 20), (120, 40), (40, 10), (120, 40)):
                reply.let(80)
                await chat.pilot.resize_terminal(*size)
                await chat.pilot.pause(0.15)
            reply.let_all()
            await chat.finished()
            await chat.wait_text("word299")

    async def test_without_colour_drafted_tokens_still_show(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NO_COLOR", "1")

        events = reply_of("The", " cat", " sat", drafted=(False, True, False))
        async with chatting(tmp_path, lambda: ScriptedSession([events])) as chat:
            await chat.ask("one")
            await chat.pilot.press("f4")
            await chat.wait_text("The╎ cat╎ sat")
            region = chat.screen.query(".part").last().region
            strip = chat.app.screen._compositor.render_strips(chat.app.size)[region.y]
            for line_filter in chat.app.get_line_filters():
                strip = strip.apply_filter(line_filter, chat.app.background_colors[0])
            segments = [segment for segment in strip if segment.style is not None]
            underlined = "".join(s.text for s in segments if s.style and s.style.underline)
            assert underlined == " cat"
            colours = {s.style.color.triplet for s in segments if s.style and s.style.color}
            assert all(triplet is None or len({*triplet}) == 1 for triplet in colours)  # only greys

    async def test_remarks_of_a_load_are_shown(self, tmp_path: Path) -> None:
        def make(wish: object, notify: Callable[[Any], None]) -> ScriptedSession:
            notify(Notice("raised", "n_ubatch raised to 18"))
            return ScriptedSession([HELLO])

        async with chatting(tmp_path, make_session=make) as chat:
            await chat.wait_text("n_ubatch raised to 18")

    async def test_a_long_reply_is_saved_while_it_runs(self, tmp_path: Path) -> None:
        clock = Clock()
        session = SteppedSession([HELLO])
        async with chatting(tmp_path, lambda: session, clock=clock) as chat:
            reply = await chat.begin("one")
            reply.let(2)
            await chat.wait_text("Hello")
            clock.now += 6
            reply.let(1)
            store = chat.screen.setup.store
            await chat.wait(lambda: len(store.load(1).turns) == 2, "the half reply in the store")

    def test_a_screen_is_only_drawn_on_a_terminal_that_can(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert why_no_screen({}) == "stdin is not a terminal"

        class Terminal:
            closed = False

            def isatty(self) -> bool:
                return True

        monkeypatch.setattr("sys.stdin", Terminal())
        monkeypatch.setattr("sys.stdout", Terminal())
        assert why_no_screen({"TERM": "xterm-256color"}) is None
        assert why_no_screen({"TERM": "dumb"}) == "the terminal (TERM=dumb) cannot place the cursor"
        monkeypatch.setattr("sys.stdout", None)
        assert why_no_screen({"TERM": "xterm"}) == "stdout is not a terminal"


def test_the_screen_needs_no_engine(tmp_path: Path) -> None:
    """First paint and memory: the process of the screen never loads what the worker needs."""
    script = """
import asyncio, sys
from pathlib import Path
from tests.tui.kit import chatting
async def work():
    async with chatting(Path(sys.argv[1])) as chat:
        await chat.ask("hello")
asyncio.run(work())
print(sorted({"llama_cpp", "huggingface_hub", "numpy", "gguf", "jinja2", "fastapi"} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout == "[]\n"
