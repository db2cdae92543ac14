"""Which devices a draft is computed on, and whether what it borrows of its target can be read there.

llama.cpp ends the process when a graph reads a tensor on a device that is none of its model's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from localspec.budget.question import HOSTS
from localspec.engine.backend.devices import memory_breakdown
from localspec.engine.settings import LoadSettings
from localspec.errors import PairingError
from localspec.header import facts_from_header, read_header

if TYPE_CHECKING:
    from localspec.session.loading import LoadedPair


def draft_device(settings: LoadSettings) -> str | None:
    """The draft goes where its target was put, unless it was given a device of its own."""
    return settings.draft_device or settings.device


def check_reach(pair: LoadedPair, path: Path, *, cache: bool = False) -> None:
    """See that a head's device has what the head borrows.

    Args:
        cache: it reads the target's cache; else the output matrix, if it has none of its own.

    Raises:
        PairingError: it has not.
    """
    asked = pair.settings.draft_device
    if asked is None or (not cache and facts_from_header(read_header(path)).own_output):
        return
    missing = _holders(pair) - {asked}
    if missing:
        what = "cache" if cache else "output matrix"
        raise PairingError(
            f"`{path.name}` uses the target's {what} on {', '.join(sorted(missing))}, out of reach of the "
            f"draft device `{asked}`",
            hint="leave `--draft-device` away, or put both on one device",
        )


def _holders(pair: LoadedPair) -> set[str]:
    """Accelerators that hold a part of the target."""
    uses = memory_breakdown(pair.context)
    if uses is not None:
        return {use.device for use in uses if not use.is_host and (use.model_bytes or use.context_bytes)}
    settings = pair.settings
    if settings.gpu_layers == 0 or settings.device in HOSTS:
        return set()
    return {settings.device or "the target's devices"}
