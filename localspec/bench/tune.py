"""Finds the method, draft length and confidence floor that decode fastest on this machine, and keeps them.

Successive halving: every candidate answers a few prompts once, the better half goes on, and the last ones
race plain decoding with full repeats. Only what that last race measured is reported and stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.bench.contestants import Contestant, Speculating
from localspec.bench.race import MIN_REPEATS, Result, race
from localspec.engine.settings import Method, Request, SpeculationSettings
from localspec.interfaces import SessionInfo, SessionLike
from localspec.locations import locations
from localspec.measuring import Spread, spread
from localspec.store.measurements import MeasurementKey, Measurements
from localspec.workloads import WORKLOADS, Workload

KIND = "tuned"
"""Kind of the stored value."""
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
        SpeculationSettings(method=method, k=k, p_min=floor)
        for method in methods
        for k in LENGTHS
        if k <= info.effective.k_max
        for floor in FLOORS
    ]
    adaptive = [SpeculationSettings(method=method) for method in ("auto", *methods)]
    return adaptive + fixed


def tune(
    session: SessionLike,
    request: Request,
    max_tokens: int,
    repeats: int,
    tell: Callable[[str], None] = lambda label: None,
) -> Tuned:
    """Search, then race the finalists on every workload."""
    plain = Speculating(session, replace(request, speculation=SpeculationSettings(method="off")))
    left: list[Contestant] = [
        Speculating(session, replace(request, speculation=speculation))
        for speculation in candidates(session.info, request.speculation.method)
    ]
    short = [Workload(w.name, w.prompts[:1]) for w in WORKLOADS]
    while len(left) > FINALISTS:
        results = [race(w, [plain, *left], 1, max(16, max_tokens // 2), tell) for w in short]
        order = sorted(range(len(left)), key=lambda i: -_mean_speedup(results, i + 1).median)
        left = [left[i] for i in order[: max(FINALISTS, len(left) // 2)]]
    repeats = max(repeats, MIN_REPEATS)
    final = tuple(race(w, [plain, *left], repeats, max_tokens, tell) for w in WORKLOADS)
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


def key_of(info: SessionInfo) -> MeasurementKey:
    """The configuration a result belongs to."""
    load = info.effective
    gpu = next((d.description for d in info.devices if d.kind == "gpu"), "CPU")
    return MeasurementKey(
        target=info.target,
        draft=" + ".join(info.drafts),
        device=load.device or gpu,
        build=info.build,
        threads=load.threads or 0,
        kv=load.kv,
        draft_kv=load.draft_kv,
    )


def keep(info: SessionInfo, tuned: Tuned) -> dict[str, Any]:
    """Store the winner for this target, draft, device and build; returns what was stored."""
    asked = tuned.speculation
    value = {
        "method": asked.method,
        "k": "auto" if asked.k is None else asked.k,
        "p_min": asked.p_min,
        "speedup_median": tuned.speedup.median,
        "speedup_range": [tuned.speedup.low, tuned.speedup.high],
    }
    store = Measurements(locations().measurements_db)
    try:
        store.put(key_of(info), KIND, value)
    finally:
        store.close()
    return value


def flags(value: dict[str, Any]) -> str:
    """The winner as options of `localspec chat`."""
    text = f"--method {value['method']}"
    if value["method"] != "off" and value["k"] != "auto":
        text += f" --k {value['k']}" + (f" --p-min {value['p_min']}" if value["p_min"] else "")
    return text
