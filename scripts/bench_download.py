"""Compare a verified download with `curl -o F && sha256sum F` on loopback.

Whole processes are timed, start-up included, against one server process; the order alternates from pair
to pair. Ours asks the hub first, writes, hashes, syncs the file to the disk and renames it; curl's side
does none of the first and last two. The bar is a median ratio of 1.0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.kit.fakehub import FakeHub  # noqa: E402

BAR = 1.0
PULL = """
import sys
from pathlib import Path
from localspec.download import RemoteFile, Unit, pull
for event in pull([Unit("bench", (RemoteFile("bench/repo", "file.gguf"),))], Path(sys.argv[1])):
    pass
"""


def write_source(path: Path, size: int) -> None:
    """A file of random bytes that starts like a GGUF."""
    with path.open("wb") as file:
        file.write(b"GGUF" + os.urandom(2**20 - 4))
        for _ in range(size // 2**20 - 1):
            file.write(os.urandom(2**20))


def serve(source: Path) -> None:
    """Be the hub and the CDN until stdin closes; says where on stdout."""
    with FakeHub() as fake:
        fake.push("bench/repo", {"file.gguf": source})
        where = {"endpoint": fake.endpoint, "link": fake.link(fake.sha256(source))}
        print(json.dumps(where), flush=True)
        sys.stdin.read()


def timed(run: Callable[[Path], None], folder: Path) -> float:
    """Seconds of one run into an empty folder, with earlier writes out of the way."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.sync()
    began = time.perf_counter()
    run(folder)
    return time.perf_counter() - began


def compare(where: dict[str, str], folder: Path, pairs: int, size: int) -> float:
    """Median of curl's time over ours."""
    env = {**os.environ, "HF_ENDPOINT": where["endpoint"], "HF_HOME": str(folder / "hf"), "HF_TOKEN": ""}
    env |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    into = folder / "run"

    def ours(target: Path) -> None:
        subprocess.run([sys.executable, "-c", PULL, str(target)], env=env, check=True)

    def curl(target: Path) -> None:
        command = 'curl -sS --noproxy "*" -o "$1" "$2" && sha256sum "$1"'
        shell = ["sh", "-c", command, "sh", str(target / "file.gguf"), where["link"]]
        subprocess.run(shell, stdout=subprocess.DEVNULL, check=True)

    ratios = []
    for pair in range(pairs):
        seconds: dict[Callable[[Path], None], float] = {}
        for side in (ours, curl) if pair % 2 else (curl, ours):
            seconds[side] = timed(side, into)
        ratios.append(seconds[curl] / seconds[ours])
        rates = [size / 1e6 / seconds[side] for side in (ours, curl)]
        print(f"pair {pair + 1}: ours {rates[0]:.0f}, curl {rates[1]:.0f} MB/s, ratio {ratios[-1]:.2f}×")
    print(f"median {statistics.median(ratios):.2f}× (lowest {min(ratios):.2f}×), bar {BAR:.1f}×")
    return statistics.median(ratios)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1024, metavar="MIB", help="file size (default 1024)")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="interleaved pairs (default 5)")
    parser.add_argument("--dir", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return 0
    for tool in ("curl", "sha256sum"):
        if shutil.which(tool) is None:
            parser.error(f"`{tool}` is needed")
    with tempfile.TemporaryDirectory(prefix="bench-download-", dir=args.dir) as name:
        folder = Path(name)
        write_source(folder / "source", args.size * 2**20)
        command = [sys.executable, __file__, "--serve", str(folder / "source")]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            where = json.loads(server.stdout.readline())
            return 0 if compare(where, folder, args.pairs, args.size * 2**20) >= BAR else 1
        finally:
            server.communicate()


if __name__ == "__main__":
    sys.exit(main())
