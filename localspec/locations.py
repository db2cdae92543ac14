"""Where localspec keeps things. Directories are made on write, never on import."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

APP = "localspec"


@dataclass(frozen=True, slots=True)
class Locations:
    """Every place localspec reads or writes; `localspec paths` prints them."""

    config_file: Path
    user_models_file: Path
    models_dir: Path
    data_dir: Path
    chats_db: Path
    measurements_db: Path
    cache_dir: Path
    log_file: Path


def locations() -> Locations:
    """Resolve all places from the platform and `LOCALSPEC_HOME` / `LOCALSPEC_MODELS_DIR`.

    `LOCALSPEC_HOME` moves everything under one folder (tests, portable installs).
    """
    home = os.environ.get("LOCALSPEC_HOME")
    if home:
        root = Path(home).expanduser()
        config, data, cache, log = root / "config", root / "data", root / "cache", root / "log"
    else:
        config = Path(platformdirs.user_config_dir(APP))
        data = Path(platformdirs.user_data_dir(APP))
        cache = Path(platformdirs.user_cache_dir(APP))
        log = Path(platformdirs.user_log_dir(APP))
    models = os.environ.get("LOCALSPEC_MODELS_DIR")
    return Locations(
        config_file=config / "config.toml",
        user_models_file=config / "models.toml",
        models_dir=Path(models).expanduser() if models else data / "models",
        data_dir=data,
        chats_db=data / "chats.db",
        measurements_db=data / "measurements.db",
        cache_dir=cache,
        log_file=log / "localspec.log",
    )
