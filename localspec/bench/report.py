"""The benchmark as JSON, as a table and as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localspec.bench.chart import Bar, bar_chart
from localspec.bench.race import Lane, Result
from localspec.engine.stats import tokens_per_round
from localspec.interfaces import SessionInfo
from localspec.measuring import Spread
from localspec.output import table


def report_of(info: SessionInfo, results: Sequence[Result], repeats: int) -> dict[str, Any]:
    """The benchmark as one JSON object."""
    return {
        "pair": info.pair,
        "target": info.target,
        "drafts": list(info.drafts),
        "build": info.build,
        "settings": info.effective,
        "repeats": repeats,
        "workloads": [
            {
                "name": result.workload.name,
                "plain": _rate(result.plain.tps),
                "methods": [_method(lane, result.plain) for lane in result.lanes[1:]],
            }
            for result in results
        ],
    }


def _rate(tps: Spread) -> dict[str, Any]:
    return {"tps_median": tps.median, "tps_range": [tps.low, tps.high]}


def _method(lane: Lane, plain: Lane) -> dict[str, Any]:
    speedup = lane.speedup(plain)
    counts = [answer.summary for answer in lane.answers if answer.summary is not None]
    tokens = sum(answer.tokens for answer in lane.answers)
    ours = bool(counts)
    return {
        "method": lane.contestant.name,
        "k": lane.contestant.k,
        **_rate(lane.tps),
        "speedup_median": speedup.median,
        "speedup_range": [speedup.low, speedup.high],
        "drafted": sum(c.drafted for c in counts) if ours else None,
        "tested": sum(c.tested for c in counts) if ours else None,
        "accepted": sum(c.accepted for c in counts) if ours else None,
        "tokens_per_round": tokens_per_round(counts),
        "resets": sorted({method for c in counts for method in c.resets}),
        "given_up": sorted({method for c in counts for method in c.given_up}),
        "paused_share": sum(a.paused_tokens for a in lane.answers) / tokens if ours and tokens else None,
    }


def human_report(report: dict[str, Any]) -> str:
    """A row per workload and method."""
    headers = ["workload", "method", "k", "tok/s (range)", "speed-up (range)", "tokens/round",
               "accepted/tested", "accepted/drafted", "paused"]  # fmt: skip
    rows: list[list[str]] = []
    for workload in report["workloads"]:
        rows.append([workload["name"], "plain", "", _spread(workload["plain"], "tps", ".1f"), *[""] * 5])
        rows += [_row(method) for method in workload["methods"]]
    head = f"{report['target']} · {report['build']} · {report['settings'].threads} threads"
    foot = f"medians of {report['repeats']} interleaved repeats with their ranges; prefill is not counted"
    return "\n".join([head, "", table(headers, rows), "", foot, *_spoiled(report)])


def _spoiled(report: dict[str, Any]) -> list[str]:
    """What went wrong with drafters: their rates say little of a pair that works."""
    found = {
        (workload["name"], method["method"], drafter, drafter in method["given_up"])
        for workload in report["workloads"]
        for method in workload["methods"]
        for drafter in (*method["resets"], *method["given_up"])
    }
    return [
        f"{name}, {method}: the `{drafter}` drafter looked broken and was "
        + ("switched off" if off else "reset")
        for name, method, drafter, off in sorted(found)
    ]


def _row(method: dict[str, Any]) -> list[str]:
    paused, per_round = method["paused_share"], method["tokens_per_round"]
    return [
        "",
        method["method"],
        str(method["k"]),
        _spread(method, "tps", ".1f"),
        _spread(method, "speedup", ".2f"),
        "–" if per_round is None else f"{per_round:.2f}",
        _share(method["accepted"], method["tested"]),
        _share(method["accepted"], method["drafted"]),
        "–" if paused is None else f"{100 * paused:.0f} %",
    ]


def _spread(values: dict[str, Any], key: str, form: str) -> str:
    low, high = values[f"{key}_range"]
    return f"{values[f'{key}_median']:{form}} ({low:{form}}–{high:{form}})"


def _share(part: int | None, whole: int | None) -> str:
    return f"{100 * part / whole:.0f} % of {whole}" if part is not None and whole else "–"


def chart_of(report: dict[str, Any]) -> str:
    """Speed-up of each method on each workload, as SVG."""
    groups = [
        (
            workload["name"],
            [Bar(m["method"], m["speedup_median"], *m["speedup_range"]) for m in workload["methods"]],
        )
        for workload in report["workloads"]
    ]
    return bar_chart(f"{report['target']}: speed against plain decoding", "× plain", groups, 1.0)
