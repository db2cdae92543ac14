"""`localspec demo`: the same prompts plain and speculative, interleaved, on the embedded pair.

One workload shows where drafting can win on a small CPU (an edit, whose text is mostly in the prompt), one
where it cannot (a story); there speculation has to pause itself and cost next to nothing. Beside what `auto`
makes of them, every drafter of the pair runs alone and without pausing, so that one sees which wins and why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.engine.events import Event, Round
from localspec.engine.settings import Message, Method, Request, SamplingSettings, SpeculationSettings
from localspec.interfaces import SessionInfo, SessionLike
from localspec.measuring import Run, Spread, first_difference, run, spread
from localspec.output import Output, Progress, table
from localspec.workloads import FUNCTION

PAIR = "demo"
REPEATS = 5
TAIL = 64
"""Tokens before a losing policy may be judged: it has to see that drafting loses."""
WINS = 1.03
"""Speed-up from which a method counts as faster than plain decoding."""
ALONE_REPEATS, FIXED_K = 2, 4
"""Repeats and draft length of a drafter that runs alone; it never pauses."""


@dataclass(frozen=True, slots=True)
class DemoWorkload:
    """A prompt and what it shows."""

    name: str
    shows: str
    prompt: str
    max_tokens: int
    to_the_end: bool = False
    """Go on after the end of generation, so that the reply is long enough to judge."""


WORKLOADS = (
    DemoWorkload(
        "edit",
        "the reply repeats the prompt with a change: drafts come from the text itself",
        "Rename the variable `result` to `amount` in this function. Answer with the whole function.\n"
        f"```python\n{FUNCTION}```",
        200,
    ),
    DemoWorkload(
        "story",
        "new prose: there is little to copy, so speculation should step aside",
        "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
        288,
        to_the_end=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Plain and speculative runs of one workload."""

    workload: DemoWorkload
    method: str
    plain: tuple[Run, ...]
    spec: tuple[Run, ...]
    evidence: str | None
    """Why the texts differ, None when they are equal."""

    @property
    def plain_tps(self) -> Spread:
        return spread([each.tps() for each in self.plain])

    @property
    def spec_tps(self) -> Spread:
        return spread([each.tps() for each in self.spec])

    def speedup(self, first: int = 0) -> Spread:
        """Paired ratios of the decode rates over tokens `first`…"""
        pairs = zip(self.plain, self.spec, strict=True)
        return spread([s.tps(first) / p.tps(first) if p.tps(first) else 1.0 for p, s in pairs])


def run_demo(session: SessionLike, out: Output, *, method: Method | None = None, quick: bool = False) -> int:
    """Run all workloads and report them; returns the exit code.

    Args:
        method: run this drafter alone, instead of `auto` and each one.
        quick: one repeat of shorter replies.
    """
    comparisons = []
    for workload in WORKLOADS:
        if quick:
            workload = replace(workload, max_tokens=min(workload.max_tokens, 96))
        if method in (None, "auto"):
            automatic = [("auto", SpeculationSettings())]
            comparisons += compare(session, workload, automatic, 1 if quick else REPEATS, out)
        if alone := _alone(session.info, method):
            comparisons += compare(session, workload, alone, 1 if quick else ALONE_REPEATS, out)
    report = report_of(session.info, comparisons)
    out.report(report, human_report(report, session.info, comparisons))
    return 0


def _alone(info: SessionInfo, method: Method | None) -> list[tuple[str, SpeculationSettings]]:
    """What runs with a fixed draft length: the method asked for, or all that the pair has."""
    if method == "off":
        return []
    asked = info.methods if method in (None, "auto") else (method,)
    return [
        (f"{name} k={FIXED_K}", SpeculationSettings(method=name, k=FIXED_K))
        for name in asked
        if name not in ("auto", "off")
    ]


def compare(
    session: SessionLike,
    workload: DemoWorkload,
    methods: Sequence[tuple[str, SpeculationSettings]],
    repeats: int,
    out: Output,
) -> list[Comparison]:
    """Plain, then each method, `repeats` times over, greedy; the first plain run also warms up."""
    base = Request(
        messages=(Message("user", workload.prompt),),
        sampling=SamplingSettings(temperature=0.0),
        max_tokens=workload.max_tokens,
        ignore_eog=workload.to_the_end,
    )
    plain_request = replace(base, speculation=SpeculationSettings(method="off"))
    plain: list[Run] = []
    spec: dict[str, list[Run]] = {label: [] for label, _ in methods}
    run(session, replace(plain_request, max_tokens=8))
    with out.progress(workload.name) as progress:
        for repeat in range(repeats):
            where = f"{workload.name} {repeat + 1}/{repeats}"
            plain.append(run(session, plain_request, _watch(progress, f"{where} plain")))
            for label, speculation in methods:
                request = replace(base, speculation=speculation)
                spec[label].append(run(session, request, _watch(progress, f"{where} {label}")))
    return [
        Comparison(workload, label, tuple(plain), tuple(runs), _evidence(session, plain_request, plain, runs))
        for label, runs in spec.items()
    ]


def _evidence(
    session: SessionLike, request: Request, plain: Sequence[Run], spec: Sequence[Run]
) -> str | None:
    """At the first token that differs: how close the two best logits of plain decoding were there."""
    at = next((i for s in spec if (i := first_difference(plain[0].ids, s.ids)) is not None), None)
    if at is None:
        return None
    tops = run(session, replace(request, logprobs=2)).tops[at]
    gap = tops[0][1] - tops[1][1]
    return f"first difference at token {at + 1}, where the two best logits are {gap:.3f} apart"


