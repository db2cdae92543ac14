"""What `bench --tune` stored is where `auto` starts: for just that pair, told, overridable, forgettable."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localspec import cli
from localspec.api.assemble import Choice
from localspec.bench.tune import Tuned, forget, keep
from localspec.engine.adapt import Start
from localspec.engine.events import Event, Notice, Round
from localspec.engine.pausing import FIRST_PROBE
from localspec.engine.settings import LoadSettings, Request, SamplingSettings, SpeculationSettings
from localspec.interfaces import Companion, PairFiles, SessionInfo, TunedSetting
from localspec.locations import locations
from localspec.measuring import Spread
from localspec.plain import run_record
from localspec.session import Session, open_session
from localspec.tui.status import spec_state
from localspec.worker import WorkerSession
from tests.kit.ggufs import syn
from tests.kit.scripted import INFO

LOAD = LoadSettings(n_ctx=512, threads=1)
DRAFT_3 = SpeculationSettings(method="draft", k=3)


@pytest.fixture
def files(tmp_path: Path) -> PairFiles:
    draft = tmp_path / "near.gguf"
    shutil.copyfile(syn("syn-near"), draft)
    return PairFiles("pair", syn("syn"), (Companion("draft", draft),))


def store(files: PairFiles, speculation: SpeculationSettings, load: LoadSettings = LOAD) -> None:
    session = open_session(files, load)
    keep(files, session.info, Tuned(speculation, Spread(1.42, 1.3, 1.55), ()))
    session.close()


class Opened:
    """A loaded pair and what its load said."""

    def __init__(self, files: PairFiles, load: LoadSettings = LOAD) -> None:
        self.said: list[Event] = []
        self.session: Session = open_session(files, load, self.said.append)

    @property
    def told(self) -> list[str]:
        return [e.reason for e in self.said if isinstance(e, Notice) and "auto" in e.reason]

    def events(self, speculation: SpeculationSettings, tokens: int = 24) -> list[Event]:
        request = Request(
            prompt="hello", sampling=SamplingSettings(temperature=0.0), speculation=speculation,
            max_tokens=tokens, ignore_eog=True,
        )  # fmt: skip
        return list(self.session.reply(request))

    def drafted(self, speculation: SpeculationSettings) -> list[tuple[str, int]]:
        rounds = [e for e in self.events(speculation) if isinstance(e, Round)]
        return [(r.method, r.drafted) for r in rounds][:4]

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()


AUTO = SpeculationSettings()


def test_auto_starts_from_the_winner_and_says_so(files: PairFiles) -> None:
    with Opened(files) as fresh:
        assert fresh.session.info.tuned is None and not fresh.told
        assert not locations().measurements_db.exists(), "reading makes no database"
    store(files, DRAFT_3)
    with Opened(files) as opened:
        assert opened.drafted(AUTO) == [("draft", 3)] * 4
        (told,) = opened.told
        assert "draft k=3: 1.42× (1.30–1.55), tuned 20" in told and "unless `--no-tuned`" in told


@pytest.mark.parametrize(
    "asked",
    [
        SpeculationSettings(method="ngram"),
        SpeculationSettings(k=5),
        SpeculationSettings(method="off"),
    ],
)
def test_a_wish_of_ones_own_overrides_it(files: PairFiles, asked: SpeculationSettings) -> None:
    with Opened(files) as fresh:
        before = fresh.drafted(asked)
    store(files, DRAFT_3)
    with Opened(files) as opened:
        assert opened.drafted(asked) == before
        assert opened.session.info.start_of(asked) is None


def test_no_tuned_starts_afresh(files: PairFiles) -> None:
    store(files, DRAFT_3)
    with Opened(files) as opened:
        for asked in (AUTO, SpeculationSettings(tuned=False)):
            opened.events(asked, tokens=2)
        (place,) = opened.session._places.values()
        starts = [policy._start for policy in place.policies.values()]
        assert starts == [Start("draft", 3), None]


def test_another_file_build_or_cache_type_is_another_pair(
    files: PairFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(files, DRAFT_3)
    with Opened(files, replace(LOAD, kv=("f32", "f32"))) as other:
        assert other.session.info.tuned is None
    with monkeypatch.context() as patch:
        patch.setattr("localspec.session.session.build_description", lambda: "another build")
        with Opened(files) as rebuilt:
            assert rebuilt.session.info.tuned is None and not rebuilt.told
    path = files.companions[0].path
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with Opened(files) as retrained:
        assert retrained.session.info.tuned is None, "same name and size, other weights"


def test_off_as_the_winner_starts_paused(files: PairFiles) -> None:
    store(files, SpeculationSettings(method="off"))
    with Opened(files) as opened:
        events = opened.events(AUTO, tokens=FIRST_PROBE)
        assert not any(e.drafted for e in events if isinstance(e, Round))
        assert [e.reason for e in events if isinstance(e, Notice) and e.kind == "paused"] == [
            "plain decoding was the fastest here when this pair was tuned"
        ]
        assert str(spec_state(opened.session.info, AUTO)) == "spec paused: tuned"


def test_a_worker_knows_it_too(files: PairFiles) -> None:
    store(files, DRAFT_3)
    with WorkerSession(files, LOAD) as worker:
        tuned = worker.info.tuned
        assert tuned is not None and (tuned.method, tuned.k) == ("draft", 3)


def test_what_cannot_be_read_is_said_and_ignored(files: PairFiles) -> None:
    store(files, DRAFT_3)
    locations().measurements_db.write_bytes(b"no database at all, but long enough to be taken for one" * 100)
    with Opened(files) as opened:
        assert opened.session.info.tuned is None
        assert any(
            "`bench --tune` stored is not used" in e.reason for e in opened.said if isinstance(e, Notice)
        )


def test_commands_show_it_and_forget_it(
    files: PairFiles, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole life: stored, started from, planned with, forgotten, gone."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    pair = ["--target", str(files.target), "--draft", str(files.companions[0].path)]
    chat = ["chat", "--plain", *pair, "--ctx", "512", "--threads", "1", "--max-tokens", "8", "-p", "hello"]
    plan = ["plan", *pair, "--ctx", "512"]
    store(files, DRAFT_3)
    assert cli.run(chat) == 0
    told = capsys.readouterr().err
    assert "stored draft k=3: 1.42×" in told and "unless `--no-tuned`" in told
    assert cli.run([*chat, "--json"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (record["starts_from"]["method"], record["starts_from"]["k"]) == ("draft", 3)
    assert cli.run([*chat, "--json", "--no-tuned"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["starts_from"] is None
    assert cli.run(plan) == 0
    assert "auto      starts from draft k=3: 1.42×" in capsys.readouterr().out
    assert cli.run([*plan, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tuned"]["k"] == 3
    bench = ["bench", *pair, "--ctx", "512", "--threads", "1", "--max-tokens", "16", "--workload", "edit"]
    for options, started in (((), True), (("--no-tuned",), False), (("--method", "ngram"), False)):
        assert cli.run([*bench, *options, "--json"]) == 0
        assert ("starts_from" in json.loads(capsys.readouterr().out)) is started
    assert cli.run(["bench", *pair, "--forget", "--tune"]) == 2
    assert cli.run(["bench", *pair, "--tune", "--reference", "x {prompt}"]) == 2
    capsys.readouterr()
    assert cli.run(["bench", *pair, "--forget", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"pair": "syn", "forgotten": 1}
    assert cli.run(["bench", *pair, "--forget"]) == 0
    assert "forgot 0 tuned settings of `syn`" in capsys.readouterr().out
    assert cli.run(chat) == 0
    assert "starts from" not in capsys.readouterr().err


def test_forgetting_needs_no_database(files: PairFiles) -> None:
    assert forget(files) == 0 and not locations().measurements_db.exists()


@pytest.fixture
def info() -> Iterator[SessionInfo]:
    yield replace(INFO, tuned=TunedSetting("draft", 3, 0.4, 1.42, (1.3, 1.55), 1_764_547_200.0))


def test_screens_and_replies_name_it(info: SessionInfo) -> None:
    assert str(spec_state(info, AUTO)) == "spec on: tuned"
    assert str(spec_state(info, SpeculationSettings(method="ngram"))) == "spec on"
    assert info.tuned is not None and info.tuned.text.startswith("draft k=3, p-min 0.4: 1.42× (1.30–1.55)")
    assert run_record(info, Request())["starts_from"]["p_min"] == 0.4
    assert run_record(info, Request(speculation=DRAFT_3))["starts_from"] is None
    assert Choice(Request(), info)._tuned == info.tuned.text
