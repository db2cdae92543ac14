"""What the faces see of a loaded pair: one shape for a session in this process and one in a worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from localspec.engine.events import Event
from localspec.engine.settings import LoadSettings, Method, Request, SpeculationSettings

DraftKind = Literal["draft", "eagle3", "mtp", "dflash", "medusa"]
"""What a companion file is, read from the file itself, never from its name."""


@dataclass(frozen=True, slots=True)
class Companion:
    """A file that drafts for the target."""

    kind: DraftKind
    path: Path


@dataclass(frozen=True, slots=True)
class PairFiles:
    """A target and the files that can draft for it, all on this disk."""

    name: str
    """Pair name as in `models.toml`, or the target's file name."""
    target: Path
    companions: tuple[Companion, ...] = ()


MemoryTerm = Literal[
    "target weights", "target KV", "target state", "target compute",
    "draft weights", "draft KV", "draft state", "draft compute", "output buffer",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """Bytes that llama.cpp really allocated for one purpose on one device."""

    term: MemoryTerm
    device: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device as llama.cpp reports it."""

    name: str
    description: str
    kind: Literal["gpu", "igpu", "cpu", "accel"]
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class TunedSetting:
    """What `localspec bench --tune` found fastest for a pair on this machine; `auto` starts from it."""

    method: Method
    k: int | None
    """None = adaptive."""
    p_min: float
    speedup: float
    """Over plain decoding: geometric mean over the workloads, median of the repeats."""
    speedup_range: tuple[float, float]
    found_at: float
    """Seconds since 1970."""

    @property
    def text(self) -> str:
        """`draft k=3, p-min 0.4: 1.42× (1.30–1.55), tuned 2026-12-01`."""
        length = f" k={self.k}" if self.k is not None and self.method != "off" else ""
        floor = f", p-min {self.p_min:g}" if self.p_min and length else ""
        low, high = self.speedup_range
        day = time.strftime("%Y-%m-%d", time.localtime(self.found_at))
        return f"{self.method}{length}{floor}: {self.speedup:.2f}× ({low:.2f}–{high:.2f}), tuned {day}"


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """Facts of a loaded pair; picklable."""

    pair: str
    target: str
    """`general.name` of the target, or its file name."""
    drafts: tuple[str, ...]
    """Names of the loaded drafters' models."""
    methods: tuple[Method, ...]
    """Methods a request may ask for, `auto` and `off` included."""
    n_ctx: int
    n_vocab: int
    architecture: str
    effective: LoadSettings
    """Settings after defaults and raises."""
    memory: tuple[MemoryItem, ...]
    devices: tuple[DeviceMemory, ...]
    off_reason: str | None = None
    """Why this pair cannot speculate at all, in one sentence."""
    build: str = ""
    """llama.cpp version and backends."""
    tuned: TunedSetting | None = None
    """Where `auto` starts, when it was measured for exactly this pair, device and build."""
    chat_template: str = ""
    """Source of the target's template: the notation of its tool calls is read from it."""

    def start_of(self, asked: SpeculationSettings) -> TunedSetting | None:
        """The tuned setting that a request starts from; a method or length of its own overrides it."""
        free = asked.tuned and asked.method == "auto" and asked.k is None
        return self.tuned if free else None


class Reply(Protocol):
    """A running reply. Iterate it once; the last event is always `Done`."""

    def __iter__(self) -> Iterator[Event]: ...

    def __next__(self) -> Event: ...

    def cancel(self) -> None:
        """Ask for the end from any thread; the stream then ends with `Done(cancelled)`."""

    def close(self) -> None:
        """Drop a suspended reply; the caches are left equal to what was consumed."""


class SessionLike(Protocol):
    """A loaded pair that answers requests one after another."""

    @property
    def info(self) -> SessionInfo: ...

    def reply(self, request: Request) -> Reply:
        """Start a reply.

        Raises:
            UsageError: the request is wrong (prompt longer than the context, unknown method, bad grammar).
            EngineError: the session is closed or its worker died.
        """

    def close(self) -> None:
        """Free everything; idempotent."""