def _watch(progress: Progress, label: str) -> Callable[[Event], None]:
    """A consumer of events that keeps the live line current."""
    tokens, seconds = 0, 0.0

    def consume(event: Event) -> None:
        nonlocal tokens, seconds
        if isinstance(event, Round):
            tokens += event.committed
            seconds += event.wall_s
            if seconds > 0:
                progress.update(label=f"{label}: {tokens} tokens · {tokens / seconds:.1f} tok/s")

    return consume


def report_of(info: SessionInfo, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The demo as one JSON object."""
    return {
        "pair": info.pair,
        "target": {"name": info.target, "architecture": info.architecture, "n_vocab": info.n_vocab},
        "build": info.build,
        "threads": info.effective.threads,
        "workloads": [_workload_report(comparison) for comparison in comparisons],
    }


def _workload_report(c: Comparison) -> dict[str, Any]:
    counts = c.spec[-1].counts
    per_round = counts.tokens_per_round or 0.0
    whole, tail = c.speedup(), c.speedup(TAIL)
    return {
        "name": c.workload.name,
        "method": c.method,
        "methods_used": list(counts.methods),
        "repeats": len(c.plain),
        "plain_tps": c.plain_tps.median,
        "plain_tps_range": [c.plain_tps.low, c.plain_tps.high],
        "spec_tps": c.spec_tps.median,
        "spec_tps_range": [c.spec_tps.low, c.spec_tps.high],
        "speedup": whole.median,
        "speedup_range": [whole.low, whole.high],
        "speedup_after_64": tail.median,
        "tokens": counts.completion_tokens,
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "tested": counts.tested,
        "accepted": counts.accepted,
        "accepted_per_tested": counts.accept_per_tested,
        "accepted_per_drafted": counts.accept_per_drafted,
        "tokens_per_round": per_round,
        "round_cost": per_round / whole.median,
        "text_equal": c.evidence is None,
        "logit_gap": c.evidence,
        "paused": counts.paused_at_token is not None,
        "paused_at_token": counts.paused_at_token,
        "paused_reason": next((n.reason for n in c.spec[-1].notices if n.kind == "paused"), None),
        "notices": [notice.reason for notice in c.spec[-1].notices],
    }


def human_report(report: dict[str, Any], info: SessionInfo, comparisons: Sequence[Comparison]) -> str:
    """The replies' first lines, the table and a verdict in words."""
    rows = report["workloads"]
    by_workload: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        by_workload.setdefault(comparison.workload.name, []).append(comparison)
    lines = [f"{info.target} · {info.build} · {info.effective.threads} threads", ""]
    for name, ran in by_workload.items():
        lines += [f"{name}: {ran[0].workload.shows}", _indented(ran[0].spec[-1].text, lines=4), ""]
    headers = ["workload", "method", "plain tok/s", "spec tok/s", "speed-up (range)", "tokens/round",
               "round costs", "accepted/tested", "accepted/drafted"]  # fmt: skip
    lines += [table(headers, [_row(row) for row in rows]), ""]
    alone = len(rows) == len(by_workload)
    lines += [verdict(row) for row in rows if alone or row["method"] == "auto"]
    if not alone:
        lines += [winner([row for row in rows if row["name"] == name]) for name in by_workload]
    return "\n".join(lines)


def winner(rows: Sequence[dict[str, Any]]) -> str:
    """Which method is fastest for a workload, and what decides it: tokens of a round against its cost."""
    best = max(rows, key=lambda row: float(row["speedup"]))
    trade = f"a round gives {best['tokens_per_round']:.2f} tokens for the time of {best['round_cost']:.2f}"
    if best["speedup"] >= WINS:
        return f"{best['name']}: `{best['method']}` wins here, {trade}"
    return f"{best['name']}: nothing beats plain decoding here; at best (`{best['method']}`) {trade}"


def _row(row: dict[str, Any]) -> list[str]:
    low, high = row["speedup_range"]
    return [
        row["name"], row["method"], f"{row['plain_tps']:.1f}", f"{row['spec_tps']:.1f}",
        f"{row['speedup']:.2f}× ({low:.2f}–{high:.2f})", f"{row['tokens_per_round']:.2f}",
        f"{row['round_cost']:.2f} tokens", _share(row["accepted"], row["tested"]),
        _share(row["accepted"], row["drafted"]),
    ]  # fmt: skip


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} % of {whole}" if whole else "–"


def _indented(text: str, lines: int) -> str:
    shown = text.strip().splitlines()[:lines]
    return "\n".join(f"    {line}" for line in [*shown, "…"])


def verdict(row: dict[str, Any]) -> str:
    """One workload in a sentence."""
    name = f"{row['name']} ({row['method']})" if row["method"] != "auto" else row["name"]
    speed = row["speedup"]
    if speed >= WINS:
        text = f"{name}: {speed:.2f}× faster than plain decoding"
    elif speed >= 0.97:
        text = f"{name}: as fast as plain decoding ({speed:.2f}×)"
    else:
        tail = row["speedup_after_64"]
        text = f"{name}: {speed:.2f}× of plain decoding, {tail:.2f}× after the first {TAIL} tokens"
    if row["paused_at_token"] is not None:
        text += f"; speculation paused itself after {row['paused_at_token']} tokens ({row['paused_reason']})"
    same = "same text" if row["text_equal"] else row["logit_gap"]
    return f"{text}; {same}"
