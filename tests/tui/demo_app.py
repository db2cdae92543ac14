"""The chat on a scripted session in a real worker, for a real terminal: `python -m tests.tui.demo_app`.

`DEMO_FACTORY` names the session's factory, `DEMO_FOLDER` the folder for everything written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from localspec.config import load_config
from localspec.engine.events import Loading, Notice
from localspec.engine.settings import LoadSettings
from localspec.errors import LocalspecError
from localspec.interfaces import Companion, PairFiles
from localspec.store import ChatStore
from localspec.tui import run_chat
from localspec.tui.controller import Wish
from localspec.worker import WorkerSession


def main() -> int:
    folder = Path(os.environ["DEMO_FOLDER"])
    factory = os.environ.get("DEMO_FACTORY", "tests.tui.demo_sessions:chatty")
    target = Path(os.environ.get("DEMO_TARGET", "demo.gguf"))
    draft = os.environ.get("DEMO_DRAFT")
    files = PairFiles("demo", target, (Companion("draft", Path(draft)),) if draft else ())
    log = folder / "localspec.log"

    def make_session(wish: Wish, notify: Callable[[Loading | Notice], None]) -> WorkerSession:
        session = WorkerSession(files, wish.load or LoadSettings(), factory=factory, on_event=notify, log=log)
        (folder / "worker.pid").write_text(str(session.pid))
        return session

    config = load_config(os.environ, folder / "config.toml")
    store = ChatStore(folder / "chats.db")
    try:
        return run_chat(
            make_session, config=config, store=store, log=log, inline="--inline" in sys.argv,
            initial_prompt=os.environ.get("DEMO_PROMPT"),
        )  # fmt: skip
    except LocalspecError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return error.exit_code
    finally:
        store.close()


if __name__ == "__main__":
    sys.exit(main())
