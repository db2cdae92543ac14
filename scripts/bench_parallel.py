"""Requests at once on one pair: several slots that share passes, against one slot and a queue.

Interleaved runs of the same requests. `throughput` is all tokens over the wall time; `first` the mean time
until a request's first token, `whole` until its last; `alone` the rate of a single request, which pays for
the slots it does not use.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from localspec.engine.events import Done, Round, Token
from localspec.engine.settings import LoadSettings, Message, Request, SamplingSettings, SpeculationSettings
from localspec.locations import locations
from localspec.pairs import resolve
from localspec.session import Session, open_session
from localspec.session.loading import physical_cores
from localspec.workloads import WORKLOADS


@dataclass(frozen=True, slots=True)
class Run:
    """All requests answered once."""

    tokens: int
    seconds: float
    firsts: tuple[float, ...]
    """Seconds until the first token of each request."""
    wholes: tuple[float, ...]
    """Seconds until its last."""
    company: float
    """Mean requests that shared the pass of a round."""
    per_round: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def answer(session: Session, request: Request, began: float) -> tuple[int, float, float, list[int]]:
    """(tokens, seconds from `began` to the first and to the last, sequences of each round)."""
    tokens, first, company = 0, 0.0, []
    for event in session.reply(request):
        if isinstance(event, Token):
            first = first or time.perf_counter() - began
            tokens += 1
        elif isinstance(event, Round):
            company.append(event.sequences)
        elif isinstance(event, Done) and event.reason == "error":
            raise SystemExit(event.error)
    return tokens, first, time.perf_counter() - began, company


def run(session: Session, requests: list[Request]) -> Run:
    """As many at once as the session has slots; the next one starts when one has ended."""
    began = time.perf_counter()
    with ThreadPoolExecutor(session.info.effective.slots) as pool:
        found = list(pool.map(lambda request: answer(session, request, began), requests))
    seconds = time.perf_counter() - began
    counts, firsts, wholes, each = zip(*found, strict=True)
    company = [n for rounds in each for n in rounds]
    tokens = sum(counts)
    return Run(tokens, seconds, firsts, wholes, statistics.mean(company), tokens / len(company))


def requests_of(count: int, tokens: int, speculation: SpeculationSettings, salt: int) -> list[Request]:
    """`count` requests of mixed work; `salt` keeps repeated runs from finding their prompts cached."""
    prompts = [prompt for prompts in zip(*(w.prompts for w in WORKLOADS), strict=False) for prompt in prompts]
    chosen = itertools.islice(itertools.cycle(prompts), count)
    return [
        Request(
            messages=(Message("user", f"[{salt}.{i}] {prompt}"),),
            sampling=SamplingSettings(temperature=0.0),
            speculation=speculation,
            max_tokens=tokens,
            ignore_eog=True,
        )
        for i, prompt in enumerate(chosen)
    ]


def ratio(pairs: list[tuple[Run, Run]], of: Callable[[Run], float]) -> dict[str, float]:
    """Median and range of shared / queued."""
    values = [of(shared) / of(queued) for shared, queued in pairs]
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pair", nargs="?", default="demo")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5, help="interleaved repetitions")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--ctx", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--methods", nargs="+", default=["off", "auto"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    files = resolve(options.pair, None, None, default=None, models_dir=locations().models_dir)
    load = LoadSettings(n_ctx=options.ctx, threads=options.threads)
    queued = open_session(files, load)
    shared = open_session(
        files, LoadSettings(n_ctx=options.ctx, threads=options.threads, slots=options.slots)
    )
    salt = itertools.count()
    result: dict[str, object] = {"pair": files.name, "slots": options.slots, "threads": options.threads}
    for method in options.methods:
        speculation = SpeculationSettings(method=method)
        many: list[tuple[Run, Run]] = []
        alone: list[tuple[Run, Run]] = []
        for _ in range(options.pairs):
            asked = requests_of(options.slots, options.tokens, speculation, next(salt))
            many.append((run(shared, asked), run(queued, asked)))
            single = requests_of(1, options.tokens, speculation, next(salt))
            alone.append((run(shared, single), run(queued, single)))
        result[method] = {
            "throughput": ratio(many, lambda r: r.rate),
            "first": ratio(many, lambda r: statistics.mean(r.firsts)),
            "whole": ratio(many, lambda r: statistics.mean(r.wholes)),
            "alone": ratio(alone, lambda r: r.rate),
            "company": statistics.mean(r.company for r, _ in many),
            "tokens_per_round": [
                statistics.mean(r.per_round for r in runs) for runs in zip(*many, strict=True)
            ],
        }
    shared.close()
    queued.close()
    if options.json:
        print(json.dumps(result))
        return 0
    print(f"{options.slots} requests at once against one after another, {options.threads} thread(s):")
    for method in options.methods:
        found = result[method]
        assert isinstance(found, dict)
        for name in ("throughput", "first", "whole", "alone"):
            value = found[name]
            print(f"  {method:6} {name:10} {value['median']:.2f}× ({value['low']:.2f}–{value['high']:.2f})")
        per_round = " and ".join(f"{value:.2f}" for value in found["tokens_per_round"])
        print(
            f"  {method:6} {found['company']:.1f} requests per pass, {per_round} tokens per round and request"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
