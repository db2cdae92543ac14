"""Places follow the platform or LOCALSPEC_HOME, and asking for them makes nothing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from localspec.locations import locations


def test_home_moves_everything_and_asking_makes_nothing(home: Path) -> None:
    assert all(home in path.parents for path in asdict(locations()).values())
    assert list(home.iterdir()) == []


def test_models_directory_moves_alone(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_MODELS_DIR", str(tmp_path / "m"))
    assert locations().models_dir == tmp_path / "m"
    assert home in locations().config_file.parents


def test_a_tilde_means_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", "~/elsewhere")
    assert locations().config_file == Path.home() / "elsewhere/config/config.toml"


def test_without_it_the_platform_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALSPEC_HOME")
    places = asdict(locations())
    assert len(set(places.values())) == len(places)
    assert all("localspec" in str(path) for path in places.values())
