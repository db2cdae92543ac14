"""A user's own pair of tiny models on a fake hub, and the commands that manage it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec import cli
from tests.kit.fakehub import FakeHub
from tests.kit.ggufs import syn

Run = tuple[int, str, str]
ROWS = """
[models.tiny]
repo = "o/target"
file = "{target}"
[models.tiny-draft]
repo = "o/draft"
file = "draft-Q8_0.gguf"
quant = "Q8_0"
[pairs.tiny-pair]
target = "tiny"
draft = "tiny-draft"
kind = "draft"
"""


@pytest.fixture
def models(home: Path) -> Path:
    return home / "data" / "models"


@pytest.fixture
def pair(home: Path, fake: FakeHub) -> FakeHub:
    """A pair of tiny models in the user's file, on the fake hub."""
    user_rows(home)
    fake.push("o/target", {"target.gguf": syn("syn").read_bytes()})
    fake.push("o/draft", {"draft-Q8_0.gguf": syn("syn-w").read_bytes()})
    return fake


def user_rows(home: Path, text: str = ROWS.format(target="target.gguf")) -> None:
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / "models.toml").write_text(text)


@pytest.fixture
def run(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Run]:
    def call(*argv: str) -> Run:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        code = cli.run(argv)
        out, err = capsys.readouterr()
        return code, out, err

    return call
