"""What a download tells its reader: frozen events, in the order they happen.

Per unit: `Started` · (`Checking` | `Notice` | `Waiting` | `Retrying` | `Progress` | `Verified`)* · one of
`Finished`, `Stopped`, `Failed`. Within a file `Progress.done` never falls, except after a `Notice` of kind
`restart`. All of them pickle.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localspec.download.units import RemoteFile, Unit


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds a download."""

    pid: int
    host: str
    since: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Started:
    """Work on a unit begins."""

    unit: Unit


@dataclass(frozen=True, slots=True)
class Progress:
    """Bytes of a file, all parts of a split one together."""

    file: RemoteFile
    done: int
    total: int
    rate_bps: float
    """Bytes per second over the last seconds of this run; 0.0 until known."""
    eta_s: float | None
    """Seconds left at that rate."""


@dataclass(frozen=True, slots=True)
class Checking:
    """Bytes already on this disk are being hashed."""

    path: Path
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Another process downloads this file; told once per owner."""

    file: RemoteFile
    owner: Owner


@dataclass(frozen=True, slots=True)
class Retrying:
    """A passing failure; the next try starts after `in_s` seconds."""

    reason: str
    in_s: float


@dataclass(frozen=True, slots=True)
class Verified:
    """The file is complete under its final name (or in place elsewhere) and its SHA-256 is right."""

    file: RemoteFile
    path: Path
    """The first part of a split file."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know."""

    kind: Literal["info", "restart"]
    """`restart`: bytes that were counted are given up."""
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Every file of the unit is verified."""

    unit: Unit
    paths: tuple[Path, ...]
    """One per file of the unit, in its order; the first part of a split file."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Cancelled or paused; what was fetched is kept for the next run."""

    unit: Unit


@dataclass(frozen=True, slots=True)
class Failed:
    """The unit could not be completed; only `Queue.run` tells it this way, `pull` raises."""

    unit: Unit
    error: str
    hint: str | None


Event = (
    Started | Progress | Checking | Waiting | Retrying | Verified | Notice | Finished | Stopped | Failed
)  # fmt: skip
