"""`localspec bench`: plain decoding against every method of a pair, on five kinds of work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.bench.contestants import contestants
from localspec.bench.race import MIN_REPEATS, Result, race
from localspec.bench.reference import reference
from localspec.bench.report import chart_of, human_report, report_of
from localspec.bench.tune import flags, forget, keep, tune
from localspec.engine.settings import Request, SpeculationSettings
from localspec.errors import LocalspecError, UsageError
from localspec.interfaces import PairFiles, SessionInfo, SessionLike, TunedSetting
from localspec.output import Output
from localspec.workloads import WORKLOADS, Workload

MAX_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, how often, and where it goes."""

    request: Request
    """Sampling and speculation to measure with."""
    repeats: int = MIN_REPEATS
    max_tokens: int = MAX_TOKENS
    workloads: tuple[str, ...] = ()
    """Names; empty = all five."""
    reference: str | None = None
    tune: bool = False
    svg: Path | None = None

    @property
    def chosen(self) -> tuple[Workload, ...]:
        return tuple(w for w in WORKLOADS if not self.workloads or w.name in self.workloads)


def run_bench(session: SessionLike, files: PairFiles, plan: Plan, out: Output) -> int:
    """Measure and report; returns the exit code.

    Args:
        files: what `session` loaded; a tuned setting is stored for them.

    Raises:
        UsageError: fewer repeats than a spread needs, or a reference without a place for the prompt.
        LocalspecError: the chart cannot be written, or the reference fails.
    """
    if plan.repeats < MIN_REPEATS:
        raise UsageError(f"{plan.repeats} repeats show no spread", hint=f"use at least {MIN_REPEATS}")
    with out.progress("benchmark") as progress:

        def tell(label: str) -> None:
            progress.update(label=label)

        stored = None
        if plan.tune:
            tuned = tune(session, plan.request, plan.max_tokens, plan.repeats, tell, plan.chosen)
            results, stored = tuned.results, keep(files, session.info, tuned)
        else:
            results = tuple(_measure(session, plan, tell))
    report = report_of(session.info, results, plan.repeats)
    human = human_report(report)
    if stored is not None:
        report["tuned"] = tuned_record(stored)
        low, high = stored.speedup_range
        human += (
            f"\n\nbest here: {flags(stored)}, {stored.speedup:.2f}× ({low:.2f}–{high:.2f}); stored, and "
            "`auto` starts from it"
        )
    elif (start := _start(session.info, plan.request.speculation)) is not None:
        report["starts_from"] = tuned_record(start)
        human += f"\n\n`auto` started from {start.text}"
    if plan.svg is not None:
        try:
            plan.svg.write_text(chart_of(report), encoding="utf-8")
        except OSError as error:
            raise LocalspecError(f"cannot write `{plan.svg}`: {error.strerror}") from error
    out.report(report, human)
    return 0


def _start(info: SessionInfo, asked: SpeculationSettings) -> TunedSetting | None:
    """What the lane of `auto` started from, where there is one; `off` races all methods, too."""
    return info.start_of(replace(asked, method="auto") if asked.method == "off" else asked)


def tuned_record(setting: TunedSetting) -> dict[str, Any]:
    """A tuned setting for JSON."""
    return {
        "method": setting.method,
        "k": "auto" if setting.k is None else setting.k,
        "p_min": setting.p_min,
        "speedup_median": setting.speedup,
        "speedup_range": list(setting.speedup_range),
    }


def run_forget(files: PairFiles, out: Output) -> int:
    """Drop the tuned settings of a pair; returns the exit code."""
    count = forget(files)
    what = f"forgot {count} tuned setting{'s' if count != 1 else ''} of `{files.name}`"
    out.report({"pair": files.name, "forgotten": count}, what)
    return 0


def _measure(session: SessionLike, plan: Plan, tell: Callable[[str], None]) -> list[Result]:
    racers = contestants(session, plan.request)
    if plan.reference is not None:
        racers.append(reference(plan.reference))
    return [race(workload, racers, plan.repeats, plan.max_tokens, tell) for workload in plan.chosen]
