"""The chat and the model picker in a terminal; nothing here is imported before one of them is wanted.

The model lives behind `make_session`, usually in a worker process: this package never loads one itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import UsageError
from localspec.locations import locations

if TYPE_CHECKING:
    from localspec.catalog import Catalog
    from localspec.config import Config
    from localspec.engine.settings import KvType
    from localspec.store import ChatStore
    from localspec.tui.controller import MakeSession
    from localspec.tui.setup import OpenPicker

__all__ = ["run_chat", "run_picker", "why_no_screen"]


def why_no_screen(environ: Mapping[str, str] = os.environ) -> str | None:
    """Why no screen can be drawn here, in words, or None when one can."""
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout)):
        if stream is None or stream.closed or not stream.isatty():
            return f"{name} is not a terminal"
    if environ.get("TERM", "") in ("dumb", "unknown"):
        return f"the terminal (TERM={environ['TERM']}) cannot place the cursor"
    return None


def run_chat(
    make_session: MakeSession,
    *,
    config: Config,
    store: ChatStore,
    initial_prompt: str | None = None,
    resume: int | None = None,
    inline: bool = False,
    pick_first: bool = False,
    system: str = "",
    picker: OpenPicker | None = None,
    log: Path | None = None,
) -> int:
    """Draw the chat until the user leaves; returns the exit code.

    Args:
        make_session: Opens what a `Wish` asks for; called in a thread.
        config: The effective settings; a chosen theme is written back to its file.
        store: Where chats are kept; `ChatStore(None)` = incognito.
        initial_prompt: First message, sent as soon as the model is ready.
        resume: Id of a stored chat to carry on.
        inline: Draw below the shell's prompt instead of taking the whole terminal.
        pick_first: There is no pair to load yet: begin with the picker.
        system: System prompt of new chats.
        picker: Makes the screen that F2 shows.
        log: File that F9 shows; the program's log by default.

    Raises:
        UsageError: there is no terminal to draw on, no such chat, or a keymap with an unknown id.
    """
    reason = why_no_screen()
    if reason is not None:
        raise UsageError(reason, hint="`localspec chat --plain` writes text only")
    if resume is not None:
        store.load(resume)  # before the screen changes: a wrong number is the user's to see
    from localspec.tui.app import make_app
    from localspec.tui.collecting import no_full_collections
    from localspec.tui.setup import ChatSetup

    setup = ChatSetup(
        make_session, config, store, log or locations().log_file, initial_prompt, resume, pick_first, system,
        picker,
    )  # fmt: skip
    app = make_app(setup)
    with no_full_collections():
        try:
            app.run(inline=inline, inline_no_clear=inline)
        finally:
            app.let_go()
    return app.return_code or 0


def run_picker(
    *,
    catalog: Catalog,
    config: Config,
    budget: str | None = None,
    n_ctx: int | None = None,
    kv: tuple[KvType, KvType] | None = None,
) -> int:
    """Draw the model picker alone until the user leaves; returns the exit code.

    Args:
        catalog: The pairs to choose from.
        config: The effective settings; the default pair and a chosen theme are written back to its file.
        budget: A simulated card as `--budget` takes it; None = the memory of this machine.
        n_ctx, kv: Over those of the settings.

    Raises:
        UsageError: there is no terminal to draw on, no such budget, or a keymap with an unknown id.
    """
    reason = why_no_screen()
    if reason is not None:
        raise UsageError(reason, hint="`localspec pick-models --list` writes text only")
    from localspec.budget import parse_budget
    from localspec.engine.settings import LoadSettings

    if budget is not None:
        parse_budget(budget)
    from localspec.tui.picker_app import make_picker_app
    from localspec.tui.picker_factory import PickerFactory

    load = LoadSettings(**config.load)
    factory = PickerFactory(catalog, config, budget=budget)
    try:
        app = make_picker_app(factory, config, replace(load, n_ctx=n_ctx or load.n_ctx, kv=kv or load.kv))
        app.run()
    finally:
        factory.close()
    return app.return_code or 0
