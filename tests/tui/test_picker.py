"""The model picker: what fits, live questions, filter, order, detail, help, palette, sizes."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from textual.command import CommandList

from localspec.budget import host_device
from localspec.catalog import load_catalog
from localspec.engine.settings import LoadSettings
from localspec.interfaces import Companion, PairFiles, SessionInfo
from localspec.locations import locations
from localspec.planning import Machine, remember_rates
from localspec.store.measurements import Measurements
from localspec.tui.controller import Wish
from localspec.tui.picker_factory import PickerFactory
from localspec.tui.picking import services
from localspec.tui.picking.actions import PICKER_ACTIONS
from localspec.tui.picking.rows import ORDERS
from localspec.tui.screens.dialogs import Confirm
from localspec.tui.screens.help import HelpScreen
from localspec.tui.screens.picker import PickerScreen
from tests.kit.ggufs import syn
from tests.tui.kit import chatting, config, run
from tests.tui.picker_kit import Picker, picking

GIB = 1 << 30
Patch = pytest.MonkeyPatch


def has_ram(monkeypatch: Patch, gib: float) -> None:
    """This machine has no GPU and so much free RAM."""
    machine = Machine((host_device(int(gib * GIB), 64 * GIB),))
    monkeypatch.setattr(services, "host_machine", lambda: machine)


def column(picker: Picker, name: str) -> list[str]:
    """The texts of one column, as drawn."""
    return [str(text) for text in picker.screen.table.get_column(name)]


class TestSpeed:
    def test_what_was_measured_here_is_shown_instead_of_what_others_published(
        self, home: Path, monkeypatch: Patch
    ) -> None:
        has_ram(monkeypatch, 30)
        for file, name in (("o/r/t.gguf", "syn"), ("o/d/d.gguf", "syn-near")):
            path = home / "data" / "models" / file
            path.parent.mkdir(parents=True)
            path.write_bytes(syn(name).read_bytes())
        files = PairFiles("tiny", syn("syn"), (Companion("draft", syn("syn-near")),))
        loaded = SessionInfo(
            "tiny", "t", (), ("auto",), 8192, 64, "llama", LoadSettings(threads=1), (), (), build="b"
        )
        store = Measurements(locations().measurements_db)
        for rates in ({"plain": 40.0}, {"auto": 62.0}):
            remember_rates(files, loaded, rates, store)
        store.close()

        async def work() -> None:
            async with picking(home, monkeypatch, budget=None) as picker:
                await picker.filter("tiny")
                cells = dict(zip(column(picker, "pair"), column(picker, "tok/s"), strict=True))
                assert cells == {"tiny": "✓62 1.6×", "tiny-ngram": "–"}
                await picker.see("62 tok/s (62–62), 1.55× plain (40 tok/s), by auto")
                await picker.press("b")  # a simulated card measured nothing
                await picker.ready()
                assert set(column(picker, "tok/s")) == {"–"}

        run(work())


class TestQuestion:
    def test_the_list_says_what_fits_a_24_gb_card(self, home: Path, monkeypatch: Patch) -> None:
        """Known fault: a fit told from total memory or without the draft and its cache."""

        async def work() -> None:
            async with picking(home, monkeypatch, whole=True) as picker:
                assert "SIM 24GB-card · ctx 8192 · KV f16" in picker.text()
                rows = {row.name: row.plan for row in picker.screen.rows}
                assert rows["llama-3.1-8b-1b"].fit == "fits"
                assert rows["llama-3.3-70b-1b"].fit in ("partial", "too big")
                text = picker.text()
                assert "● fits" in text and " GiB" in text
                fits = column(picker, "fit")
                order = ["fits", "tight", "partial", "unknown", "too"]
                assert fits == sorted(fits, key=lambda text: order.index(text.split()[1]))

        run(work())

    def test_context_kv_and_budget_change_the_fit_live(self, home: Path, monkeypatch: Patch) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await picker.filter("qwen3-32b-iq4")

                async def pressed(*keys: str) -> tuple[str, int]:
                    await picker.press(*keys)
                    await picker.ready()
                    row = picker.screen.row("qwen3-32b-iq4-0.6b")
                    assert row is not None
                    return row.plan.fit, row.plan.total_bytes

                first = await pressed()
                longer = await pressed("c", "c")
                assert "ctx 32768" in picker.text() and longer[1] > first[1]
                assert longer[0] in ("partial", "too big")
                smaller = await pressed("k")
                assert "KV q8_0" in picker.text() and smaller[1] < longer[1]
                await pressed("b")
                assert "SIM 16GB-card" in picker.text()
                assert (await pressed("c", "c"))[1] > smaller[1]

        run(work())

    def test_the_budgets_go_round_to_this_machine(self, home: Path, monkeypatch: Patch) -> None:
        """Known fault: without a GPU the comparison is with RAM and says so, never with an absent card."""
        has_ram(monkeypatch, 4.0)

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                seen = []
                for _ in range(5):
                    seen.append(picker.screen.question.budget)
                    await picker.press("b")
                    await picker.ready()
                assert seen == ["24GB-card", "16GB-card", "12GB-card", "8GB-card", None]
                await picker.press(*"bbbb")
                await picker.ready()
                assert "this machine (RAM, no GPU)" in picker.text() and "SIM" not in picker.text()
                assert {row.plan.compared_with for row in picker.screen.rows} == {"CPU"}

        run(work())

    def test_typed_context_and_budget(self, home: Path, monkeypatch: Patch) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await picker.press("C")
                await picker.see("Context length in tokens")
                await picker.press(*["backspace"] * 6, *"12k", "enter")
                await picker.see("ctx 12288")
                await picker.press("B", *["backspace"] * 12, *"20GiB", "enter")
                await picker.see("SIM 20GiB")
                await picker.press("C", *["backspace"] * 8, *"many", "enter")
                await picker.see("`many` is no context length")
                assert "ctx 12288" in picker.text()

        run(work())


class TestList:
    def test_a_filter_that_finds_nothing_says_so(self, home: Path, monkeypatch: Patch) -> None:
        """Known fault: a filter that silently finds nothing."""

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                count = len(picker.screen.rows)
                await picker.press("slash", *"zzz")
                await picker.see(f"0 of {count} match “zzz”: Esc clears the filter")
                await picker.press("escape")
                assert picker.screen.table.row_count == count
                assert "match" not in picker.text()

        run(work())

    def test_letters_are_keys_only_outside_the_filter(self, home: Path, monkeypatch: Patch) -> None:
        """Known fault: a text field that loses letters to single-key bindings."""

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                before = picker.screen.question
                await picker.press("slash", *"kbcsdqxe")
                assert picker.screen.filter_field.value == "kbcsdqxe"
                assert picker.screen.question == before
                assert picker.app.screen is picker.screen
                await picker.press("escape", "k")
                await picker.ready()
                assert picker.screen.question != before

        run(work())

    def test_words_are_looked_for_in_all_columns(self, home: Path, monkeypatch: Patch) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await picker.filter("coder fits apache")
                names = column(picker, "pair")
                assert names and all("coder" in name for name in names)
                shown = picker.screen.table.row_count
                assert f"{shown} of {len(picker.screen.rows)} pairs" in picker.text()

        run(work())

    def test_every_order_keeps_the_marked_pair(self, home: Path, monkeypatch: Patch) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await picker.press("down", "down", "down")
                marked = picker.screen.table.marked
                for order in [*list(ORDERS)[1:], next(iter(ORDERS))]:
                    await picker.press("s")
                    await picker.see(f"by {order}")
                    assert picker.screen.table.marked == marked
                    names = column(picker, "pair")
                    rows = {row.name: row for row in picker.screen.rows}
                    assert names == sorted(names, key=lambda name: ORDERS[order](rows[name]))

        run(work())


class TestDetail:
    def test_it_shows_every_term_the_verdict_and_the_source(self, home: Path, monkeypatch: Patch) -> None:
        """Known fault: a memory figure without draft, cache or buffers."""

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await picker.filter("llama-3.1-8b-1b")
                await picker.wait(lambda: "llama-3.1-8b-1b" in picker.detail(), "detail")
                detail = picker.detail()
                for part in (
                    "target weights",
                    "target KV",
                    "draft weights",
                    "draft KV",
                    "buffers",
                    "reserve",
                    "free",
                    "SIM",
                    "● fits",
                    "licence",
                    "accepted 72%",
                    "https://",
                    "RTX 3060",
                ):
                    assert part in detail, part
                plan = picker.screen.current.plan  # type: ignore[union-attr]
                bar = next(line for line in detail.splitlines() if line.startswith("█"))
                assert {"█", "▒", "▓", "╱"} <= set(bar), "terms differ in their fill, not in colour alone"
                assert f"{plan.largest_ctx}" in detail

        run(work())

    def test_a_pair_that_does_not_fit_says_what_would_help(self, home: Path, monkeypatch: Patch) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch, budget="8GB-card") as picker:
                await picker.filter("qwen2.5-coder-7b")
                await picker.press("C", *["backspace"] * 8, *"32k", "enter")
                await picker.ready()
                await picker.wait(lambda: "would help" in picker.detail(), "suggestions")
                assert "KV cache fits" in picker.detail() or "tokens fits" in picker.detail()

        run(work())

    def test_markup_in_a_users_note_is_text(self, home: Path, monkeypatch: Patch) -> None:
        """Known fault: a crash on brackets in somebody's text."""

        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await picker.filter("tiny o/r")
                await picker.filter("")
                await picker.filter("tiny draft")
                await picker.wait(lambda: "note: a [pair] of the test" in picker.detail(), "the note")

        run(work())


