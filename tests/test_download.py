"""Downloads against a hub and a CDN that misbehave, through the real hub client."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from localspec.download import (
    Checking,
    Event,
    Finished,
    Notice,
    Policy,
    Progress,
    Pull,
    RemoteFile,
    Retrying,
    Started,
    Stopped,
    Unit,
    Verified,
    installed,
    pull,
)
from localspec.download.part import CHUNK
from localspec.download.transfer import Meter
from localspec.errors import (
    LocalspecError,
    ModelFileError,
    OutsideError,
    PermissionDeniedError,
    UsageError,
)
from tests.kit.fakehub import GOOD_TOKEN, STRANGER_TOKEN, FakeHub, Fault, gguf

SIZE = 3_000_000
DATA = gguf(SIZE)
QUICK = Policy(stall_s=10, attempts=3, backoff_s=0.01)
FILE = RemoteFile("o/r", "a.gguf")
UNIT = Unit("pair", (FILE,))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        for name, value in fake.environment(tmp_path / "hf").items():
            monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def final(models: Path) -> Path:
    return models / "o" / "r" / "a.gguf"


def run(models: Path, unit: Unit = UNIT, policy: Policy = QUICK, **options: Any) -> list[Event]:
    return list(pull([unit], models, policy=policy, **options))


def fails(models: Path, unit: Unit = UNIT, **options: Any) -> LocalspecError:
    """The error of a pull that must not leave anything under a final name."""
    with pytest.raises(LocalspecError) as caught:
        run(models, unit, **options)
    assert installed(unit, models) is None
    assert not [path for path in models.rglob("*.gguf") if path.is_file()]
    return caught.value


def notices(events: list[Event], kind: str = "restart") -> list[str]:
    return [event.text for event in events if isinstance(event, Notice) and event.kind == kind]


def interrupted(fake: FakeHub, models: Path, at: int) -> None:
    """A download that broke after `at` bytes and was given up."""
    fake.inject(Fault("cut", at=at))
    assert isinstance(fails(models, policy=Policy(attempts=1)), OutsideError)
    fake.seen.clear()


def starts(fake: FakeHub) -> list[int]:
    """Offset of each CDN answer that sent bytes."""
    return [seen.start for seen in fake.requests("cdn") if seen.sent]


class TestRight:
    def test_a_pair_is_fetched_as_one_unit(self, fake: FakeHub, models: Path) -> None:
        target, draft = gguf(SIZE), gguf(400_000, seed=2)
        fake.push("big/target", {"q/t.gguf": target})
        fake.push("small/draft", {"d.gguf": draft})
        unit = Unit("pair", (RemoteFile("big/target", "q/t.gguf"), RemoteFile("small/draft", "d.gguf")))
        events = run(models, unit)
        paths = (models / "big/target/q/t.gguf", models / "small/draft/d.gguf")
        assert [path.read_bytes() for path in paths] == [target, draft]
        assert events[0] == Started(unit) and events[-1] == Finished(unit, paths)
        assert [event.path for event in events if isinstance(event, Verified)] == list(paths)
        assert installed(unit, models) == paths
        leftovers = [path.name for path in models.rglob("*") if path.suffix in (".part", ".lock", ".tmp")]
        assert not leftovers and not list((models / ".localspec" / "queue").iterdir())

    def test_progress_is_monotone_and_ends_full(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.rate_bps = 6e6
        progress = [event for event in run(models) if isinstance(event, Progress)]
        done = [event.done for event in progress]
        assert len(done) >= 4 and done == sorted(done)
        assert done[-1] == SIZE == progress[0].total
        assert 1e5 < progress[-1].rate_bps < 12e6
        assert progress[-1].eta_s == 0.0
        assert progress[0].eta_s is None, "no rate is known yet"

    def test_what_is_verified_causes_no_request(self, fake: FakeHub, models: Path) -> None:
        """Known fault 97: the network is needed although everything is here."""
        fake.push("o/r", {"a.gguf": DATA})
        run(models)
        fake.seen.clear()
        assert run(models) == [Started(UNIT), Verified(FILE, final(models)), Finished(UNIT, (final(models),))]
        assert not fake.seen

    def test_verified_files_survive_a_move_of_the_folder(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        run(models)
        moved = models.rename(models.with_name("moved"))
        assert installed(UNIT, moved) == (final(moved),)

    def test_a_changed_file_is_not_taken_for_verified(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        run(models)
        final(models).write_bytes(gguf(SIZE, seed=9))
        assert installed(UNIT, models) is None
        events = run(models)
        assert "does not have its SHA-256" in notices(events, "info")[0]
        assert final(models).read_bytes() == DATA

    def test_a_touched_file_is_hashed_and_kept(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        run(models)
        final(models).touch()
        fake.seen.clear()
        events = run(models)
        assert any(isinstance(event, Checking) for event in events)
        assert not fake.requests("cdn") and installed(UNIT, models)

    def test_an_empty_unit_member_twice_is_fetched_once(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        events = run(models, Unit("self", (FILE, FILE)))
        assert events[-1] == Finished(Unit("self", (FILE, FILE)), (final(models),) * 2)
        assert len(starts(fake)) == 1

    def test_a_file_outside_lfs_is_checked_by_size_and_says_so(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"vocab.json": b"{}" * 50})
        unit = Unit("pair", (RemoteFile("o/r", "vocab.json"),))
        assert "lists no SHA-256" in notices(run(models, unit), "info")[0]
        assert (models / "o/r/vocab.json").read_bytes() == b"{}" * 50

    def test_importing_loads_neither_hub_client_nor_http_client(self) -> None:
        heavy = {"huggingface_hub", "httpx2", "numpy"}
        code = f"import localspec.download, sys; sys.exit(bool({heavy} & {{*sys.modules}}))"
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0


class TestResume:
    def test_a_second_run_goes_on_where_the_first_was_cut(self, fake: FakeHub, models: Path) -> None:
        """Known fault 90: a broken download restarts at 0."""
        fake.push("o/r", {"a.gguf": DATA})
        cut = SIZE * 40 // 100
        interrupted(fake, models, cut)
        note = json.loads((models / "o/r/a.gguf.part.json").read_text())
        assert set(note) == {"repo", "path", "commit", "size", "sha256", "url", "etag", "done"}
        assert "Signature" not in note["url"], "a signed link is a key: it is not kept"
        events = run(models)
        assert starts(fake) == [cut]
        assert fake.requests("cdn")[0].headers["if-range"] == note["etag"]
        assert final(models).read_bytes() == DATA
        assert not notices(events)
        assert any(isinstance(event, Checking) and event.done == cut for event in events)

    def test_cuts_are_retried_within_a_run(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(*[Fault("cut", at=500_000)] * 5)
        events = run(models)  # more cuts than attempts: each brought bytes
        assert starts(fake) == [500_000 * n for n in range(6)]
        assert sum(isinstance(event, Retrying) for event in events) == 5
        assert final(models).read_bytes() == DATA

    def test_a_stall_is_given_up_and_retried(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("stall", at=1_000_000))
        began = time.monotonic()
        events = run(models, policy=Policy(stall_s=0.5, backoff_s=0.01))
        (retry,) = [event for event in events if isinstance(event, Retrying)]
        assert "sent nothing for 0.5 s" in retry.reason
        assert 0.5 < time.monotonic() - began < 10
        assert starts(fake) == [0, 1_000_000]

    def test_an_expired_link_is_resolved_again_once(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("expire", at=1_000_000))
        run(models)
        assert [seen.status for seen in fake.requests("cdn")] == [200, 403, 206]
        assert len(fake.requests("hub", "HEAD")) == 2
        assert final(models).read_bytes() == DATA

    @pytest.mark.parametrize("status", [401, 403, 404])
    def test_a_fresh_link_that_is_refused_too_ends_it(self, fake: FakeHub, models: Path, status: int) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("status", status=status, times=9))
        error = fails(models)
        assert isinstance(error, OutsideError) and "also with a fresh link" in error.message
        assert len(fake.requests("cdn")) == 2

    def test_a_server_that_ignores_ranges_costs_bytes_but_no_progress(
        self, fake: FakeHub, models: Path
    ) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_200_000)
        fake.inject(Fault("ignore_range"))
        events = run(models)
        done = [event.done for event in events if isinstance(event, Progress)]
        assert done[0] == 1_200_000 and done == sorted(done)
        assert starts(fake) == [0] and final(models).read_bytes() == DATA

    def test_a_changed_etag_restarts_and_says_so(self, fake: FakeHub, models: Path) -> None:
        """Known fault 95: a resume appends to another version of the file."""
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        fake.age_etags()
        events = run(models)
        assert "changed on the server" in notices(events)[0]
        assert starts(fake)[-1] == 0 and final(models).read_bytes() == DATA

    def test_etags_that_never_agree_cannot_make_it_endless(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(*[Fault("new_etag", at=700_000)] * 20)
        events = run(models)
        assert len(notices(events)) == 1, "after one change the digest alone decides"
        assert final(models).read_bytes() == DATA

    def test_if_range_is_only_sent_to_the_server_the_etag_came_from(
        self, fake: FakeHub, models: Path
    ) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        note = models / "o/r/a.gguf.part.json"
        note.write_text(note.read_text().replace(fake.cdn, "http://other.example"))
        assert not notices(run(models))
        (request,) = fake.requests("cdn")
        assert request.start == 1_000_000 and "if-range" not in request.headers

    def test_a_new_version_on_the_hub_restarts_and_says_so(self, fake: FakeHub, models: Path) -> None:
        """Known fault 95: the repository moved on between two runs."""
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        newer = gguf(SIZE, seed=7)
        fake.push("o/r", {"a.gguf": newer})
        assert "another version on the hub" in notices(run(models))[0]
        assert starts(fake) == [0] and final(models).read_bytes() == newer

    def test_a_new_commit_with_the_same_content_goes_on(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        fake.push("o/r", {"a.gguf": DATA, "README.md": b"new words"})
        assert not notices(run(models))
        assert starts(fake) == [1_000_000]

    def test_the_commit_is_pinned_while_it_lasts(self, fake: FakeHub, models: Path) -> None:
        commit = fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("expire", at=1_000_000))
        for event in pull([UNIT], models, policy=QUICK):
            if isinstance(event, Progress) and event.done == 0:
                fake.push("o/r", {"a.gguf": gguf(SIZE, seed=7)})
        assert final(models).read_bytes() == DATA
        assert all(f"/resolve/{commit}/" in seen.path for seen in fake.requests("hub", "HEAD"))

    @pytest.mark.parametrize("what", ["no note", "broken note", "another repo", "far too long", "too short"])
    def test_a_part_of_unknown_origin_is_not_continued(self, fake: FakeHub, models: Path, what: str) -> None:
        """Known fault 103: a half-written or foreign partial is reused."""
        fake.push("o/r", {"a.gguf": DATA})
        fake.push("other/repo", {"a.gguf": gguf(SIZE, seed=5)})
        interrupted(fake, models, 1_000_000)
        part, note = models / "o/r/a.gguf.part", models / "o/r/a.gguf.part.json"
        facts = json.loads(note.read_text())
        if what == "no note":
            note.unlink()
        elif what == "broken note":
            note.write_text("{")
        elif what == "another repo":
            note.write_text(json.dumps({**facts, "repo": "other/repo", "sha256": "0" * 64}))
        elif what == "far too long":
            part.write_bytes(part.read_bytes() + bytes(CHUNK + 1))
        else:
            part.write_bytes(part.read_bytes()[:400_000])
        events = run(models)
        expected = {"far too long": 1_000_000, "too short": 400_000}.get(what, 0)
        assert starts(fake) == [expected]
        assert bool(notices(events)) == (expected == 0)
        assert final(models).read_bytes() == DATA

    def test_416_means_another_file_and_restarts(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        fake.inject(Fault("status", status=416))
        assert "shorter on the server" in notices(run(models))[0]
        assert final(models).read_bytes() == DATA

    def test_a_server_that_never_resumes_cannot_make_it_endless(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(*[Fault("cut", at=1_000_000), Fault("status", status=416)] * 9)
        assert "again and again" in fails(models).message
        assert len(starts(fake)) == 3

    def test_a_complete_part_needs_no_byte_more(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, SIZE - 1)
        part, note = models / "o/r/a.gguf.part", models / "o/r/a.gguf.part.json"
        part.write_bytes(DATA)
        note.write_text(json.dumps({**json.loads(note.read_text()), "done": SIZE}))
        run(models)
        assert not fake.requests("cdn") and final(models).read_bytes() == DATA


class TestWrongBytes:
    def test_a_flipped_byte_is_fetched_again_once(self, fake: FakeHub, models: Path) -> None:
        """Known fault 91: success is reported for a wrong hash."""
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("flip", at=1_234_567))
        assert "wrong SHA-256" in notices(run(models))[0]
        assert final(models).read_bytes() == DATA

    def test_wrong_twice_is_an_error_that_tells_where(self, fake: FakeHub, models: Path) -> None:
        """Known faults 91 and 99: no final file, and the first bad range when it is known."""
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("flip", at=10), Fault("flip", at=2_000_000))
        error = fails(models)
        assert isinstance(error, ModelFileError) and f"bytes 0–{CHUNK}" in error.message
        assert not list(models.rglob("*.part"))

    def test_wrong_twice_in_the_same_way_blames_the_server(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(*[Fault("flip", at=10)] * 2)
        assert "both downloads are the same" in fails(models).message

    def test_a_corrupted_part_heals_itself(self, fake: FakeHub, models: Path) -> None:
        """Known fault 99: digest mismatch after a resume, for ever."""
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        part = models / "o/r/a.gguf.part"
        kept = bytearray(part.read_bytes())
        kept[500_000] ^= 1
        part.write_bytes(kept)
        events = run(models)
        assert starts(fake) == [1_000_000, 0]
        assert len(notices(events)) == 1 and final(models).read_bytes() == DATA

    def test_a_pointer_file_is_refused(self, fake: FakeHub, models: Path) -> None:
        """Known fault 93: the LFS pointer instead of the weights."""
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("pointer", times=9))
        assert "Git LFS pointer" in fails(models).message

    @pytest.mark.parametrize("gated", [False, "manual"])
    def test_a_web_page_is_refused_and_gating_explained(
        self, fake: FakeHub, models: Path, monkeypatch: pytest.MonkeyPatch, gated: bool | str
    ) -> None:
        """Known fault 94: an HTML page is saved as a model."""
        monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
        fake.push("o/r", {"a.gguf": DATA}, gated=gated)
        fake.inject(Fault("html", times=9))
        error = fails(models)
        assert "web page" in error.message
        assert isinstance(error, PermissionDeniedError if gated else OutsideError)
        assert not gated or "accept its terms" in (error.hint or "")

    def test_content_that_is_no_gguf_is_refused_before_it_is_stored(
        self, fake: FakeHub, models: Path
    ) -> None:
        fake.push("o/r", {"a.gguf": b"PK\3\4" + bytes(2_000_000)})
        error = fails(models)
        assert isinstance(error, ModelFileError) and "`o/r/a.gguf` is not a GGUF file" in error.message
        assert [path.stat().st_size for path in models.rglob("*.part")] in ([], [0])

    def test_a_short_body_is_continued(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        interrupted(fake, models, 1_000_000)
        fake.inject(Fault("short", at=1_500_000))
        run(models)
        assert starts(fake) == [1_000_000, 1_500_000] and final(models).read_bytes() == DATA

    def test_a_file_of_another_size_is_refused(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("short", at=1, times=9))
        assert f"{SIZE - 1} bytes where the hub lists {SIZE}" in fails(models).message


class TestServersAndNetwork:
    @pytest.mark.parametrize("host", ["hub", "cdn"])
    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_passing_failures_are_retried(self, fake: FakeHub, models: Path, host: Any, status: int) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("status", status=status, times=2, host=host))
        retries = [event for event in run(models) if isinstance(event, Retrying)]
        assert len(retries) == 2 and all(str(status) in retry.reason for retry in retries)
        assert retries[0].in_s < retries[1].in_s
        assert final(models).read_bytes() == DATA

    def test_retry_after_is_obeyed(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("status", status=429, retry_after=1))
        began = time.monotonic()
        (retry,) = [event for event in run(models) if isinstance(event, Retrying)]
        assert retry.in_s == 1.0 and time.monotonic() - began >= 1.0

    def test_patience_ends_with_an_outside_error(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("status", status=503, times=99))
        error = fails(models)
        assert error.exit_code == 3 and "503" in error.message
        assert len(fake.requests("cdn")) == QUICK.attempts

    def test_without_network_and_files_the_next_step_is_named(
        self, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
        error = fails(models)
        assert error.exit_code == 3 and "cannot reach" in error.message and error.hint

    def test_forbidden_network_fails_at_once(
        self, fake: FakeHub, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        error = fails(models)
        assert error.exit_code == 3 and "HF_HUB_OFFLINE" in error.message
        assert not fake.seen

    def test_gated_missing_token_and_no_access_are_three_messages(
        self, fake: FakeHub, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake.push("o/r", {"a.gguf": DATA}, gated="manual")
        messages = set()
        for token in ("", "hf_wrong", STRANGER_TOKEN):
            monkeypatch.setenv("HF_TOKEN", token)
            error = fails(models)
            assert isinstance(error, PermissionDeniedError) and error.exit_code == 5
            messages.add(error.message)
        assert len(messages) == 3
        monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
        run(models)
        assert final(models).read_bytes() == DATA

    def test_a_hub_that_serves_the_bytes_itself_gets_the_token(
        self, fake: FakeHub, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", GOOD_TOKEN)
        fake.push("o/r", {"a.gguf": DATA}, private=True)
        fake.redirects = False
        run(models)
        assert final(models).read_bytes() == DATA and not fake.requests("cdn")

    def test_an_unknown_file_is_a_usage_error(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        error = fails(models, Unit("pair", (RemoteFile("o/r", "b.gguf"),)))
        assert isinstance(error, UsageError) and "a.gguf" in (error.hint or "")

    def test_a_pin_that_the_hub_no_longer_meets_is_refused(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        error = fails(models, Unit("pair", (RemoteFile("o/r", "a.gguf", sha256="0" * 64),)))
        assert "not the pinned file" in error.message and not fake.requests("cdn")


class TestDisk:
    def test_too_little_space_is_said_before_the_first_byte(
        self, fake: FakeHub, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        usage = type(shutil.disk_usage("."))(10**9, 10**9 - 10**6, 10**6)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        error = fails(models)
        assert type(error) is LocalspecError and error.exit_code == 1
        assert str(models) in error.message and "free 0.06 GiB" in (error.hint or "")
        assert not fake.requests("cdn") and not fake.requests("hub", "HEAD")

    def test_a_disk_that_fills_up_names_file_and_remedy_and_the_rest_resumes(
        self, fake: FakeHub, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        real, written = Path.open, 0

        class Filling:
            def __init__(self, file: IO[bytes]) -> None:
                self._file = file

            def write(self, block: bytes) -> None:
                nonlocal written
                written += len(block)
                if written > 2_000_000:
                    raise OSError(errno.ENOSPC, "No space left on device")
                self._file.write(block)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._file, name)

        def opened(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
            file = real(path, mode, *rest, **options)
            return Filling(file) if path.suffix == ".part" and mode in ("r+b", "x+b") else file

        monkeypatch.setattr(Path, "open", opened)
        error = fails(models)
        assert (
            error.exit_code == 1
            and "a.gguf.part" in error.message
            and "free some space" in (error.hint or "")
        )
        monkeypatch.setattr(Path, "open", real)
        fake.seen.clear()
        run(models)
        assert 0 < starts(fake)[0] <= 2_000_000 and final(models).read_bytes() == DATA

    def test_a_folder_that_cannot_be_made_is_named(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        models.write_bytes(b"a file where the folder should be")
        with pytest.raises(LocalspecError, match="cannot write") as caught:
            run(models)
        assert caught.value.exit_code == 1 and caught.value.hint


class TestStop:
    def test_cancel_from_another_thread_keeps_what_was_fetched(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("stall", at=1_200_000, seconds=30))
        running = pull([UNIT], models, policy=Policy(stall_s=30))
        events, began = [], 0.0
        for event in running:
            events.append(event)
            if isinstance(event, Progress) and event.done > 0:
                began = time.monotonic()
                threading.Thread(target=running.cancel).start()
        assert events[-1] == Stopped(UNIT) and time.monotonic() - began < 2
        fake.seen.clear()
        run(models)
        assert starts(fake) == [(models / "o/r/a.gguf").stat().st_size - fake.requests("cdn")[0].sent]
        assert final(models).read_bytes() == DATA

    def test_cancel_ends_a_wait_between_retries(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.inject(Fault("status", status=503, retry_after=60))
        running = pull([UNIT], models)
        for event in running:
            if isinstance(event, Retrying):
                began = time.monotonic()
                running.cancel()
        assert event == Stopped(UNIT) and time.monotonic() - began < 2

    def test_cancel_before_the_first_event(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        running = pull([UNIT, Unit("other", (FILE,))], models)
        running.cancel()
        assert list(running)[-1] == Stopped(UNIT)
        assert not fake.requests("cdn")

    def test_an_abandoned_iteration_leaves_no_lock(self, fake: FakeHub, models: Path) -> None:
        fake.push("o/r", {"a.gguf": DATA})
        fake.rate_bps = 3e6
        running: Pull = pull([UNIT], models)
        for event in running:
            if isinstance(event, Progress) and event.done:
                break
        running.close()
        assert not list(models.rglob("*.lock")) and list(models.rglob("*.part"))


class TestSplit:
    NAMES = tuple(f"big/m-0000{n}-of-00003.gguf" for n in (1, 2, 3))

    def push(self, fake: FakeHub) -> list[bytes]:
        contents = [gguf(900_000, seed=n) for n in range(3)]
        fake.push("o/r", dict(zip(self.NAMES, contents, strict=True)))
        return contents

    @pytest.mark.parametrize("named", NAMES)
    def test_any_part_stands_for_all_in_its_subfolder(self, fake: FakeHub, models: Path, named: str) -> None:
        """Known fault 102: parts of a split GGUF are missing or in a doubled path."""
        contents = self.push(fake)
        unit = Unit("split", (RemoteFile("o/r", named),))
        events = run(models, unit)
        paths = [models / "o/r" / name for name in self.NAMES]
        assert [path.read_bytes() for path in paths] == contents
        assert events[-1] == Finished(unit, (paths[0],)) and installed(unit, models) == (paths[0],)
        done = [event.done for event in events if isinstance(event, Progress)]
        assert done == sorted(done) and done[-1] == 2_700_000
        assert {event.total for event in events if isinstance(event, Progress)} == {2_700_000}

    def test_no_part_has_its_name_before_all_are_right(self, fake: FakeHub, models: Path) -> None:
        self.push(fake)
        fake.inject(Fault("status", status=503, times=99, path=fake.sha256(gguf(900_000, seed=2))))
        unit = Unit("split", (RemoteFile("o/r", self.NAMES[0]),))
        assert isinstance(fails(models, unit), OutsideError)
        fake.faults.clear()
        fake.seen.clear()
        run(models, unit)
        assert sum(seen.sent for seen in fake.requests("cdn")) == 900_000, "only the missing part"

    @pytest.mark.parametrize("lost", [0, 2])
    def test_only_a_lost_part_is_fetched_again(self, fake: FakeHub, models: Path, lost: int) -> None:
        contents = self.push(fake)
        unit = Unit("split", (RemoteFile("o/r", self.NAMES[0]),))
        run(models, unit)
        (models / "o/r" / self.NAMES[lost]).unlink()
        assert installed(unit, models) is None
        fake.seen.clear()
        done = [event.done for event in run(models, unit) if isinstance(event, Progress)]
        assert (done[0], done[-1]) == (1_800_000, 2_700_000)
        assert sum(seen.sent for seen in fake.requests("cdn")) == 900_000
        assert [(models / "o/r" / name).read_bytes() for name in self.NAMES] == contents

    def test_a_part_the_repository_lacks_is_named(self, fake: FakeHub, models: Path) -> None:
        contents = self.push(fake)
        fake.push("o/r", dict(zip(self.NAMES[:2], contents, strict=False)))
        error = fails(models, Unit("split", (RemoteFile("o/r", self.NAMES[0]),)))
        assert isinstance(error, UsageError) and self.NAMES[2] in error.message


class TestAnything:
    FAULTS = st.one_of(
        st.builds(Fault, st.just("cut"), at=st.integers(0, SIZE)),
        st.builds(Fault, st.just("expire"), at=st.integers(0, SIZE)),
        st.builds(Fault, st.just("flip"), at=st.integers(4, SIZE - 1)),
        st.builds(Fault, st.sampled_from(["ignore_range", "new_etag"])),
        st.builds(Fault, st.just("status"), status=st.sampled_from([403, 416, 429, 500, 503])),
    )

    @settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(faults=st.lists(FAULTS, max_size=6))
    @example(faults=[Fault("cut", at=7), Fault("ignore_range"), Fault("expire", at=1), Fault("flip", at=9)])
    def test_whatever_happens_the_bytes_are_right_or_there_are_none(
        self, fake: FakeHub, tmp_path: Path, faults: list[Fault]
    ) -> None:
        models = Path(tempfile.mkdtemp(dir=tmp_path))
        fake.push("o/r", {"a.gguf": DATA})
        fake.faults = [Fault(**vars(fault)) for fault in faults]
        events: list[Event] = []
        for _ in range(len(faults) + 2):  # each run may be ended by a fault; none may be lost for good
            try:
                for event in pull([UNIT], models, policy=QUICK):
                    assert final(models).exists() <= isinstance(event, Verified | Finished | Progress)
                    events.append(event)
                break
            except LocalspecError as error:
                assert error.exit_code in (1, 3)
                assert not final(models).exists()
                events.append(Notice("restart", "a new run"))
        assert final(models).read_bytes() == DATA
        done = 0
        for event in events:
            if isinstance(event, Notice) and event.kind == "restart":
                done = 0
            elif isinstance(event, Progress):
                assert done <= event.done <= SIZE
                done = event.done


def test_meter_looks_at_the_last_seconds_only() -> None:
    now = 0.0
    meter = Meter(clock=lambda: now)
    assert meter.rate(0) == 0.0
    for now in range(1, 21):
        rate = meter.rate(100 * now if now <= 10 else 1000 + 10 * (now - 10))
    assert rate == pytest.approx(10)
    now = 21.0
    assert meter.rate(0) == 0.0, "a restart begins a new measurement"
