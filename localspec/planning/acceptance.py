"""What share of its drafts a pair's drafter had accepted on earlier days, so that a drop is noticed.

A regression of llama.cpp or of ours shows as drafts that are suddenly refused, never as an error. So what is
expected comes from all builds and numbers of threads, while files, device and cache types are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from localspec.interfaces import PairFiles, SessionInfo
from localspec.locations import locations
from localspec.planning.measured import configuration
from localspec.store.measurements import Measurements

KIND = "acceptance"
MOST = 8192
"""Tested drafts that a record keeps its weight for; older ones fade."""

Counts = Mapping[str, tuple[int, int]]
"""Method → (tested, accepted)."""


def remember_acceptance(files: PairFiles, info: SessionInfo, counts: Counts) -> None:
    """Add what a session saw.

    Raises:
        LocalspecError: a file has gone, or the database cannot be written.
    """
    if not any(tested for tested, _ in counts.values()):
        return
    measurements = Measurements(locations().measurements_db)
    try:
        key = configuration(files, info)
        record = measurements.get(key, KIND) or {}
        for method, (tested, accepted) in counts.items():
            before, right = record.get(method, (0, 0))
            fade = min(1.0, MOST / max(before, 1))
            record[method] = [fade * before + tested, fade * right + accepted]
        measurements.put(key, KIND, record)
    finally:
        measurements.close()


def expected_acceptance(files: PairFiles, info: SessionInfo) -> Counts:
    """What sessions of the same pair saw, with any build of llama.cpp and number of threads.

    Raises:
        LocalspecError: a file has gone, or the database cannot be read.
    """
    path = locations().measurements_db
    if not path.exists():  # reading makes no database
        return {}
    measurements = Measurements(path)
    try:
        mine = configuration(files, info)
        found: dict[str, tuple[int, int]] = {}
        for key, record, _ in measurements.items(KIND):
            if replace(key, build=mine.build, threads=mine.threads) == mine:
                for method, (tested, accepted) in record.items():
                    before = found.get(method, (0, 0))
                    found[method] = (before[0] + round(tested), before[1] + round(accepted))
        return found
    finally:
        measurements.close()
