"""The chat and the model picker in a terminal; nothing here is imported before one of them is wanted.

The model lives behind `make_session`, usually in a worker process: this package never loads one itself.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import UsageError
from localspec.locations import locations

if TYPE_CHECKING:
    from textual.screen import Screen

    from localspec.catalog import Catalog
    from localspec.config import Config
    from localspec.engine.settings import KvType
    from localspec.store import ChatStore
    from localspec.tui.controller import MakeSession

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
    screens: Mapping[str, Callable[[], Screen[str | None]]] | None = None,
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
        screens: Screens of other parts by name; F2 shows `picker`, which ends with a pair's name or None.
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
    from localspec.tui.setup import ChatSetup

    setup = ChatSetup(
        make_session, config, store, log or locations().log_file, initial_prompt, resume, pick_first, system,
        screens or {},
    )  # fmt: skip
    app = make_app(setup)
    # A full collection walks every object of the imported modules: 60 ms on a slow core, every few seconds.
    gc.freeze()
    try:
        app.run(inline=inline, inline_no_clear=inline)
    finally:
        app.chat.writer.settle()
        app.chat.controller.close()
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
    from localspec.tui.picker_app import make_picker_app

    app = make_picker_app(catalog, config, budget=budget, n_ctx=n_ctx, kv=kv)
    try:
        app.run()
    finally:
        app.picker.downloads.close()
    return app.return_code or 0