class TestPick:
    def test_a_first_visit_offers_the_demo_pair(self, home: Path, monkeypatch: Patch) -> None:
        has_ram(monkeypatch, 8.0)

        async def work() -> None:
            async with picking(home, monkeypatch, size=(80, 24)) as picker:
                assert "No model yet. e: embedded demo" in picker.text()
                await picker.press("down", "e")
                await picker.see("demo is the default now")
                await picker.wait(lambda: "★ default" in picker.text(), "the mark")
                assert "No model yet" not in picker.text()
                assert tomllib.loads(picker.config.file.read_text())["default_pair"] == "demo"

        run(work())

    def test_load_anyway_is_offered_where_it_does_not_fit(self, home: Path, monkeypatch: Patch) -> None:
        """Known fault: a guard that cannot be overridden. A simulated card says nothing here."""
        has_ram(monkeypatch, 1.1)

        async def work() -> None:
            async with picking(home, monkeypatch, default_pair="tiny") as picker:
                await picker.filter("demo")
                await picker.press("enter")
                await picker.see("demo does not fit: it needs")
                await picker.see("Load anyway?")
                await picker.press("n")
                assert not picker.config.file.exists()
                await picker.press("enter")
                await picker.see("Load anyway?")
                await picker.press("y")
                await picker.see("localspec chat demo --force")
                assert not picker.config.file.exists(), "what does not fit is no default"

        run(work())

    def test_escape_leaves_and_ctrl_c_asks_twice(self, home: Path, monkeypatch: Patch) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch) as picker:
                await picker.press("ctrl+c")
                await picker.see("press Ctrl+C again to quit")
                await picker.press("ctrl+c")
                await picker.wait(lambda: not picker.app.is_running or picker.app._exit, "the end")

        run(work())


