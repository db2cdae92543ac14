"""Actions, settings, numbers and bars: the tables and pure functions behind the screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.config import SETTINGS
from localspec.engine.events import Done, Prefill, Round, Token
from localspec.engine.settings import LoadSettings, SamplingSettings
from localspec.errors import UsageError
from localspec.tui.actions import ACTIONS, BY_ID, PROMPT_ACTIONS, completions, parse_slash
from localspec.tui.changing import CHANGEABLE, Held, changed, shown, value_of
from localspec.tui.clipboard import copy, system_command
from localspec.tui.commands import HANDLERS
from localspec.tui.conversation import ChatSettings
from localspec.tui.editor import edit_text
from localspec.tui.ending import note_of
from localspec.tui.live import Live
from localspec.tui.memory import device_uses
from localspec.tui.pacing import BASE_S, LONGEST_S, Pacer
from localspec.tui.speed import SpeedUp
from localspec.tui.widgets.bars import MemoryPart, bar, curve, histogram, memory_bar
from localspec.tui.widgets.statistics import count_lines
from tests.kit.scripted import summary
from tests.tui.kit import GIB, RICH_INFO, Clock

HELD = Held(ChatSettings(), LoadSettings())


class TestActions:
    def test_every_action_has_a_handler_and_every_handler_an_action(self) -> None:
        assert set(HANDLERS) == {action.id for action in ACTIONS}

    def test_ids_keys_and_commands_are_unique(self) -> None:
        assert len(BY_ID) == len(ACTIONS) + len(PROMPT_ACTIONS)
        keys = [key for action in BY_ID.values() for key in action.keys.split(",") if key]
        assert len(keys) == len(set(keys))
        slashes = [action.slash for action in ACTIONS if action.slash]
        assert len(slashes) == len(set(slashes))

    def test_every_key_can_be_typed_as_a_command_or_is_for_the_prompt(self) -> None:
        """Some terminals keep F1 or ctrl+q for themselves: nothing may hang on a key alone."""
        keyed = {action.id for action in ACTIONS if action.keys and not action.slash}
        assert keyed == {"app.palette", "app.interrupt"}

    def test_slash_commands_are_read_with_their_argument(self) -> None:
        assert parse_slash("hello") is None
        assert parse_slash("//etc is a folder") is None
        assert parse_slash("/k 4\nsecond line") is None
        found = parse_slash("/k  4 ")
        assert found is not None and (found[0].id, found[1]) == ("spec.k", "4")
        found = parse_slash("/system")
        assert found is not None and found[1] == ""

    @pytest.mark.parametrize(
        ("line", "message"),
        [("/helo", "unknown command `/helo`"), ("/stop now", "takes nothing"), ("/use", "needs: pair")],
    )
    def test_wrong_commands_are_explained(self, line: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            parse_slash(line)

    def test_the_nearest_command_is_named(self) -> None:
        with pytest.raises(UsageError) as error:
            parse_slash("/helo")
        assert error.value.hint == "did you mean `/help`?; start with // to send it as text"

    def test_completions(self) -> None:
        assert [action.slash for action in completions("/co")] == ["continue", "copy", "copycode"]
        assert completions("co") == completions("/copy ") == completions("//co") == []


class TestSettings:
    def test_every_engine_setting_can_be_changed(self) -> None:
        assert {s.section for s in CHANGEABLE.values()} == {"sampling", "speculation", "request", "load"}
        assert set(CHANGEABLE) == {key for key, s in SETTINGS.items() if s.section != "app"}

    @pytest.mark.parametrize("key", CHANGEABLE)
    def test_what_is_shown_can_be_typed_back(self, key: str) -> None:
        text = shown(key, value_of(HELD, key))
        assert changed(HELD, key, text) == HELD

    @pytest.mark.parametrize(
        ("key", "text"),
        [
            ("temperature", "0.25"), ("seed", "7"), ("k", "4"), ("method", "ngram"), ("max_tokens", "99"),
            ("logit_bias", "15043+1, 2-inf"), ("dry_sequence_breakers", '["a", "\\n"]'), ("kv", "q8_0, f16"),
            ("tensor_split", "[3.0, 1.0]"), ("rpc", "host:5000, other:5001"), ("mmap", "false"),
            ("ctx", "4096"),
            ("json_schema", '{"type": "object"}'), ("require_spec", "true"),
        ],
    )  # fmt: skip
    def test_a_typed_value_holds_and_default_takes_it_back(self, key: str, text: str) -> None:
        held = changed(HELD, key, text)
        assert held != HELD
        assert shown(key, value_of(held, key)) == text
        assert changed(held, key, "default") == changed(held, key, "") == HELD

    def test_wrong_values_and_keys_are_named(self) -> None:
        with pytest.raises(UsageError, match="`top_p` must be between 0 and 1") as error:
            changed(HELD, "top_p", "2")
        assert error.value.hint == SETTINGS["top_p"].help
        with pytest.raises(UsageError, match="unknown setting `temprature`") as error:
            changed(HELD, "temprature", "2")
        assert error.value.hint == "did you mean `temperature`?"
        with pytest.raises(UsageError, match="unknown setting `host`"):
            changed(HELD, "host", "x")

    def test_only_its_own_field_changes(self) -> None:
        held = changed(HELD, "temperature", "0")
        assert held == Held(ChatSettings(sampling=SamplingSettings(temperature=0.0)), LoadSettings())


class TestLive:
    def test_rates_come_from_the_rounds_and_not_from_the_screen(self) -> None:
        clock = Clock()
        live = Live(clock)
        live.begin_reply()
        live.observe(Prefill(5, 10, 2))
        assert (live.n_past, live.tps, live.first_token_s) == (5, None, None)
        clock.now += 0.5
        for i in range(10):
            live.observe(Token(i, "x", "content", True, "draft", i))
            live.observe(Round("draft", 3, 2, 1, 4, 10 + i, 0.01, 0.03, 0.01, 2))
            clock.now += 100.0  # a screen that sleeps does not slow the model
        assert live.tps == pytest.approx(2 / 0.05)
        assert live.acceptance == 0.5
        assert live.first_token_s == 0.5
        assert live.stats.drafted == 30 and live.total.accepted == 10
        live.observe(Done("stop", summary(20, rounds=10)))
        assert live.tps == pytest.approx(summary(20, rounds=10).decode_tps)

    def test_a_rate_follows_the_last_two_seconds(self) -> None:
        live = Live(Clock())
        live.begin_reply()
        for _ in range(100):
            live.observe(Round("off", 0, 0, 0, 1, 10, 0.0, 1.0, 0.0, 1))
        for _ in range(100):
            live.observe(Round("off", 0, 0, 0, 1, 10, 0.0, 0.1, 0.0, 1))
        assert live.tps == pytest.approx(10.0)

    def test_curves_have_one_value_a_second(self) -> None:
        clock = Clock()
        live = Live(clock)
        live.begin_reply()
        for accepted in (1, 0):
            live.observe(Round("draft", 2, 2, accepted, 3, 10, 0.0, 0.5, 0.0, 1))
            clock.now += 2
        assert live.rate_curve(5) == [2.0, 0.0, 2.0, 0.0, 0.0]
        assert live.acceptance_curve(5) == [0.5, 0.0, 0.0, 0.0, 0.0]

    def test_a_new_reply_counts_from_zero_and_the_session_goes_on(self) -> None:
        live = Live(Clock())
        for _ in range(2):
            live.begin_reply()
            live.observe(Round("draft", 2, 2, 2, 3, 10, 0.0, 0.5, 0.0, 3))
        assert (live.stats.accepted, live.total.accepted) == (2, 4)

    def test_the_round_that_ends_a_reply_gave_a_token_too(self) -> None:
        """Screen, report and benchmark divide in one place."""
        live = Live(Clock())
        live.begin_reply()
        live.observe(Round("draft", 2, 2, 2, 3, 10, 0.0, 0.5, 0.0, 3))
        live.observe(Round("off", 0, 0, 0, 1, 11, 0.0, 0.5, 0.0, 0, ended=True))
        assert "per round 2.00 tokens" in count_lines(live)
        assert live.stats.summary().tokens_per_round == 2.0


class TestPacer:
    def test_flushes_come_ten_times_a_second_and_less_often_when_they_cost_more(self) -> None:
        clock = Clock()
        pacer = Pacer(clock)
        assert pacer.wait_s() == 0.0
        pacer.spent(0.002)
        assert pacer.wait_s() == pytest.approx(BASE_S)
        pacer.spent(0.03)
        assert pacer.wait_s() == pytest.approx(0.24)
        pacer.spent(10.0)
        assert pacer.wait_s() == pytest.approx(LONGEST_S)
        clock.now += 1
        assert pacer.wait_s() == 0.0


class TestBars:
    def test_a_bar_is_exact_to_an_eighth(self) -> None:
        assert [bar(share, 4) for share in (0, 0.03125, 0.5, 1, 7, -1)] == ["", "▏", "██", "████", "████", ""]

    def test_histogram_and_curve_have_a_number_on_each_line(self) -> None:
        assert histogram([4, 0, 2], 12).plain == "0 ████████ 4\n1  0\n2 ████ 2"
        assert curve([1.0, None, 0.25], 13).plain == "1 █████ 100 %\n2  –\n3 █▎ 25 %"
        assert "no draft" in curve([], 10).plain and "no rounds" in histogram([], 10).plain

    @given(st.lists(st.integers(0, 1000), min_size=1, max_size=17), st.integers(10, 60))
    def test_a_histogram_is_never_wider_than_asked(self, counts: list[int], width: int) -> None:
        assert all(len(line) <= width for line in histogram(counts, width).plain.split("\n"))

    @given(st.lists(st.integers(0, 30), min_size=4, max_size=4), st.integers(1, 60))
    def test_a_memory_bar_has_its_width_and_shows_every_part(self, sizes: list[int], width: int) -> None:
        parts = [
            MemoryPart(name, size, "", fill) for name, size, fill in zip("tdkb", sizes, "█▓▒░", strict=True)
        ]
        drawn = memory_bar(parts, 100, width).plain
        assert len(drawn) == width
        if width >= 40:
            assert all(part.fill in drawn for part in parts if part.size_bytes)

    def test_memory_is_summed_into_the_terms_a_person_thinks_in(self) -> None:
        (use,) = device_uses(RICH_INFO)
        assert (use.label, use.target, use.draft, use.kv, use.buffers) == (
            "VRAM",
            14 * GIB,
            GIB,
            2 * GIB,
            GIB // 2,
        )
        assert (use.used, use.free, use.total) == (17 * GIB + GIB // 2, 6 * GIB, 24 * GIB)


class TestEnding:
    def test_a_note_has_every_number_with_its_denominator(self) -> None:
        done = Done("length", summary(100, drafted=90, accepted=60, rounds=40))
        assert note_of(done, SpeedUp(2.1, 20.0, 42.0, 0.0)) == (
            "cut at max_tokens, /continue goes on · 100 tokens · 250.0 tok/s · 2.1× plain · "
            "67 % of 90 tested drafts · 110 ms to the first token"
        )

    def test_a_pause_is_noted(self) -> None:
        done = Done("stop", replace(summary(100), paused_at_token=64))
        assert " · paused after 64 · " in note_of(done, None)

    def test_one_is_no_plural_and_a_short_wait_has_milliseconds(self) -> None:
        one = replace(summary(1, drafted=1, accepted=1), first_token_s=0.0184)
        assert note_of(Done("stop", one), None) == (
            "1 token · 100.0 tok/s · 100 % of 1 tested draft · 18 ms to the first token"
        )
        slow = replace(one, first_token_s=1.25)
        assert note_of(Done("stop", slow), None).endswith("1.2 s to the first token")

    def test_a_reply_without_drafts_claims_no_speed_up(self) -> None:
        assert "plain" not in note_of(Done("stop", summary(10)), SpeedUp(2.1, 20.0, 42.0, 0.0))
        assert note_of(Done("error", summary(0), "it broke"), None).startswith("it broke · 0 tokens")


class TestClipboard:
    def test_both_ways_are_tried(self, tmp_path: Path) -> None:
        taken = tmp_path / "taken"
        tool = tmp_path / "pbcopy"
        tool.write_text(f"#!/bin/sh\ncat > {taken}\n")
        tool.chmod(0o755)

        class App:
            text = ""

            def copy_to_clipboard(self, text: str) -> None:
                self.text = text

        app = App()
        copy(app, "ünïcode\n", environ={}, which=lambda name: str(tool) if name == "pbcopy" else None)
        assert app.text == taken.read_text() == "ünïcode\n"

    def test_a_program_that_fails_is_no_error(self) -> None:
        class App:
            def copy_to_clipboard(self, text: str) -> None: ...

        copy(App(), "x", environ={}, which=lambda name: "/no/such/program")

    def test_the_program_fits_the_desktop(self) -> None:
        def everything(name: str) -> str | None:
            return None if name in ("pbcopy", "clip.exe") else name

        assert system_command({}, everything) is None
        assert system_command({"WAYLAND_DISPLAY": "w"}, everything) == ["wl-copy"]
        assert system_command({"DISPLAY": ":0"}, everything) == ["xclip", "-selection", "clipboard"]
        assert system_command({"DISPLAY": ":0", "SSH_CONNECTION": "a b"}, everything) is None


class TestEditor:
    def test_the_saved_text_comes_back(self, tmp_path: Path) -> None:
        script = tmp_path / "editor"
        script.write_text('#!/bin/sh\nprintf "%s edited\\n" "$(cat "$1")" > "$1"\n')
        script.chmod(0o755)
        assert edit_text("draft", environ={"EDITOR": str(script)}) == "draft edited"

    def test_a_failing_or_missing_editor_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="`false` ended with exit code 1"):
            edit_text("x", environ={"VISUAL": "false"})
        with pytest.raises(UsageError, match="cannot be started"):
            edit_text("x", environ={"EDITOR": str(tmp_path / "none")})
