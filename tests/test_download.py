"""Downloads of pairs and split files: what is fetched, what it takes of the disk, how it is stopped."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import pytest

from localspec.download import (
    Checking,
    Finished,
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
from localspec.download.part import Part
from localspec.download.transfer import Meter
from localspec.errors import LocalspecError, OutsideError, UsageError
from tests.kit import downloads
from tests.kit.downloads import DATA, FILE, SIZE, UNIT, fails, final, notices, run, starts
from tests.kit.fakehub import FakeHub, Fault, gguf

fake, models = downloads.fake, downloads.models


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

    def test_the_part_that_gets_loaded_is_named_last(
        self, fake: FakeHub, models: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        contents, real, finished = self.push(fake), Part.finish, 0

        def finish_two(part: Part) -> None:
            nonlocal finished
            finished += 1
            if finished > 2:
                raise KeyboardInterrupt
            real(part)

        unit = Unit("split", (RemoteFile("o/r", self.NAMES[0]),))
        monkeypatch.setattr(Part, "finish", finish_two)
        with pytest.raises(KeyboardInterrupt):
            run(models, unit)
        assert sorted(path.name for path in models.rglob("*.gguf")) == [name[4:] for name in self.NAMES[1:]]
        assert installed(unit, models) is None
        monkeypatch.setattr(Part, "finish", real)
        fake.seen.clear()
        run(models, unit)
        assert not fake.requests("cdn"), "all bytes were here"
        assert [(models / "o/r" / name).read_bytes() for name in self.NAMES] == contents

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


def test_meter_looks_at_the_last_seconds_only() -> None:
    now = 0.0
    meter = Meter(clock=lambda: now)
    assert meter.rate(0) == 0.0
    for now in range(1, 21):
        rate = meter.rate(100 * now if now <= 10 else 1000 + 10 * (now - 10))
    assert rate == pytest.approx(10)
    now = 21.0
    assert meter.rate(0) == 0.0, "a restart begins a new measurement"
