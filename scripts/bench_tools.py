"""Decode rates against llama.cpp's own speculative tools: same files, prompt, draft length and threads.

`llama-speculative-simple` and `llama-server` are built by the user from the llama.cpp that llama-cpp-python
carries. Each pair runs ours, the tool and plain decoding one after another in turning order, and reads
each engine's own counter of decode time; pairs whose plain control strays by more than a tenth from the
median are dropped. Exit code 1 when a median ratio is below its bar.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from localspec.bench.reference import counters
from localspec.engine.settings import LoadSettings, Request, SamplingSettings, SpeculationSettings
from localspec.interfaces import Companion, PairFiles
from localspec.measuring import run
from localspec.pairs import resolve
from localspec.session import Session, open_session

PROMPT = (
    "<|im_start|>user\nWrite a Python class for a queue with push, pop and size, and explain it.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
STRAY = 0.1
"""A pair whose plain rate is so far from the median does not count."""
CONTEXT = 2048


@dataclass(slots=True)
class Duel:
    """One tool against ours at one draft length."""

    draft: str
    tool: str
    k: int
    bar: float
    theirs: Callable[[], float]
    ours: Callable[[], float]
    plain: Callable[[], float]
    rows: list[tuple[float, float, float]] = field(default_factory=list)
    """Tokens per second of ours, the tool, and plain decoding, a pair each."""

    def play(self, pairs: int) -> None:
        for number in range(pairs):
            order = [self.ours, self.theirs] if number % 2 == 0 else [self.theirs, self.ours]
            rates = {player: player() for player in order}
            self.rows.append((rates[self.ours], rates[self.theirs], self.plain()))

    def report(self) -> dict[str, object]:
        usual = statistics.median(plain for _, _, plain in self.rows)
        kept = [row for row in self.rows if abs(row[2] / usual - 1) <= STRAY]
        if not kept:
            raise SystemExit("plain decoding strayed in every pair: run nothing else meanwhile")
        ratios = sorted(ours / theirs for ours, theirs, _ in kept)
        quartile = ratios[len(ratios) // 4]
        return {
            "draft": self.draft, "tool": self.tool, "k": self.k, "pairs": len(kept), "bar": self.bar,
            "ratio": round(statistics.median(ratios), 3), "lower_quartile": round(quartile, 3),
            "ours_tps": round(statistics.median(row[0] for row in kept), 1),
            "tool_tps": round(statistics.median(row[1] for row in kept), 1),
            "plain_tps": round(usual, 1),
        }  # fmt: skip


def shared_arguments(target: Path, draft: Path, k: int, threads: int) -> list[str]:
    """What both tools are told of files, threads and drafting."""
    return [
        "-m", str(target), "-md", str(draft), "-c", str(CONTEXT), "-t", str(threads), "-td", str(threads),
        "--spec-type", "draft-simple", "--spec-draft-n-max", str(k), "--spec-draft-n-min", "0",
        "--spec-draft-p-min", "0",
    ]  # fmt: skip


def simple(tool: Path, target: Path, draft: Path, k: int, tokens: int, threads: int) -> float:
    """Decode rate that one run of `llama-speculative-simple` prints."""
    done = subprocess.run(
        [tool, *shared_arguments(target, draft, k, threads), "-p", PROMPT, "-n", str(tokens), "--temp", "0"],
        capture_output=True, text=True, errors="replace", check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    answer = counters(done.stderr + done.stdout, tool.name)
    return answer.tokens / answer.seconds


@contextmanager
def server(tool: Path, target: Path, draft: Path, k: int, threads: int) -> Iterator[str]:
    """A running `llama-server` and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    child = subprocess.Popen(
        [tool, *shared_arguments(target, draft, k, threads), "-np", "1", "--host", "127.0.0.1",
         "--port", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                if httpx2.get(f"{base}/health").status_code == 200:
                    break
            except httpx2.TransportError:
                if child.poll() is not None:
                    raise SystemExit(f"{tool} ended with {child.returncode}") from None
            time.sleep(0.25)
        yield base
    finally:
        child.terminate()
        child.wait()


def served(base: str, tokens: int) -> float:
    """Decode rate that `llama-server` reports of one completion."""
    body = {"prompt": PROMPT, "n_predict": tokens, "temperature": 0, "cache_prompt": False}
    timings = httpx2.post(f"{base}/completion", json=body, timeout=600).json()["timings"]
    return float(timings["predicted_per_second"])


def ours(session: Session, speculation: SpeculationSettings, tokens: int) -> float:
    request = Request(
        prompt=PROMPT, sampling=SamplingSettings(temperature=0.0), max_tokens=tokens, speculation=speculation
    )
    return run(session, request).tps()


def duels(asked: argparse.Namespace, name: str, draft: Path, bar: float) -> list[Duel]:
    """Both tools at each draft length, played; `bar` is for `llama-speculative-simple`."""
    target, threads, tokens = resolve("demo").target, asked.threads, asked.tokens
    load = LoadSettings(n_ctx=CONTEXT, threads=threads)
    session = open_session(PairFiles("tools", target, (Companion("draft", draft),)), load)
    played = []
    try:
        if session.info.off_reason:
            raise SystemExit(session.info.off_reason)
        off = SpeculationSettings(method="off")
        ours(session, off, 16)
        for k in asked.k:
            mine = partial(ours, session, SpeculationSettings(method="draft", k=k), tokens)
            control = partial(ours, session, off, tokens)
            if asked.simple:
                theirs = partial(simple, asked.simple, target, draft, k, tokens, threads)
                played.append(Duel(name, asked.simple.name, k, bar, theirs, mine, control))
                played[-1].play(asked.pairs)
            if asked.server:
                with server(asked.server, target, draft, k, threads) as base:
                    served(base, 16)
                    theirs = partial(served, base, tokens)
                    played.append(Duel(name, asked.server.name, k, 1.0, theirs, mine, control))
                    played[-1].play(asked.pairs)
    finally:
        session.close()
    return played


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simple", type=Path, metavar="FILE", help="llama-speculative-simple")
    parser.add_argument("--server", type=Path, metavar="FILE", help="llama-server")
    parser.add_argument("--draft", type=Path, help="a draft GGUF beside the target as its own draft")
    parser.add_argument("--k", type=int, nargs="+", default=[3, 7])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    played = duels(asked, "self", resolve("demo").target, 1.15)
    if asked.draft:
        played += duels(asked, asked.draft.stem, asked.draft, 0.97)
    rows = [duel.report() for duel in played]
    if asked.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print("  ".join(f"{key} {value}" for key, value in row.items()))
    return int(any(float(str(row["ratio"])) < float(str(row["bar"])) for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
