"""A picker under test: its own home, a catalogue of two tiny pairs beside the shipped ones, no network."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from localspec.catalog import Catalog, load_catalog
from localspec.config import Config
from localspec.engine.settings import LoadSettings
from localspec.tui.picker_app import PickerApp, make_picker_app
from localspec.tui.picker_factory import PickerFactory
from localspec.tui.picking import services
from localspec.tui.screens.picker import PickerScreen
from localspec.tui.widgets.pair_detail import PairDetail
from tests.kit.ggufs import syn
from tests.tui.kit import screen_text

TINY = """
[models.tiny-target]
repo = "o/r"
file = "t.gguf"
license = "MIT"
size_bytes = {target}
facts = {{ architecture = "llama", n_layer = 2, n_embd = 64, n_ff = 128, n_vocab = 512, n_ctx_train = 4096, n_head = 4, n_head_kv = 2, head_k = 16, head_v = 16, tied = true }}

[models.tiny-draft]
repo = "o/d"
file = "d.gguf"
license = "MIT"
size_bytes = {draft}
facts_from = "tiny-target"

[pairs.tiny]
target = "tiny-target"
draft = "tiny-draft"
kind = "draft"
note = "a [pair] of the test"

[pairs.tiny-ngram]
target = "tiny-target"
kind = "ngram"
"""  # noqa: E501


PAIRS = (
    "demo", "llama-3.1-8b-1b", "llama-3.3-70b-1b", "qwen2.5-coder-7b-0.5b", "qwen2.5-coder-14b-0.5b",
    "qwen3-32b-iq4-0.6b", "qwen3.6-27b-mtp", "gemma-3-4b-qat-270m",
)  # fmt: skip
"""Enough to sort and filter; the whole catalogue costs half a second per question."""


class Picker:
    """A running picker under test."""

    def __init__(self, app: PickerApp, pilot: Pilot[None], config: Config) -> None:
        self.app = app
        self.pilot = pilot
        self.config = config

    @property
    def screen(self) -> PickerScreen:
        return self.app.picker

    async def wait(self, condition: Callable[[], object], what: str = "", within_s: float = 10.0) -> None:
        """Poll until something is true; the screen's text goes into the failure."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"never happened: {what}\n{self.text()}\n{self.toasts()}")
            await self.pilot.pause(0.02)

    async def see(self, text: str, within_s: float = 10.0) -> None:
        """Wait for a text on the screen or in a toast."""
        await self.wait(lambda: text in self.text() or text in self.toasts(), f"`{text}`", within_s)

    async def ready(self) -> None:
        """The plans of the present question are drawn."""
        await self.wait(lambda: self.screen.rows and not self.screen._note, "plans")
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def filter(self, text: str) -> None:
        """Type into the filter and go back to the table."""
        await self.press("slash", *text, "enter")

    def text(self) -> str:
        return screen_text(self.app)

    def toasts(self) -> str:
        return "\n".join(notification.message for notification in self.app._notifications)

    def detail(self) -> str:
        """The whole text about the marked pair, also what is scrolled out of sight."""
        return str(self.screen.query_one(PairDetail).query_one("#picker-detail-text", Static).content)


def add_tiny_pairs(home: Path) -> None:
    """Write the pairs of `TINY` into the user's models file."""
    sizes = {"target": syn("syn").stat().st_size, "draft": syn("syn-near").stat().st_size}
    (home / "config").mkdir(exist_ok=True)
    (home / "config" / "models.toml").write_text(TINY.format(**sizes))


@asynccontextmanager
async def picking(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    budget: str | None = "24GB-card",
    size: tuple[int, int] = (120, 40),
    whole: bool = False,
    load: LoadSettings | None = None,
    **values: Any,
) -> AsyncIterator[Picker]:
    """A picker on `PAIRS`, or on the whole catalogue; `values` are settings."""
    monkeypatch.setenv("HOME", str(home))
    add_tiny_pairs(home)
    config = Config(file=home / "config" / "config.toml", models_dir=home / "data" / "models", **values)

    def catalogue() -> Catalog:
        found = load_catalog()
        kept = {name: pair for name, pair in found.pairs.items() if name in PAIRS or "config" in pair.origin}
        return found if whole else replace(found, pairs=kept)

    monkeypatch.setattr(services, "load_catalog", catalogue)
    factory = PickerFactory(catalogue(), config, budget=budget)
    app = make_picker_app(factory, config, load or LoadSettings())
    try:
        async with app.run_test(size=size, notifications=True, tooltips=False) as pilot:
            picker = Picker(app, pilot, config)
            await picker.ready()
            yield picker
    finally:
        factory.close()
