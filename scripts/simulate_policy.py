"""The adaptive policy on recorded drafts, under the costs of known hardware.

A trace holds, for every position of the target's own greedy text, how many of sixteen drafted tokens are
right and how sure the drafter was. Any policy can be replayed on it without a model. The table compares the
adaptive policy with the best fixed draft length, chosen with hindsight, and with a clairvoyant that knows
what will be accepted. `--record DIR` makes new traces: of the models on this machine, or with `--target` and
`--draft` (whose target is the embedded model by default) of one pair.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from simulation.profiles import CLASSIC, PROFILES, Profile  # noqa: E402
from simulation.replay import (  # noqa: E402
    acceptance_for,
    adaptive,
    best_fixed,
    chance_trace,
    clairvoyant,
    play,
)
from simulation.traces import SUFFIX, Trace, load_trace  # noqa: E402

from localspec.bench.chart import Bar, bar_chart  # noqa: E402
from localspec.engine.policy import FixedPolicy  # noqa: E402
from localspec.output import table  # noqa: E402

TRACES = ROOT / "tests" / "data" / "traces"
BAR = 0.97
CLASSIC_PLAIN, CLASSIC_GOAL, CLASSIC_K = 35.0, 95.0, 5
REJECTED = 0.8


def compare(trace: Trace, profile: Profile) -> dict[str, Any]:
    """One row of the table, rates in tokens per second."""
    k, fixed = best_fixed(trace, profile)
    policy = adaptive(trace, profile)
    return {
        "trace": trace.name,
        "profile": profile.name,
        "plain_tps": play(trace, profile, FixedPolicy(0)).rate,
        "best_fixed_k": k,
        "best_fixed_tps": fixed.rate,
        "policy_tps": policy.rate,
        "policy_of_best_fixed": policy.rate / fixed.rate,
        "clairvoyant_tps": clairvoyant(trace, profile),
        "accepted_per_tested": policy.accepted / policy.tested if policy.tested else None,
    }


def classic() -> dict[str, Any]:
    """The classic pair: what acceptance the goal needs, and what a bad draft does to a fixed length."""
    trace = chance_trace(1 - REJECTED)
    return {
        "profile": CLASSIC.name,
        "plain_tps": CLASSIC_PLAIN,
        "k": CLASSIC_K,
        "goal_tps": CLASSIC_GOAL,
        "acceptance_for_goal": acceptance_for(CLASSIC_GOAL, CLASSIC_K, CLASSIC),
        "rejected": REJECTED,
        "fixed_tps": play(trace, CLASSIC, FixedPolicy(CLASSIC_K)).rate,
        "policy_tps": adaptive(trace, CLASSIC).rate,
    }


def chart(rows: list[dict[str, Any]]) -> str:
    """Speed relative to plain decoding, per trace and profile."""
    groups = []
    for number, row in enumerate(rows, 1):
        rates = (
            ("best fixed k", "best_fixed_tps"),
            ("policy", "policy_tps"),
            ("clairvoyant", "clairvoyant_tps"),
        )
        values = [(name, row[key] / row["plain_tps"]) for name, key in rates]
        groups.append((str(number), [Bar(name, v, v, v) for name, v in values]))
    return bar_chart("Simulated speed by row of the table", "× plain", groups, 1.0)


def human(rows: list[dict[str, Any]], one: dict[str, Any]) -> str:
    headers = ["#", "trace", "profile", "plain", "best fixed", "policy", "of best", "clairvoyant"]
    cells = [
        [
            number, row["trace"], row["profile"], f"{row['plain_tps']:.1f}",
            f"{row['best_fixed_tps']:.1f} (k = {row['best_fixed_k']})", f"{row['policy_tps']:.1f}",
            f"{row['policy_of_best_fixed']:.3f}", f"{row['clairvoyant_tps']:.1f}",
        ]
        for number, row in enumerate(rows, 1)
    ]  # fmt: skip
    needed = one["acceptance_for_goal"]
    goal = "never" if needed is None else f"at an acceptance of {100 * needed:.1f} % per token"
    return "\n".join(
        [
            table(headers, cells),
            "",
            f"{one['profile']}: fixed k = {one['k']} reaches {one['goal_tps']:.0f} tok/s {goal}; with "
            f"{100 * one['rejected']:.0f} % rejected it falls to {one['fixed_tps']:.1f} tok/s, "
            f"the policy makes {one['policy_tps']:.1f}",
            "",
            *(f"{profile.name}: {profile.source}" for profile in PROFILES),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=TRACES, metavar="DIR")
    parser.add_argument("--record", type=Path, metavar="DIR", help="record traces of this machine's models")
    parser.add_argument(
        "--target", type=Path, metavar="FILE", help="with --record: only this target's drafters"
    )
    parser.add_argument("--draft", type=Path, metavar="FILE", help="with --record: a drafter of the target")
    parser.add_argument("--threads", type=int, default=1, help="threads for recording")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="also write a chart")
    options = parser.parse_args()
    if options.record is not None:
        from simulation.recording import record_all, record_pair

        options.record.mkdir(parents=True, exist_ok=True)
        if options.target or options.draft:
            record_pair(options.record, options.target, options.draft, options.threads)
        else:
            record_all(options.record, options.threads)
        return 0
    files = sorted(options.traces.glob(f"*{SUFFIX}"))
    if not files:
        raise SystemExit(f"error: no traces in {options.traces}\nhint: record some with --record DIR")
    rows = [compare(trace, profile) for trace in map(load_trace, files) for profile in PROFILES]
    one = classic()
    if options.svg is not None:
        options.svg.write_text(chart(rows), encoding="utf-8")
    print(json.dumps({"rows": rows, "classic": one}, indent=2) if options.json else human(rows, one))
    held = min(row["policy_of_best_fixed"] for row in rows) >= BAR
    return 0 if held and one["policy_tps"] >= BAR * CLASSIC_PLAIN else 1


if __name__ == "__main__":
    sys.exit(main())
