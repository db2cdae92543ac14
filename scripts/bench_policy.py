"""The adaptive policy against the best fixed draft length of each kind of work, on real models.

All lengths, plain decoding and the policy answer the benchmark's prompts interleaved. The best length is
chosen on one half of the repeats and compared with the policy on the other, in both directions: chosen and
compared on the same repeats it would win by luck. Exit code 1 when a median ratio is below its bar.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from localspec.bench.contestants import Speculating
from localspec.bench.race import Lane, race
from localspec.engine.settings import LoadSettings, Method, Request, SamplingSettings, SpeculationSettings
from localspec.interfaces import SessionLike
from localspec.output import table
from localspec.pairs import resolve
from localspec.session import open_session
from localspec.workloads import WORKLOADS

BAR = 0.97


def contestants(session: SessionLike, method: Method, lengths: Sequence[int]) -> list[Speculating]:
    """Plain decoding, the policy, then every length of every drafter that the policy may choose."""
    methods: list[Method] = [method]
    if method == "auto":
        methods = [each for each in session.info.methods if each not in ("auto", "off")]
    choices = [
        SpeculationSettings(method="off"),
        SpeculationSettings(method=method, tuned=False),
        *(SpeculationSettings(method=each, k=k) for each in methods for k in lengths),
    ]
    greedy = SamplingSettings(temperature=0.0)
    return [Speculating(session, Request(sampling=greedy, speculation=choice)) for choice in choices]


def judge(name: str, lanes: Sequence[Lane]) -> dict[str, Any]:
    """One row: the policy over the best fixed length, and over plain decoding."""
    plain, adaptive, *fixed = lanes
    halves = [range(half, len(plain.repeats), 2) for half in (0, 1)]
    ratios, chosen = [], []
    for choosing, comparing in (halves, halves[::-1]):
        best = max(fixed, key=lambda lane: statistics.median(lane.rates()[r] for r in choosing))
        chosen.append(f"{best.contestant.name} {best.contestant.k}")
        ratios += [adaptive.rates()[r] / best.rates()[r] for r in comparing]
    to_plain = adaptive.speedup(plain)
    return {
        "workload": name,
        "best_fixed": list(dict.fromkeys(chosen)),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "of_plain": round(to_plain.median, 3),
        "of_plain_range": [round(to_plain.low, 3), round(to_plain.high, 3)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pair", nargs="?", default="demo")
    parser.add_argument("--draft", type=Path, metavar="FILE", help="draft GGUF instead of the pair's own")
    parser.add_argument("--method", default="ngram", help="auto races every drafter of the pair")
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--workload", nargs="+", choices=[w.name for w in WORKLOADS], help="only these")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    session = open_session(
        resolve(asked.pair, None, asked.draft), LoadSettings(n_ctx=2048, threads=asked.threads)
    )
    rows = []
    try:
        racers = contestants(session, asked.method, asked.k)
        for workload in (w for w in WORKLOADS if asked.workload is None or w.name in asked.workload):
            result = race(workload, racers, asked.repeats, asked.tokens)
            rows.append(judge(workload.name, result.lanes))
            print(f"{workload.name}: {rows[-1]['ratio']}", file=sys.stderr, flush=True)
    finally:
        session.close()
    if asked.json:
        print(json.dumps(rows))
    else:
        cells = [
            [
                row["workload"],
                " / ".join(row["best_fixed"]),
                *(_spread(row, key) for key in ("ratio", "of_plain")),
            ]
            for row in rows
        ]
        print(table(["workload", "best fixed", "policy / best fixed", "policy / plain"], cells))
    return int(any(row["ratio"] < BAR for row in rows))


def _spread(row: dict[str, Any], key: str) -> str:
    low, high = row[f"{key}_range"]
    return f"{row[key]:.3f}× ({low:.3f}–{high:.3f})"


if __name__ == "__main__":
    sys.exit(main())
