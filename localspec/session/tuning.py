"""Takes up what earlier sessions and `localspec bench --tune` stored for exactly the pair that was loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from localspec.engine.alarms import Alarms
from localspec.engine.events import Notice
from localspec.errors import LocalspecError
from localspec.interfaces import PairFiles, SessionInfo
from localspec.log import LOGGER
from localspec.planning.acceptance import expected_acceptance, remember_acceptance
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
            f"`localspec bench --tune` stored {tuned.text}; `auto` starts from it unless `--no-tuned`, "
            "`--method` or `--k` is given",
        )
    )
    return replace(info, tuned=tuned)


def expect_acceptance(files: PairFiles, info: SessionInfo, alarms: Iterable[Alarms], notify: Notify) -> None:
    """Let alarms know what acceptance earlier sessions saw."""
    try:
        expected = expected_acceptance(files, info)
    except LocalspecError as error:
        notify(Notice("info", f"the acceptance of earlier sessions is not compared: {error.message}"))
        return
    for each in alarms:
        each.expected = expected


def keep_acceptance(files: PairFiles, info: SessionInfo, alarms: Iterable[Alarms]) -> None:
    """Store what this session saw, for later ones. Nobody listens to a session that closes: a log line."""
    total: dict[str, tuple[int, int]] = {}
    for each in alarms:
        for method, (tested, accepted) in each.counts().items():
            before = total.get(method, (0, 0))
            total[method] = (before[0] + tested, before[1] + accepted)
    try:
        remember_acceptance(files, info, total)
    except LocalspecError as error:
        logging.getLogger(LOGGER).warning("the acceptance of this session is not kept: %s", error.message)
