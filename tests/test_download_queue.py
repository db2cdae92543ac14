"""The queue on disk, the record of verified files, copies used in place, and removal."""

from __future__ import annotations

import pickle
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import hub
from localspec.download import (
    Event,
    Failed,
    Finished,
    Library,
    Notice,
    Policy,
    Progress,
    Queue,
    RemoteFile,
    Started,
    Stopped,
    Unit,
    Verified,
    installed,
    pull,
    remove,
    run_queue,
    verify,
)
from localspec.download.lock import FileLock, lock_path
from localspec.errors import LocalspecError, ModelFileError, OutsideError, UsageError
from tests.kit import downloads
from tests.kit.fakehub import FakeHub, Fault, gguf

QUICK = Policy(stall_s=10, attempts=2, backoff_s=0.01)
fake, models = downloads.fake, downloads.models
TARGET, DRAFT = gguf(2_000_000), gguf(300_000, seed=2)
FILES = (RemoteFile("o/r", "t.gguf"), RemoteFile("o/d", "d.gguf"))
UNIT = Unit("big + small", FILES)


@pytest.fixture(autouse=True)
def pair(fake: FakeHub) -> None:
    """The pair is on the hub."""
    fake.push("o/r", {"t.gguf": TARGET})
    fake.push("o/d", {"d.gguf": DRAFT})


def run_until(events: Iterator[Event], kind: type[Event]) -> Event:
    return next(event for event in events if isinstance(event, kind))


class TestQueue:
    def test_entries_keep_their_order_and_survive_the_process(self, models: Path) -> None:
        names = ["b", "a/with:odd name", "ü"]
        for name in names:
            Queue(models).add(Unit(name, FILES))
            time.sleep(0.002)
        again = Queue(models)
        assert [entry.unit.name for entry in again.entries()] == names
        assert again.entries()[0].unit == Unit("b", FILES)
        again.add(Unit("b", FILES))
        assert [entry.unit.name for entry in again.entries()] == names, "its place is kept"

    def test_damaged_entries_are_passed_over(self, models: Path) -> None:
        queue = Queue(models)
        queue.add(UNIT)
        folder = models / ".localspec" / "queue"
        (folder / "x.json").write_text("{")
        (folder / "y.json").write_text('{"unit": {"name": "y", "files": [{"repo": "../x", "path": "p"}]}}')
        assert [entry.unit for entry in queue.entries()] == [UNIT]

    def test_an_unknown_name_is_a_usage_error(self, models: Path) -> None:
        Queue(models).add(UNIT)
        for change in (Queue(models).pause, Queue(models).resume, Queue(models).cancel):
            with pytest.raises(UsageError, match="unknown download `big`") as caught:
                change("big")
            assert "big + small" in (caught.value.hint or "")

    def test_the_queue_runs_until_it_is_empty_and_survives_a_failure(
        self, fake: FakeHub, models: Path
    ) -> None:
        queue = Queue(models)
        bad = Unit("bad", (RemoteFile("o/r", "none.gguf"),))
        queue.add(bad)
        queue.add(UNIT)
        events = list(run_queue(models, policy=QUICK))
        (failed,) = [event for event in events if isinstance(event, Failed)]
        assert failed.unit == bad and "none.gguf" in failed.error and failed.hint
        assert events[-1] == Finished(UNIT, installed(UNIT, models) or ())
        (entry,) = queue.entries()
        assert (entry.unit, entry.state, entry.error) == (bad, "failed", failed.error)
        queue.resume("bad")
        assert queue.entries()[0].state == "queued" and queue.entries()[0].error is None

    def test_pull_leaves_what_it_could_not_finish_in_the_queue(self, fake: FakeHub, models: Path) -> None:
        fake.inject(Fault("status", status=503, times=99))
        with pytest.raises(OutsideError):
            list(pull([UNIT, Unit("next", FILES[1:])], models, policy=QUICK))
        assert [(entry.unit.name, entry.state) for entry in Queue(models).entries()] == [
            ("big + small", "failed"),
            ("next", "queued"),
        ]

    def test_pause_stops_a_running_unit_and_only_that_one(self, fake: FakeHub, models: Path) -> None:
        fake.rate_bps = 1e6
        queue = Queue(models)
        queue.add(UNIT)
        queue.add(Unit("draft", FILES[1:]))
        running, events = run_queue(models, policy=QUICK), []
        for event in running:
            events.append(event)
            if isinstance(event, Progress) and event.done and event.file == FILES[0]:
                queue.pause(UNIT.name)  # as another process would: through the disk
        assert Stopped(UNIT) in events and events[-1] == Finished(
            Unit("draft", FILES[1:]), (models / "o/d/d.gguf",)
        )
        (entry,) = queue.entries()
        assert entry.state == "paused" and 0 < queue.fetched_bytes(UNIT) - len(DRAFT) < len(TARGET)
        fake.rate_bps = None
        queue.resume(UNIT.name)
        assert list(run_queue(models, policy=QUICK))[-1] == Finished(UNIT, installed(UNIT, models) or ())

    def test_cancel_while_it_runs_removes_what_was_fetched(self, fake: FakeHub, models: Path) -> None:
        fake.rate_bps = 1e6
        queue = Queue(models)
        queue.add(UNIT)
        events: list[Event] = []
        for event in run_queue(models, policy=QUICK):
            events.append(event)
            if isinstance(event, Progress) and event.done:
                queue.cancel(UNIT.name) if queue.get(UNIT.name) else None
        assert events[-1] == Stopped(UNIT) and not queue.entries()
        assert not [path for path in models.rglob("*") if path.is_file()]

    def test_cancel_spares_the_part_another_entry_wants(self, fake: FakeHub, models: Path) -> None:
        fake.inject(*[Fault("cut", at=100_000, path=fake.sha256(content)) for content in (TARGET, DRAFT)])
        for unit in (UNIT, Unit("draft", FILES[1:])):
            with pytest.raises(OutsideError):
                list(pull([unit], models, policy=Policy(attempts=1)))
        assert len(list(models.rglob("*.part"))) == 2
        Queue(models).cancel(UNIT.name)
        assert [path.name for path in models.rglob("*.part")] == ["d.gguf.part"]

    def test_a_unit_that_another_process_completes_is_finished_not_stopped(
        self, fake: FakeHub, models: Path
    ) -> None:
        lock = FileLock(lock_path(FILES[0], models))
        assert lock.try_acquire() is None
        running = pull([UNIT], models, policy=QUICK)
        events = [next(running)]

        def complete() -> None:
            time.sleep(0.3)
            lock.release()
            list(pull([UNIT], models, policy=QUICK))

        other = threading.Thread(target=complete)
        other.start()
        events += running
        other.join()
        assert events[-1] == Finished(UNIT, installed(UNIT, models) or ())
        assert not Queue(models).entries()

    def test_without_waiting_a_busy_file_is_refused_by_name(self, fake: FakeHub, models: Path) -> None:
        lock = FileLock(lock_path(FILES[0], models))
        assert lock.try_acquire() is None
        with pytest.raises(LocalspecError, match=r"`o/r/t.gguf` is being downloaded by process \d+ on "):
            list(pull([UNIT], models, policy=QUICK, wait=False))
        lock.release()

    def test_events_pickle(self, fake: FakeHub, models: Path) -> None:
        for event in pull([UNIT], models, policy=QUICK):
            assert pickle.loads(pickle.dumps(event)) == event


