"""The plan of one pair, as every face shows it: one frozen value that knows how to become JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from localspec.budget import DeviceUse, Fit, PlanItem, Suggestion
from localspec.catalog import Evidence
from localspec.interfaces import TunedSetting
from localspec.pairing import Verdict

State = Literal["installed", "partial download", "not downloaded"]
Source = Literal["catalogue", "header", "dry-run", "measured"]
SYMBOLS: dict[Fit, str] = {"fits": "●", "tight": "◐", "partial": "◔", "too big": "✗", "unknown": "?"}
"""A mark beside the fit word, for readers without colour."""


def rate_text(tps: float) -> str:
    """Tokens per second with two or three digits."""
    return f"{tps:.0f}" if tps >= 10 else f"{tps:.1f}"


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """Decode rates of this pair's last replies on this machine, in tokens per second."""

    method: str
    """What drafted: `auto`, a method with its fixed length, or `plain` where nothing else was measured."""
    spec_tps: float | None
    """Median of the replies with drafts."""
    plain_tps: float | None
    """Median of the replies without."""
    low: float
    high: float
    """Range of the replies by `method`."""
    replies: int
    measured_at: float
    """Seconds since 1970 of the newest reply."""

    @property
    def tps(self) -> float:
        """What the pair does as it is used."""
        rate = self.spec_tps if self.spec_tps is not None else self.plain_tps
        assert rate is not None
        return rate

    @property
    def speedup(self) -> float | None:
        """Against plain decoding, when both were measured."""
        return self.spec_tps / self.plain_tps if self.spec_tps and self.plain_tps else None


@dataclass(frozen=True, slots=True)
class PairPlan:
    """A pair under one set of settings and devices."""

    name: str
    target: str
    """Name of the target in the catalogue, or its file."""
    draft: str | None
    """The same of the companion; None when nothing but the target is loaded."""
    method: str
    fit: Fit
    bytes: tuple[PlanItem, ...]
    """(term, device, bytes); `backend context` and `reserve` are what is kept free, not allocated."""
    total_bytes: int
    """Everything the pair allocates on all devices."""
    n_ctx: int
    kv: tuple[str, str]
    largest_ctx: int
    """Longest context that still loads whole; 0 = none, or unknown."""
    gpu_layers: int
    n_layers: int
    """Layers that could go to an accelerator, the output included."""
    license: str | None
    gated: bool
    """True when the target or the draft needs an accepted licence and a token."""
    state: State
    evidence: tuple[Evidence, ...]
    source: Source
    """Where the figures come from."""
    estimated: bool
    """True when bytes per block were derived, not read: show `~`."""
    simulated: bool
    """True when compared with `--budget`: show `SIM`."""
    compared_with: str
    """`GPU`, `CPU` (available RAM), `SIM`, or empty when there was nothing to compare with."""
    devices: tuple[DeviceUse, ...]
    download_bytes: int | None
    """Size of all files; None when one of them is unknown."""
    reason: str | None = None
    """Why the fit is unknown, in one sentence."""
    tuned: TunedSetting | None = None
    """Where `auto` starts here."""
    speed: MeasuredSpeed | None = None
    """What it did on this machine; None before its first reply, and for a simulated card."""
    suggestions: tuple[Suggestion, ...] = ()
    """What would make it fit; only with detail."""
    verdict: Verdict | None = None
    """Whether the draft belongs to the target; only with detail, and when both headers are at hand."""
    notes: tuple[str, ...] = ()
    """What could not be looked at, in sentences; only with detail."""
    explain: tuple[str, ...] = ()
    """The arithmetic, line by line; only with detail."""

    @property
    def verdict_text(self) -> str | None:
        """The verdict and its first reason, in one line."""
        if self.verdict is None:
            return None
        return ": ".join((self.verdict.text, *self.verdict.reasons[:1]))

    @property
    def speed_text(self) -> str | None:
        """The measured speed in one line, marked as measured; None before it was."""
        speed = self.speed
        if speed is None:
            return None
        texts = [f"✓ {rate_text(speed.tps)} tok/s ({rate_text(speed.low)}–{rate_text(speed.high)})"]
        if speed.speedup is not None and speed.plain_tps is not None:
            texts.append(f"{speed.speedup:.2f}× plain ({rate_text(speed.plain_tps)} tok/s)")
        replies = "the last reply" if speed.replies == 1 else f"the last {speed.replies} replies"
        return ", ".join([*texts, f"by {speed.method}, {replies} on this machine"])

    @property
    def gain(self) -> tuple[float, float] | None:
        """Published speed-up, lowest and highest; measured elsewhere, so show `~`."""
        gains = [evidence.gain for evidence in self.evidence if evidence.gain]
        return (min(low for low, _ in gains), max(high for _, high in gains)) if gains else None

    @property
    def needed_text(self) -> str:
        """`~21.3 GiB`, with the mark of an estimate; `–` when no byte is known."""
        about = "~" if self.estimated else ""
        return f"{about}{self.total_bytes / 2**30:.1f} GiB" if self.total_bytes else "–"

    def to_record(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        items = [{"term": i.term, "device": i.device, "bytes": i.size_bytes} for i in self.bytes]
        return {
            "name": self.name,
            "target": self.target,
            "draft": self.draft,
            "method": self.method,
            "fit": self.fit,
            "bytes": items,
            "total_bytes": self.total_bytes,
            "largest_ctx": self.largest_ctx,
            "gpu_layers": self.gpu_layers,
            "n_layers": self.n_layers,
            "n_ctx": self.n_ctx,
            "kv": list(self.kv),
            "license": self.license,
            "gated": self.gated,
            "state": self.state,
            "evidence": [asdict(evidence) for evidence in self.evidence],
            "measured_speed": asdict(self.speed) if self.speed else None,
            "tuned": asdict(self.tuned) if self.tuned else None,
            "source": self.source,
            "estimated": self.estimated,
            "simulated": self.simulated,
            "compared_with": self.compared_with,
            "devices": [asdict(device) for device in self.devices],
            "download_bytes": self.download_bytes,
            "reason": self.reason,
            "suggestions": [asdict(suggestion) for suggestion in self.suggestions],
            "verdict": {"text": self.verdict.text, **asdict(self.verdict)} if self.verdict else None,
            "notes": list(self.notes),
        }