class TestSurroundings:
    def test_help_names_every_key_of_the_table(self, home: Path, monkeypatch: Patch) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch, size=(100, 60)) as picker:
                await picker.press("question_mark")
                await picker.wait(lambda: isinstance(picker.app.screen, HelpScreen), "help")
                text = picker.text()
                assert "Model pairs, one a row" in text
                for action in PICKER_ACTIONS:
                    assert action.id in text, action.id

        run(work())

    def test_everything_is_in_the_palette(self, home: Path, monkeypatch: Patch) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch, size=(120, 60)) as picker:
                await picker.press("ctrl+p")
                await picker.see("Next type of KV cache")
                options = picker.app.screen.query_one(CommandList).options
                listed = "\n".join(str(option.prompt) for option in options)
                for action in PICKER_ACTIONS:
                    assert action.title in listed, action.id
                await picker.press(*"type of kv", "enter")
                await picker.see("KV q8_0")

        run(work())

    def test_keys_are_remapped_by_id(self, home: Path, monkeypatch: Patch) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch, keymap={"picker.kv": "v"}) as picker:
                await picker.press("k")
                await picker.ready()
                assert "KV f16" in picker.text()
                await picker.press("v")
                await picker.see("KV q8_0")

        run(work())

    @pytest.mark.parametrize("size", [(60, 20), (80, 24), (120, 40), (200, 60)])
    def test_it_is_usable_at_every_size(self, home: Path, monkeypatch: Patch, size: tuple[int, int]) -> None:
        async def work() -> None:
            async with picking(home, monkeypatch, size=size) as picker:
                await picker.see("target weights")  # the detail
                await picker.wait(lambda: picker.text().count("● fits") >= 5, "rows")
                text = picker.text()
                assert all(len(line) <= size[0] for line in text.split("\n"))
                assert "24GB-card" in text and "● fits" in text and "GiB" in text
                if size[0] >= 80:
                    assert "state" in text and "tok/s" in text and "filter" in text
                if size[0] >= 120:
                    assert "licence" in text and "longest ctx" in text

        run(work())

    def test_nothing_is_told_by_colour_alone(self, home: Path, monkeypatch: Patch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")

        async def work() -> None:
            async with picking(home, monkeypatch, budget="12GB-card") as picker:
                words = {text.split(" ~")[0].split("  ")[0].strip() for text in column(picker, "fit")}
                assert {"● fits", "◔ partial"} <= words

        run(work())

    def test_dialogs_answer_no_by_default(self, home: Path, monkeypatch: Patch) -> None:
        has_ram(monkeypatch, 1.1)

        async def work() -> None:
            async with picking(home, monkeypatch, size=(60, 20)) as picker:
                await picker.press("e")
                await picker.wait(lambda: isinstance(picker.app.screen, Confirm), "the question")
                assert "Load anyway?" in picker.text()
                await picker.press("enter")
                await picker.wait(lambda: picker.app.screen is picker.screen, "back")
                assert not picker.config.file.exists()

        run(work())


class TestInChat:
    def test_f2_begins_with_the_chats_settings_and_loads_what_is_picked(
        self, home: Path, monkeypatch: Patch, tmp_path: Path
    ) -> None:
        has_ram(monkeypatch, 8.0)
        monkeypatch.setenv("HOME", str(home))

        async def work() -> None:
            settings = config(tmp_path, default_pair="demo")
            catalog = load_catalog()
            pairs = {name: catalog.pairs[name] for name in ("demo", "llama-3.1-8b-1b")}
            factory = PickerFactory(replace(catalog, pairs=pairs), settings)

            def picker(load: LoadSettings, info: SessionInfo | None) -> PickerScreen:
                return factory.screen(load, info, in_chat=True)

            async with chatting(tmp_path, picker=picker, config=settings) as chat:
                await chat.type("/set ctx 4096")
                await chat.pilot.press("f2")
                await chat.wait_text("ctx 4096")
                await chat.wait_text("★ default")
                await chat.pilot.press("ctrl+p")
                await chat.wait_text("Next type of KV cache")
                assert "Write the last reply again" not in chat.text(), "the chat's own actions wait below"
                await chat.pilot.press("escape")
                await chat.wait(lambda: isinstance(chat.app.screen, PickerScreen), "the picker")
                await chat.pilot.press("c")
                await chat.wait_text("ctx 8192")
                await chat.pilot.press("e")
                await chat.wait(lambda: len(chat.wishes) == 2, "a load")
                assert chat.wishes[1] == Wish("demo", LoadSettings(n_ctx=8192), force=False)
                await chat.ready()
                await chat.pilot.press("f2")
                await chat.wait_text("ctx 8192")
                await chat.pilot.press("escape")
                await chat.wait(lambda: chat.app.screen is chat.screen, "the chat")
                assert len(chat.wishes) == 2
            factory.close()

        run(work())
