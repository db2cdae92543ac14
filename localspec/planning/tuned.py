"""What `localspec bench --tune` found fastest for a pair on this machine: written there, read at each load.

It holds for the same files, device, llama.cpp build, threads and KV types only.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from localspec.engine.settings import LoadSettings
from localspec.interfaces import PairFiles, SessionInfo, TunedSetting
from localspec.locations import locations
from localspec.planning.measured import configuration, of_pair, same_files
from localspec.planning.result import PairPlan
from localspec.store.measurements import Measurements

KIND = "tuned"


def remember_tuned(
    files: PairFiles, info: SessionInfo, setting: TunedSetting, measurements: Measurements
) -> None:
    """Keep the winner for this pair as it is loaded.

    Raises:
        LocalspecError: a file has gone, or the database cannot be written.
    """
    value = asdict(setting)
    del value["found_at"]  # the row has its time
    measurements.put(configuration(files, info), KIND, value)


def tuned_of_load(files: PairFiles, info: SessionInfo) -> TunedSetting | None:
    """The winner for a loaded pair, or None.

    Raises:
        LocalspecError: a file has gone, or the database cannot be read.
    """
    path = locations().measurements_db
    if not path.exists():  # reading makes no database
        return None
    measurements = Measurements(path)
    try:
        key = configuration(files, info)
        return next((_setting(v, at) for k, v, at in measurements.items(KIND) if k == key), None)
    finally:
        measurements.close()


def tuned_of_plan(
    plan: PairPlan, files: PairFiles, load: LoadSettings, build: str, measurements: Measurements
) -> TunedSetting | None:
    """The newest winner that a load as planned would start from."""
    found = of_pair(KIND, plan, files, load, build, measurements)
    return _setting(*found[0]) if found else None


def forget_tuned(files: PairFiles, measurements: Measurements) -> int:
    """Drop the winners of these files on any device and build; returns how many.

    Raises:
        LocalspecError: a file has gone, or the database cannot be written.
    """
    mine = same_files(files)
    keys = [key for key, _, _ in measurements.items(KIND) if (key.target, key.draft) == mine]
    return sum(measurements.forget(key, KIND) for key in keys)


def _setting(value: dict[str, Any], at: float) -> TunedSetting:
    return TunedSetting(**value | {"speedup_range": tuple(value["speedup_range"])}, found_at=at)
