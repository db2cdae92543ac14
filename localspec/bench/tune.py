"""Finds the method, draft length and confidence floor that decode fastest on this machine, and keeps them.

Successive halving: every candidate answers a few prompts once, the better half goes on, and the last ones
race plain decoding with full repeats. Only what that last race measured is reported and stored.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from localspec.bench.contestants import Contestant, Speculating
from localspec.bench.race import MIN_REPEATS, Result, race
from localspec.engine.settings import Method, Request, SpeculationSettings
from localspec.interfaces import PairFiles, SessionInfo, SessionLike, TunedSetting
from localspec.locations import locations
from localspec.measuring import Spread, spread
from localspec.planning.tuned import forget_tuned, remember_tuned
from localspec.store.measurements import Measurements
from localspec.workloads import WORKLOADS, Workload

LENGTHS = (1, 2, 3, 5, 7, 15)
FLOORS = (0.0, 0.4, 0.7)
FINALISTS = 3


@dataclass(frozen=True, slots=True)
class Tuned:
    """The winner: one setting and its speed-up over all workloads."""

    speculation: SpeculationSettings
    speedup: Spread
    """Geometric mean over the workloads, of each repeat."""
    results: tuple[Result, ...]


def candidates(info: SessionInfo, asked: Method) -> list[SpeculationSettings]:
    """Every setting worth a try: adaptive, and fixed lengths with a few floors."""
    methods = [m for m in info.methods if m not in ("auto", "off") and asked in ("auto", m)]
    fixed = [
        SpeculationSettings(method=method, k=k, p_min=floor, tuned=False)
        for method in methods
        for k in LENGTHS
        if k <= info.effective.k_max
        for floor in FLOORS
    ]
    # An earlier winner is a candidate like any other; it must not be where the others start.
    adaptive = [SpeculationSettings(method=method, tuned=False) for method in ("auto", *methods)]
    return adaptive + fixed


def tune(
    session: SessionLike,
    request: Request,
    max_tokens: int,
    repeats: int,
    tell: Callable[[str], None] = lambda label: None,
    workloads: Sequence[Workload] = WORKLOADS,
) -> Tuned:
    """Search, then race the finalists on every one of the workloads."""
    plain = Speculating(session, replace(request, speculation=SpeculationSettings(method="off")))
    left: list[Contestant] = [
        Speculating(session, replace(request, speculation=speculation))
        for speculation in candidates(session.info, request.speculation.method)
    ]
    short = [Workload(w.name, w.prompts[:1]) for w in workloads]
    while len(left) > FINALISTS:
        results = [race(w, [plain, *left], 1, max(16, max_tokens // 2), tell) for w in short]
        order = sorted(range(len(left)), key=lambda i: -_mean_speedup(results, i + 1).median)
        left = [left[i] for i in order[: max(FINALISTS, len(left) // 2)]]
    repeats = max(repeats, MIN_REPEATS)
    final = tuple(race(w, [plain, *left], repeats, max_tokens, tell) for w in workloads)
    speedups = [_mean_speedup(final, i + 1) for i in range(len(left))]
    best = max(range(len(left)), key=lambda i: speedups[i].median)
    winner = left[best]
    assert isinstance(winner, Speculating)
    if speedups[best].median <= 1.0:
        return Tuned(SpeculationSettings(method="off"), Spread(1.0, 1.0, 1.0), final)
    return Tuned(winner.request.speculation, speedups[best], final)


def _mean_speedup(results: Sequence[Result], lane: int) -> Spread:
    """Geometric mean over workloads of the paired ratios, per repeat."""
    ratios = []
    for result in results:
        pairs = zip(result.lanes[lane].rates(), result.plain.rates(), strict=True)
        ratios.append([math.log(a / b) for a, b in pairs])
    return spread([math.exp(sum(logs) / len(logs)) for logs in zip(*ratios, strict=True)])


def keep(files: PairFiles, info: SessionInfo, tuned: Tuned) -> TunedSetting:
    """Store the winner for these files, device and build; returns what was stored."""
    asked = tuned.speculation
    setting = TunedSetting(
        method=asked.method,
        k=asked.k,
        p_min=asked.p_min,
        speedup=tuned.speedup.median,
        speedup_range=(tuned.speedup.low, tuned.speedup.high),
        found_at=time.time(),
    )
    store = Measurements(locations().measurements_db)
    try:
        remember_tuned(files, info, setting, store)
    finally:
        store.close()
    return setting


def forget(files: PairFiles) -> int:
    """Drop what was stored for these files; returns how many settings."""
    path = locations().measurements_db
    if not path.exists():
        return 0
    store = Measurements(path)
    try:
        return forget_tuned(files, store)
    finally:
        store.close()


def flags(setting: TunedSetting) -> str:
    """The winner as options of `localspec chat`."""
    text = f"--method {setting.method}"
    if setting.method != "off" and setting.k is not None:
        text += f" --k {setting.k}" + (f" --p-min {setting.p_min}" if setting.p_min else "")
    return text
