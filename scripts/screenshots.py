"""Draw the picker, and the chat with the embedded pair, and save what is seen as SVG, for the README.

Nothing is staged: the model runs, and the numbers are those of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from localspec.catalog import load_catalog
from localspec.config import Config
from localspec.demo import PAIR, WORKLOADS
from localspec.engine.events import Loading, Notice
from localspec.engine.settings import LoadSettings
from localspec.interfaces import SessionLike
from localspec.pairs import resolve
from localspec.store import ChatStore
from localspec.tui.app import make_app
from localspec.tui.controller import Wish
from localspec.tui.picker_app import make_picker_app
from localspec.tui.picker_factory import PickerFactory
from localspec.tui.setup import ChatSetup
from localspec.worker import WorkerSession

DOCS = Path(__file__).resolve().parent.parent / "docs"
SIZE = (120, 36)
LOAD_S, REPLY_S = 120.0, 600.0


async def chat(folder: Path, target: Path) -> None:
    """One edit, for which the n-gram drafter finds much to copy, with the statistics pane open."""

    def make_session(wish: Wish, notify: Callable[[Loading | Notice], None]) -> SessionLike:
        return WorkerSession(resolve(PAIR), wish.load or LoadSettings(), on_event=notify, log=folder / "log")

    config = Config(
        file=folder / "config.toml", models_dir=folder, load={"n_ctx": 2048}, sampling={"temperature": 0.0},
        request={"max_tokens": WORKLOADS[0].max_tokens},
    )  # fmt: skip
    store = ChatStore(None)
    app = make_app(ChatSetup(make_session, config, store, folder / "log"))
    async with app.run_test(size=SIZE) as pilot:
        screen = app.chat
        try:
            await until(lambda: screen.controller.state == "ready", LOAD_S)
            await pilot.press("f8")
            screen.prompt.insert(WORKLOADS[0].prompt)
            await pilot.press("enter")
            await until(lambda: bool(screen.conversation.turns), LOAD_S)
            await until(lambda: not screen.controller.busy and not screen.controller.inbox, REPLY_S)
            await pilot.pause(1.0)
            target.write_text(app.export_screenshot(title="localspec chat demo"), encoding="utf-8")
        finally:
            screen.controller.close()
    store.close()


async def picker(folder: Path, target: Path) -> None:
    """The catalogue against a 24 GB card, with one pair in full."""
    config = Config(file=folder / "config.toml", models_dir=folder / "models", default_pair=PAIR)
    factory = PickerFactory(load_catalog(), config, budget="24GB-card")
    app = make_picker_app(factory, config, LoadSettings())
    async with app.run_test(size=SIZE) as pilot:
        await until(lambda: bool(app.picker.rows), LOAD_S)
        await pilot.press("down", "down", "down")
        await pilot.pause(2.0)
        target.write_text(app.export_screenshot(title="localspec pick-models"), encoding="utf-8")
    factory.close()


async def until(condition: Callable[[], bool], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=DOCS, help="folder of the pictures")
    given = parser.parse_args()
    given.to.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOCALSPEC_HOME"] = folder  # nothing of the user's shows or changes
        asyncio.run(picker(Path(folder), given.to / "picker.svg"))
        asyncio.run(chat(Path(folder), given.to / "chat.svg"))
    print(given.to / "picker.svg", given.to / "chat.svg", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
