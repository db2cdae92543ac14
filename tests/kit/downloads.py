"""Fixtures and helpers of the download tests; a module takes the fixtures over by `fake = downloads.fake`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session

from localspec.download import Event, Notice, Policy, RemoteFile, Unit, installed, pull
from localspec.errors import LocalspecError, OutsideError
from tests.kit.fakehub import FakeHub, Fault, gguf

SIZE = 3_000_000
DATA = gguf(SIZE)
QUICK = Policy(stall_s=10, attempts=3, backoff_s=0.01)
FILE = RemoteFile("o/r", "a.gguf")
UNIT = Unit("pair", (FILE,))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """A running fake hub that this process's hub client talks to."""
    with FakeHub() as fake:
        for name, value in fake.environment(tmp_path / "hf").items():
            monkeypatch.setenv(name, value)
        yield fake
    # A kept connection of the client could meet the next server that is given this one's port.
    close_session()


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The models folder, not made yet."""
    return tmp_path / "models"


def final(models: Path) -> Path:
    """Where `FILE` lies in the end."""
    return models / "o" / "r" / "a.gguf"


def run(models: Path, unit: Unit = UNIT, policy: Policy = QUICK, **options: Any) -> list[Event]:
    """All events of a pull."""
    return list(pull([unit], models, policy=policy, **options))


def fails(models: Path, unit: Unit = UNIT, **options: Any) -> LocalspecError:
    """The error of a pull that must not leave anything under a final name."""
    with pytest.raises(LocalspecError) as caught:
        run(models, unit, **options)
    assert installed(unit, models) is None
    assert not [path for path in models.rglob("*.gguf") if path.is_file()]
    return caught.value


def notices(events: list[Event], kind: str = "restart") -> list[str]:
    """Texts of the notices of one kind."""
    return [event.text for event in events if isinstance(event, Notice) and event.kind == kind]


def interrupted(fake: FakeHub, models: Path, at: int) -> None:
    """A download that broke after `at` bytes and was given up."""
    fake.inject(Fault("cut", at=at))
    assert isinstance(fails(models, policy=Policy(attempts=1)), OutsideError)
    fake.seen.clear()


def starts(fake: FakeHub) -> list[int]:
    """Offset of each CDN answer that sent bytes."""
    return [seen.start for seen in fake.requests("cdn") if seen.sent]
