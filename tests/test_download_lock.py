"""The lock of one download: owners, dead owners, file systems without locks."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from localspec.download import lock as lock_module
from localspec.download.events import Owner
from localspec.download.lock import STALE_S, FileLock

HOST = socket.gethostname()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "o" / "a.gguf.lock"


def left_behind(path: Path, pid: int, host: str, age_s: float = 0.0) -> None:
    """A lock file whose owner did not release it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"pid": pid, "host": host, "since": 1.0}))
    os.utime(path, (time.time() - age_s,) * 2)


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_one_holds_it_and_the_other_learns_who(path: Path) -> None:
    one, other = FileLock(path), FileLock(path)
    assert one.try_acquire() is None
    owner = other.try_acquire()
    assert owner is not None and (owner.pid, owner.host) == (os.getpid(), HOST)
    assert abs(owner.since - time.time()) < 60
    one.release()
    assert not path.exists()
    assert other.try_acquire() is None
    other.release()
    other.release()


def test_a_killed_owner_leaves_no_lock(path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from localspec.download.lock import FileLock\n"
        "assert FileLock(Path(sys.argv[1])).try_acquire() is None; os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=Path(__file__).parent.parent)
    assert path.exists(), "as after kill -9"
    lock = FileLock(path)
    assert lock.try_acquire() is None
    lock.release()


def test_another_machine_counts_while_it_beats(path: Path) -> None:
    """Known fault 98: a lock that the file system grants twice."""
    left_behind(path, 1, "elsewhere", age_s=STALE_S / 2)
    assert FileLock(path).try_acquire() == Owner(1, "elsewhere", 1.0)
    left_behind(path, 1, "elsewhere", age_s=STALE_S * 2)
    lock = FileLock(path)
    assert lock.try_acquire() is None
    os.utime(path, (0, 0))
    lock.beat()
    assert time.time() - path.stat().st_mtime < STALE_S
    lock.release()


class TestWithoutLocks:
    """A file system that refuses flock (known fault 98)."""

    @pytest.fixture(autouse=True)
    def refuse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lock_module, "_os_lock", lambda fd: None)

    def test_a_living_process_holds_and_a_dead_one_does_not(self, path: Path) -> None:
        one = FileLock(path)
        assert one.try_acquire() is None
        other = FileLock(path).try_acquire()
        assert other is not None and other.pid == os.getpid()
        one.release()
        left_behind(path, dead_pid(), HOST)
        assert one.try_acquire() is None
        one.release()

    def test_of_several_at_once_one_wins(self, path: Path) -> None:
        locks = [FileLock(path) for _ in range(4)]
        got: list[FileLock] = []

        def race(lock: FileLock) -> None:
            if lock.try_acquire() is None:
                got.append(lock)

        threads = [threading.Thread(target=race, args=(lock,)) for lock in locks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) <= 1


@pytest.mark.skipif(os.name != "posix", reason="POSIX only")
@pytest.mark.parametrize(("code", "answer"), [(errno.EWOULDBLOCK, False), (errno.EOPNOTSUPP, None)])
def test_refusals_of_flock_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, answer: bool | None
) -> None:
    import fcntl

    def refuse(fd: int, operation: int) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (tmp_path / "x").open("w") as file:
        assert lock_module._os_lock(file.fileno()) is answer


def test_many_threads_never_hold_it_together(path: Path) -> None:
    inside, most, rounds = 0, 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most, rounds
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            lock = FileLock(path)
            if lock.try_acquire() is None:
                with guard:
                    inside += 1
                    most = max(most, inside)
                    rounds += 1
                time.sleep(0.001)
                with guard:
                    inside -= 1
                lock.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and rounds > 10