class TestInPlace:
    def cached(self, fake: FakeHub, commit: str, *, right: bool = True) -> Path:
        """A file as the hub client leaves it in its cache."""
        root = hub.cache_dir() / "models--o--r"
        sha = fake.sha256(TARGET)
        for folder in ("blobs", "refs", f"snapshots/{commit}"):
            (root / folder).mkdir(parents=True)
        (root / "refs/main").write_text(commit)
        (root / "blobs" / sha).write_bytes(TARGET if right else TARGET[:-1] + b"x")
        link = root / "snapshots" / commit / "t.gguf"
        link.symlink_to(f"../../blobs/{sha}")
        return link

    unit = Unit("t", FILES[:1])

    def test_the_hub_clients_cache_is_used_without_a_request(self, fake: FakeHub, models: Path) -> None:
        link = self.cached(fake, "a" * 40)
        events = list(pull([self.unit], models, policy=QUICK))
        assert Verified(FILES[0], link) in events and events[-1] == Finished(self.unit, (link,))
        assert not fake.seen and not list(models.rglob("*.gguf"))
        assert installed(self.unit, models) == (link,)

    def test_a_real_client_download_is_recognised(self, fake: FakeHub, models: Path) -> None:
        from huggingface_hub import hf_hub_download

        path = hf_hub_download("o/r", "t.gguf", endpoint=fake.endpoint, cache_dir=hub.cache_dir())
        fake.seen.clear()
        assert list(pull([self.unit], models, policy=QUICK))[-1] == Finished(self.unit, (Path(path),))
        assert not fake.seen

    def test_a_rotten_copy_in_the_cache_is_not_used(self, fake: FakeHub, models: Path) -> None:
        self.cached(fake, "a" * 40, right=False)
        events = list(pull([self.unit], models, policy=QUICK))
        assert any(isinstance(event, Notice) and "not used" in event.text for event in events)
        assert (models / "o/r/t.gguf").read_bytes() == TARGET

    def test_a_pinned_commit_does_not_take_another_snapshot(self, fake: FakeHub, models: Path) -> None:
        self.cached(fake, "a" * 40, right=False)
        commit = hub.list_files("o/r").commit
        unit = Unit("t", (RemoteFile("o/r", "t.gguf", commit),))
        list(pull([unit], models, policy=QUICK))
        assert installed(unit, models) == (models / "o/r/t.gguf",)
        assert installed(Unit("t", (RemoteFile("o/r", "t.gguf", "b" * 40),)), models) is None

    @pytest.mark.parametrize("layout", ["o/r/t.gguf", "t.gguf", "o_r_t.gguf"])
    def test_folders_of_other_tools_are_used_in_place(
        self, fake: FakeHub, models: Path, tmp_path: Path, layout: str
    ) -> None:
        copy = tmp_path / "other" / layout
        copy.parent.mkdir(parents=True)
        copy.write_bytes(TARGET)
        events = list(pull([self.unit], models, policy=QUICK, extra_dirs=[tmp_path / "other"]))
        assert events[-1] == Finished(self.unit, (copy,))
        assert not fake.requests("cdn")
        assert installed(self.unit, models) == (copy,), "remembered without naming the folder again"

    def test_a_pinned_digest_needs_no_network_to_be_found(
        self, fake: FakeHub, models: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "t.gguf").write_bytes(TARGET)
        unit = Unit("t", (RemoteFile("o/r", "t.gguf", sha256=fake.sha256(TARGET)),))
        list(pull([unit], models, policy=QUICK, extra_dirs=[tmp_path / "other"]))
        assert installed(unit, models) and not fake.seen

    def test_a_split_set_in_place_must_be_complete(self, fake: FakeHub, models: Path, tmp_path: Path) -> None:
        names = [f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
        parts = dict(zip(names, (TARGET, DRAFT), strict=True))
        fake.push("o/s", parts)
        other = tmp_path / "other"
        other.mkdir()
        (other / names[0]).write_bytes(TARGET)
        unit = Unit("s", (RemoteFile("o/s", names[0]),))
        list(pull([unit], models, policy=QUICK, extra_dirs=[other]))
        assert installed(unit, models) == (models / "o/s" / names[0],)
        shutil.rmtree(models)
        (other / names[1]).write_bytes(DRAFT)
        assert list(pull([unit], models, policy=QUICK, extra_dirs=[other]))[-1] == Finished(
            unit, (other / names[0],)
        )


class TestRemove:
    def test_what_was_downloaded_goes_and_what_others_need_stays(self, fake: FakeHub, models: Path) -> None:
        list(pull([UNIT], models, policy=QUICK))
        assert remove(UNIT, models, keep=FILES[1:]) == (models / "o/r/t.gguf",)
        assert installed(UNIT, models) is None and installed(Unit("d", FILES[1:]), models)
        assert [record.path for record in Library(models).records()] == ["d.gguf"]
        assert remove(UNIT, models) == (models / "o/d/d.gguf",)
        assert not (models / "o").exists(), "no empty folders stay"
        assert remove(UNIT, models) == ()

    def test_files_in_place_are_only_forgotten(self, fake: FakeHub, models: Path, tmp_path: Path) -> None:
        copy = tmp_path / "other" / "t.gguf"
        copy.parent.mkdir()
        copy.write_bytes(TARGET)
        unit = Unit("t", FILES[:1])
        list(pull([unit], models, policy=QUICK, extra_dirs=[copy.parent]))
        assert remove(unit, models) == ()
        assert copy.is_file() and installed(unit, models) is None

    def test_a_running_download_is_not_removed(self, fake: FakeHub, models: Path) -> None:
        lock = FileLock(lock_path(FILES[0], models))
        assert lock.try_acquire() is None
        with pytest.raises(LocalspecError, match="is being downloaded"):
            remove(UNIT, models)
        lock.release()


class TestVerify:
    def test_right_wrong_and_no_gguf(self, fake: FakeHub, tmp_path: Path) -> None:
        path = tmp_path / "t.gguf"
        path.write_bytes(TARGET)
        verify(path, fake.sha256(TARGET))
        with pytest.raises(ModelFileError, match="does not have its SHA-256: expected 0000"):
            verify(path, "0" * 64)
        path.write_bytes(b"<html>")
        with pytest.raises(ModelFileError, match="is not a GGUF file"):
            verify(path, "0" * 64)
        with pytest.raises(ModelFileError, match="cannot read"):
            verify(tmp_path / "none.gguf", "0" * 64)


def test_started_is_the_first_event_of_each_unit(fake: FakeHub, models: Path) -> None:
    units = [UNIT, Unit("draft", FILES[1:])]
    events = list(pull(units, models, policy=QUICK))
    assert [event.unit for event in events if isinstance(event, Started)] == units
    assert events[0] == Started(UNIT)
    run = pull(units, models, policy=QUICK)
    assert run_until(run, Finished) == Finished(UNIT, installed(UNIT, models) or ())
