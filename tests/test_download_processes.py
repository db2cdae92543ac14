"""Downloads in real processes: killed at random points, and two at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localspec.download import RemoteFile, Unit, installed
from localspec.download.part import CHUNK
from tests.kit import downloads
from tests.kit.fakehub import FakeHub, gguf

fake = downloads.fake
pytestmark = pytest.mark.skipif(os.name != "posix", reason="POSIX only")
ROOT = Path(__file__).parent.parent
UNIT = Unit("pair", (RemoteFile("o/r", "a.gguf"),))
CHILD = """
import sys
from pathlib import Path
from localspec.download import RemoteFile, Unit, pull
for event in pull([Unit("pair", (RemoteFile("o/r", "a.gguf"),))], Path(sys.argv[1])):
    print(type(event).__name__, getattr(getattr(event, "owner", None), "pid", ""), flush=True)
"""


@pytest.fixture
def start(fake: FakeHub, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a process that pulls; what is still running at the end is killed."""
    processes: list[subprocess.Popen[str]] = []

    def begin() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "models")],
            cwd=ROOT,
            env={**os.environ, **fake.environment(tmp_path / "hf")},
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def reached(fake: FakeHub) -> int:
    """How far into the file the CDN has sent bytes."""
    return max((seen.start + seen.sent for seen in fake.requests("cdn")), default=0)


def test_kill_9_at_random_points_loses_at_most_one_chunk(
    fake: FakeHub,
    start: Callable[[], subprocess.Popen[str]],
    tmp_path: Path,
    soak: Callable[[int, int], int],
) -> None:
    """Known faults 90 and 101: progress survives, and no half file has a final name."""
    size = 24_000_000
    data = gguf(size)
    fake.push("o/r", {"a.gguf": data})
    fake.rate_bps = 20e6
    models = tmp_path / "models"
    final, part = models / "o/r/a.gguf", models / "o/r/a.gguf.part"
    points = random.Random(5)
    for point in sorted(points.randrange(1, size * 9 // 10) for _ in range(soak(3, 20))):
        before = len(fake.requests("cdn"))
        process = start()
        while reached(fake) < point or len(fake.requests("cdn")) == before:
            assert process.poll() is None, "the child ended by itself"
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not final.exists() and not list(models.rglob("*.gguf")), "nothing a list would show"
        assert installed(UNIT, models) is None
        assert data.startswith(part.read_bytes() if part.exists() else b"")
    fake.rate_bps = None
    assert start().wait(60) == 0
    assert final.read_bytes() == data and installed(UNIT, models) == (final,)
    sent_until = 0
    for seen in fake.requests("cdn"):
        assert sent_until - seen.start <= CHUNK, "more than one chunk was fetched twice"
        sent_until = seen.start + seen.sent
    assert [path for path in models.rglob("*") if path.suffix in (".part", ".lock", ".tmp")] == []


def test_of_two_processes_one_waits_and_says_for_whom(
    fake: FakeHub, start: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    """Known fault 98: two writers corrupt one partial."""
    data = gguf(6_000_000)
    fake.push("o/r", {"a.gguf": data})
    fake.rate_bps = 1e6  # slow enough that the first is still at it when the second has started
    first = start()
    fake.wait_sent(100_000)
    second = start()
    told = [process.communicate(timeout=60)[0].split("\n") for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert f"Waiting {first.pid}" in told[1] and not any("Waiting" in line for line in told[0])
    assert "Verified " in told[1] and "Progress " not in told[1]
    assert (tmp_path / "models/o/r/a.gguf").read_bytes() == data
    assert fake.sent() == len(data), "fetched once"


def wait_for_bytes(models: Path, timeout_s: float = 30.0) -> None:
    """Return once a part of a download is on disk."""
    end = time.monotonic() + timeout_s
    while not any(part.stat().st_size for part in models.rglob("*.part")):
        assert time.monotonic() < end, "nothing was written"
        time.sleep(0.01)


def test_the_waiting_process_takes_over_from_a_killed_one(
    fake: FakeHub, start: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    data = gguf(6_000_000)
    fake.push("o/r", {"a.gguf": data})
    fake.rate_bps = 5e5  # slow enough that the first is still at it when the second has started
    first = start()
    fake.wait_sent(100_000)
    second = start()
    assert second.stdout is not None
    for line in second.stdout:
        if line.startswith("Waiting"):
            wait_for_bytes(tmp_path / "models")
            first.kill()
            break
    fake.rate_bps = None
    rest = second.communicate(timeout=60)[0]
    assert second.returncode == 0 and "Finished" in rest
    assert (tmp_path / "models/o/r/a.gguf").read_bytes() == data
    assert fake.requests("cdn")[-1].start > 0
