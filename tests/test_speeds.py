"""Speeds measured on this machine: kept after every reply, shown instead of what others published."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec import cli
from localspec.budget import host_device
from localspec.engine.events import Done, Event
from localspec.engine.settings import LoadSettings, Request, SpeculationSettings
from localspec.engine.stats import Summary
from localspec.errors import LocalspecError
from localspec.header import fingerprint
from localspec.interfaces import Companion, DeviceMemory, MemoryItem, PairFiles, SessionInfo
from localspec.planning import Machine, PairPlan, Recording, RecordingWorker, plan_pair, remember_rates
from localspec.planning.speeds import KEPT, METHODS, rates_of
from localspec.store.measurements import Measurements
from tests.kit.ggufs import syn
from tests.kit.scripted import INFO, ScriptedSession, summary, words_as_events

GIB = 1 << 30
HOST = host_device(64 * GIB, 64 * GIB)
AUTO = Request(speculation=SpeculationSettings())
OFF = Request(speculation=SpeculationSettings(method="off"))


def counted(tokens: int, seconds: float, *, plain: int = 0, plain_s: float = 0.0) -> Summary:
    return replace(summary(tokens), decode_s=seconds, plain_tokens=plain, plain_s=plain_s)


class TestRates:
    def test_a_reply_tells_its_rate_under_what_was_asked(self) -> None:
        assert rates_of(AUTO, counted(64, 2.0)) == {"auto": 32.0}
        fixed = Request(speculation=SpeculationSettings(method="draft", k=5))
        assert rates_of(fixed, counted(64, 2.0)) == {"draft k=5": 32.0}

    def test_without_drafts_it_is_the_plain_rate(self) -> None:
        none = Request(speculation=SpeculationSettings(k=0))
        assert rates_of(OFF, counted(64, 2.0)) == rates_of(none, counted(64, 2.0)) == {"plain": 32.0}

    def test_a_reply_mostly_decoded_plainly_tells_both(self) -> None:
        assert rates_of(AUTO, counted(100, 2.0, plain=60, plain_s=1.5)) == {"auto": 50.0, "plain": 40.0}
        assert "plain" not in rates_of(AUTO, counted(100, 2.0, plain=49, plain_s=1.0))
        assert "plain" not in rates_of(AUTO, counted(40, 2.0, plain=31, plain_s=1.0))

    def test_a_short_reply_tells_nothing(self) -> None:
        assert rates_of(AUTO, counted(31, 1.0)) == {}


def pair(draft: str | None = "syn-w") -> PairFiles:
    return PairFiles("tiny", syn("syn"), (Companion("draft", syn(draft)),) if draft else ())


def info(*, build: str = "b", memory: bool = True, **load: Any) -> SessionInfo:
    items = (MemoryItem("target weights", "CPU", 1),) if memory else ()
    return replace(INFO, effective=LoadSettings(n_ctx=512, threads=1, **load), memory=items, build=build)


def planned(store: Measurements | None, files: PairFiles | None = None, **question: Any) -> PairPlan:
    asked: dict[str, Any] = {"machine": Machine((HOST,), "b"), "load": LoadSettings(n_ctx=512)} | question
    return plan_pair(files or pair(), measurements=store, **asked)


class TestKept:
    def test_medians_of_both_kinds(self, home: Path) -> None:
        store = Measurements(None)
        for now, rates in enumerate([{"plain": 10.0}, {"auto": 14.0}, {"auto": 30.0}, {"auto": 16.0}]):
            remember_rates(pair(), info(), rates, store, now=lambda now=now: float(now))  # type: ignore[misc]
        speed = planned(store).speed
        assert speed is not None
        assert (speed.method, speed.spec_tps, speed.plain_tps, speed.replies) == ("auto", 16.0, 10.0, 3)
        assert (speed.low, speed.high, speed.measured_at, speed.speedup) == (14.0, 30.0, 3.0, 1.6)
        assert planned(store).speed_text == (
            "✓ 16 tok/s (14–30), 1.60× plain (10 tok/s), by auto, the last 3 replies on this machine"
        )

    def test_only_the_newest_replies_count(self, home: Path) -> None:
        store = Measurements(None)
        for rate in [1.0] * KEPT + [9.0] * KEPT:
            remember_rates(pair(), info(), {"auto": rate}, store)
        speed = planned(store).speed
        assert speed is not None and (speed.low, speed.replies) == (9.0, KEPT)

    def test_the_method_used_last_stands_for_a_pair_that_never_chose_itself(self, home: Path) -> None:
        store = Measurements(None)
        for now, method in enumerate(["draft k=5", "ngram"]):
            remember_rates(pair(), info(), {method: 5.0}, store, now=lambda now=now: float(now))  # type: ignore[misc]
        speed = planned(store).speed
        assert speed is not None and (speed.method, speed.plain_tps, speed.speedup) == ("ngram", None, None)

    def test_a_search_over_many_settings_displaces_neither_auto_nor_plain(self, home: Path) -> None:
        store = Measurements(None)
        remember_rates(pair(), info(), {"auto": 8.0, "plain": 4.0}, store)
        for k in range(2 * METHODS):
            remember_rates(pair(), info(), {f"draft k={k}": 1.0}, store)
        speed = planned(store).speed
        assert speed is not None and (speed.method, speed.spec_tps, speed.plain_tps) == ("auto", 8.0, 4.0)
        ((_, value, _),) = store.items("speed")
        assert len(value["methods"]) == METHODS + 1

    def test_plain_alone_is_shown_as_such(self, home: Path) -> None:
        store = Measurements(None)
        remember_rates(pair(), info(), {"plain": 4.0}, store)
        assert planned(store).speed_text == "✓ 4.0 tok/s (4.0–4.0), by plain, the last reply on this machine"

    @pytest.mark.parametrize(
        "change",
        [{"load": LoadSettings(n_ctx=512, kv=("q8_0", "f16"))}, {"load": LoadSettings(n_ctx=512, threads=2)},
         {"load": LoadSettings(n_ctx=512, flash_attn="off")}, {"machine": Machine((HOST,), "another build")},
         {"budget": "24GB-card"}, {"draft": None}, {"draft": "syn-near"}],
        ids=["cache type", "threads", "attention", "build", "simulated", "no draft", "another draft"],
    )  # fmt: skip
    def test_it_holds_for_nothing_else(self, home: Path, change: dict[str, Any]) -> None:
        store = Measurements(None)
        remember_rates(pair(), info(), {"auto": 4.0}, store)
        assert planned(store).speed is not None
        files = pair(change.pop("draft")) if "draft" in change else pair()
        assert planned(store, files, **change).speed is None

    def test_another_placement_starts_over(self, home: Path) -> None:
        store = Measurements(None)
        remember_rates(pair(), info(), {"auto": 4.0}, store)
        remember_rates(pair(), info(gpu_layers=1), {"plain": 9.0}, store)
        assert planned(store).speed is None
        speed = planned(store, load=LoadSettings(n_ctx=512, gpu_layers=1)).speed
        assert speed is not None and (speed.spec_tps, speed.plain_tps) == (None, 9.0)

    def test_where_allocations_cannot_be_read_the_device_is_the_gpu_there_is(self, home: Path) -> None:
        devices = (DeviceMemory("Metal", "", "gpu", GIB, GIB), DeviceMemory("CPU", "", "cpu", GIB, GIB))
        store = Measurements(None)
        remember_rates(pair(), replace(info(memory=False), devices=devices), {"auto": 4.0}, store)
        ((key, _, _),) = store.items("speed")
        assert key.device == "Metal"


class TestFiles:
    def test_a_renamed_file_keeps_its_measurements(self, home: Path, tmp_path: Path) -> None:
        store = Measurements(None)
        remember_rates(pair(None), info(), {"auto": 4.0}, store)
        moved = tmp_path / "elsewhere" / "other-name.gguf"
        moved.parent.mkdir()
        shutil.copy(syn("syn"), moved)
        assert planned(store, PairFiles("renamed", moved)).speed is not None

    def test_another_file_of_that_name_and_size_does_not_get_them(self, home: Path, tmp_path: Path) -> None:
        file, store = tmp_path / "m.gguf", Measurements(None)
        content = bytearray(syn("syn").read_bytes())
        file.write_bytes(content)
        remember_rates(PairFiles("mine", file), info(), {"auto": 4.0}, store)
        content[-1] ^= 1
        file.write_bytes(content)
        assert planned(store, PairFiles("mine", file)).speed is None

    def test_samples_reach_over_the_whole_of_a_large_file(self, tmp_path: Path) -> None:
        file = tmp_path / "large.gguf"
        with file.open("wb") as out:
            out.truncate(1 << 30)  # sparse
        seen = {fingerprint(file)}
        for offset in (0, 1 << 29, (1 << 30) - 1):
            with file.open("r+b") as out:
                # over the distance of two samples
                out.seek(min(offset, (1 << 30) - 1))
                out.write(b"x" * min(40 << 20, (1 << 30) - offset))
            seen.add(fingerprint(file))
        assert len(seen) == 4

    def test_a_split_model_is_all_its_parts(self, tmp_path: Path) -> None:
        parts = [tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
        for part in parts:
            part.write_bytes(b"GGUF")
        before = fingerprint(parts[0])
        parts[1].write_bytes(b"GGUX")
        assert fingerprint(parts[0]) != before
        parts[1].unlink()
        with pytest.raises(LocalspecError, match="cannot read"):
            fingerprint(parts[0])


class TestRecording:
    def test_every_event_passes_and_the_rate_is_kept_at_the_end(self) -> None:
        kept: list[dict[str, float]] = []
        script: list[Event] = [*words_as_events("a b")[:-1], Done("length", counted(64, 2.0))]
        session = Recording(ScriptedSession([script]), kept.append)
        assert list(session.reply(AUTO)) == script and session.info.pair == "scripted"
        assert kept == [{"auto": 32.0}]

    def test_a_reply_that_failed_or_was_short_keeps_nothing(self) -> None:
        kept: list[dict[str, float]] = []
        scripts: list[list[Event]] = [
            [Done("error", counted(64, 2.0), "it broke")], [Done("stop", counted(3, 1.0))]
        ]  # fmt: skip
        session = Recording(ScriptedSession(scripts), kept.append)
        for _ in scripts:
            list(session.reply(AUTO))
        assert kept == []

    def test_a_worker_can_still_be_started_again(self) -> None:
        calls: list[str] = []

        class Worker(ScriptedSession):
            alive = True

            def restart(self) -> None:
                calls.append("restart")

        session = RecordingWorker(Worker([]), lambda rates: None)
        session.restart()
        assert session.alive and calls == ["restart"]

    def test_a_closed_store_is_a_sentence(self) -> None:
        store = Measurements(None)
        store.close()
        with pytest.raises(LocalspecError, match="the measurements cannot be read"):
            remember_rates(pair(), info(), {"auto": 1.0}, store)


@pytest.fixture
def run(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[str, str]]:
    def call(*argv: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        assert cli.run(argv) == 0
        out, err = capsys.readouterr()
        return out, err

    return call


LOAD = ("--ctx", "512", "--threads", "1")


class TestCommands:
    @pytest.fixture
    def files(self) -> tuple[str, ...]:
        return "--target", str(syn("syn")), "--draft", str(syn("syn-w"))

    def test_a_chat_a_plan_and_back(self, run: Any, files: tuple[str, ...]) -> None:
        before = json.loads(run("plan", *files, *LOAD[:2], "--json")[0])
        assert before["measured_speed"] is None
        reply = ("chat", "--plain", *files, *LOAD, "-p", "hi", "--max-tokens", "64", "--ignore-eos")
        run(*reply)
        run(*reply, "--method", "off")
        speed = json.loads(run("plan", *files, *LOAD[:2], "--json")[0])["measured_speed"]
        assert speed["method"] == "auto" and speed["replies"] == 1
        assert speed["spec_tps"] > 0 and speed["plain_tps"] > 0
        out, _ = run("plan", *files, *LOAD[:2])
        assert "speed     ✓ " in out and "on this machine" in out

    def test_a_benchmark_is_kept_too(self, run: Any, files: tuple[str, ...]) -> None:
        run("bench", *files, *LOAD, "--workload", "edit", "--max-tokens", "40", "--method", "ngram")
        speed = json.loads(run("plan", *files, *LOAD[:2], "--json")[0])["measured_speed"]
        assert speed["method"] == "ngram" and speed["plain_tps"] > 0 and speed["replies"] >= 3
