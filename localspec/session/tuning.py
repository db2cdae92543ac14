"""Takes up what `localspec bench --tune` stored for exactly the pair that was loaded."""

from __future__ import annotations

from dataclasses import replace

from localspec.engine.events import Notice
from localspec.errors import LocalspecError
from localspec.interfaces import PairFiles, SessionInfo
from localspec.planning.tuned import tuned_of_load
from localspec.session.loading import Notify


def with_tuned(files: PairFiles, info: SessionInfo, notify: Notify) -> SessionInfo:
    """The facts with the tuned setting that holds for them; it is told, and so is why it cannot be read."""
    try:
        tuned = tuned_of_load(files, info)
    except LocalspecError as error:
        notify(Notice("info", f"what `bench --tune` stored is not used: {error.message}"))
        return info
    if tuned is None or tuned.method not in info.methods:
        return info
    notify(
        Notice(
            "info",
            f"`auto` starts from {tuned.text} by `localspec bench --tune`; `--method` or `--k` override it, "
            "`--no-tuned` ignores it",
        )
    )
    return replace(info, tuned=tuned)
