"""The status line as text: what it says, and what it leaves out when the terminal is narrow. No widgets."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size

from localspec.engine.events import Notice
from localspec.engine.settings import SpeculationSettings
from localspec.interfaces import SessionInfo
from localspec.tui.speed import SpeedUp

GIB = 1 << 30
STALE_S = 10.0
"""A speed-up whose plain side is older than this says how old."""
DROP_ORDER = ("memory", "context", "draft", "acceptance")
"""What goes first when the line does not fit; the speculation state and the rate never do."""
LATER_DROPS = ("speedup", "target", "activity")
SHORTEST_NAME = 8
"""A target's name is cut down to this before it goes."""


@dataclass(frozen=True, slots=True)
class SpecState:
    """Whether speculation works now, and if not, why."""

    state: str = "none"
    """`on`, `paused`, `off`, or `none` without a model."""
    reason: str = ""

    def __str__(self) -> str:
        if self.state == "none":
            return "spec –"
        return f"spec {self.state}" + (f": {self.reason}" if self.reason else "")

    @property
    def plain(self) -> bool:
        """What is written now is plain decoding: a speed-up would not be that of the rate beside it."""
        return self.state in ("paused", "off")

    def noticed(self, notice: Notice) -> SpecState:
        """The state after a notice of the engine; alarms and remarks change nothing."""
        match notice.kind:
            case "paused" | "off":
                return SpecState(notice.kind, notice.reason)
            case "resumed" | "reset":
                return SpecState("on")
        return self


def spec_state(info: SessionInfo | None, wish: SpeculationSettings) -> SpecState:
    """The state before a reply, from what was loaded and what the user wants."""
    if info is None:
        return SpecState()
    if info.off_reason:
        return SpecState("off", info.off_reason)
    if wish.method == "off":
        return SpecState("off", "switched off (F3 turns it on)")
    tuned = info.start_of(wish)
    if tuned is None:
        return SpecState("on")
    return SpecState("paused" if tuned.method == "off" else "on", "tuned")


@dataclass(frozen=True, slots=True)
class Status:
    """Everything the line can say."""

    spec: SpecState = SpecState()
    activity: str = ""
    """What goes on, when it is not plain writing: `loading 43 %`, `reading 512/2 048`, `stopping…`."""
    target: str = ""
    draft: str = ""
    context: tuple[int, int] | None = None
    """Tokens used and in all."""
    tps: float | None = None
    speedup: SpeedUp | None = None
    acceptance: float | None = None
    """Accepted / tested."""
    memory: tuple[str, int, int] | None = None
    """Label (`VRAM`, `RAM`), bytes of this pair, bytes of the device."""


def status_line(status: Status, width: int) -> str:
    """The line for a terminal `width` columns wide; it never needs more."""
    dropped: set[str] = set()
    line = _joined(status, dropped)
    for name in (*DROP_ORDER, *LATER_DROPS):
        if cell_len(line) <= width:
            return line
        room = width - cell_len(line) + cell_len(status.target)
        if name == "target" and room >= SHORTEST_NAME:
            return _joined(replace(status, target=_cut(status.target, room)), dropped)
        dropped.add(name)
        line = _joined(status, dropped)
    return line if cell_len(line) <= width else _cut(line, width)


def _cut(text: str, width: int) -> str:
    return set_cell_size(text, max(0, width - 1)).rstrip() + "…"


def _joined(status: Status, dropped: set[str]) -> str:
    draft = f" + {status.draft}" if status.draft and "draft" not in dropped else ""
    context = status.context
    parts = {
        "activity": status.activity,
        "target": status.target and f"{status.target}{draft}",
        "context": context and f"ctx {tokens_text(context[0])}/{tokens_text(context[1])}",
        "tps": "– tok/s" if status.tps is None else f"{status.tps:.1f} tok/s",
        "speedup": not status.spec.plain and f"{speedup_text(status.speedup)} plain",
        "acceptance": status.acceptance is not None and f"acc {percent(status.acceptance)} tested",
        "memory": status.memory and _memory(*status.memory),
        "spec": str(status.spec),
    }
    return " · ".join(str(text) for name, text in parts.items() if text and name not in dropped)


def speedup_text(speedup: SpeedUp | None) -> str:
    """`2.1×`, `2.1× (40 s old)`, or `–` while unknown."""
    if speedup is None:
        return "–"
    age = f" ({duration(speedup.age_s)} old)" if speedup.age_s > STALE_S else ""
    return f"{speedup.ratio:.1f}×{age}" if speedup.ratio >= 0.95 else f"{speedup.ratio:.2f}×{age}"


def duration(seconds: float) -> str:
    """`40 s`, `3 min`, `2 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def tokens_text(count: int) -> str:
    """`831`, `3.1k`, and `8k` for 8 192, as context lengths are named."""
    if count < 1000:
        return str(count)
    return f"{count // 1024}k" if count % 1024 == 0 else f"{count / 1000:.1f}k".replace(".0k", "k")


def _memory(label: str, used: int, total: int) -> str:
    return f"{label} {used / GIB:.1f}/{total / GIB:.0f} GiB"
