"""The lower half of the picker: one pair in full. Every figure is a word and a number; colour only helps."""

from __future__ import annotations

from collections.abc import Iterator

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localspec.catalog import Evidence, ModelFile
from localspec.tui.picking.rows import GIB, Row, fit_text, span
from localspec.tui.picking.usage import Usage, usages
from localspec.tui.text import one_line
from localspec.tui.widgets.bars import MemoryPart, memory_bar

STYLES = {
    "target weights": ("$primary", "█"), "target KV": ("$warning", "▒"), "draft weights": ("$success", "▓"),
    "draft KV": ("$accent", "▚"), "buffers": ("$secondary", "░"), "reserve": ("$text-muted", "╱"),
}  # fmt: skip
LIMIT = 400


class PairDetail(VerticalScroll):
    """Shows one row; `show` it again whenever it changed."""

    HELP = (
        "One pair: what it takes of each device (weights and KV cache of target and draft, buffers, "
        "reserve), whether the draft belongs to the target, what others measured and where they say so. "
        "SIM marks memory that is simulated; ~ marks an estimate."
    )

    def compose(self) -> ComposeResult:
        yield Static(id="picker-detail-text", markup=False)

    def show(self, row: Row | None, empty: str = "") -> None:
        """Draw a row, or say why there is none."""
        width = max(20, self.size.width - 3)
        content = Content("\n").join(detail(row, width)) if row else Content(empty)
        self.query_one("#picker-detail-text", Static).update(content)


def detail(row: Row, width: int) -> Iterator[Content]:
    """All lines about a pair.

    Args:
        width: cells of a line.
    """
    plan = row.plan
    badge = Content.styled(" SIM ", "bold reverse") + " " if plan.simulated else Content("")
    yield Content.assemble(
        (one_line(row.name, 60), "bold"), "  ", badge, fit_text(plan), " · ", plan.needed_text
    )
    for usage in usages(plan):
        yield from _device(usage, width, about="~" if plan.estimated else "")
    if plan.fit == "unknown":
        yield Content(one_line(plan.reason or "nothing is known of its memory", LIMIT))
    yield from _settings(row)
    for suggestion in plan.suggestions:
        yield Content(f"would help: {suggestion.text}")
    if plan.verdict_text:
        yield Content("draft: " + one_line(plan.verdict_text, LIMIT))
        yield from (
            Content("  " + one_line(text, LIMIT)) for text in (plan.verdict.warnings if plan.verdict else ())
        )
    yield from _files(row)
    if plan.speed_text:
        yield Content("measured: " + one_line(plan.speed_text, LIMIT))
    for evidence in plan.evidence:
        yield Content(one_line(_evidence(evidence), LIMIT))
    notes = [row.pair.note, *(file.note for file in row.pair.files)]
    yield from (Content("note: " + one_line(note, LIMIT)) for note in notes if note)
    if row.pair.experimental:
        yield Content("experimental: nobody has shown yet that it pays")
    if row.transfer and row.transfer.remark:
        yield Content(f"{row.transfer.state}: " + one_line(row.transfer.remark, LIMIT))


def _device(usage: Usage, width: int, about: str) -> Iterator[Content]:
    device = usage.device
    if not device.total_bytes:  # the host beside a simulated card: nobody said how much it has
        held = ", ".join(f"{term} {about}{_gib(size)}" for term, size in usage.terms)
        yield Content(f"RAM beside it: {held}")
        return
    parts = [MemoryPart(term, size, *STYLES[term]) for term, size in usage.terms]
    others = MemoryPart("in use", usage.others, "$text-muted", "#")
    scale = max(device.total_bytes, usage.others + usage.taken)
    label = "RAM" if device.kind == "cpu" else "VRAM"
    rest = f"{abs(usage.free) / GIB:.1f} GiB {'free' if usage.free >= 0 else 'too much'}"
    sim = "SIM " if device.simulated else ""
    yield Content(f"{sim}{label} {device.name} {device.total_bytes / GIB:.1f} GiB: {about}{rest}")
    shown = [others, *parts] if usage.others else parts
    yield memory_bar(shown, scale, width)
    legend = [
        Content.assemble((part.fill, part.style), f" {part.name} {about}{_gib(part.size_bytes)}")
        for part in shown
    ]
    yield from _wrapped([*legend, Content.assemble(("·", "$text-muted"), " free")], width)


def _wrapped(pieces: list[Content], width: int) -> Iterator[Content]:
    """Pieces side by side, never cut in the middle."""
    line = Content("")
    for piece in pieces:
        if line and line.cell_length + 3 + piece.cell_length > width:
            yield line
            line = Content("")
        line = line + "   " + piece if line else piece
    yield line


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / (1 << 20):.0f} MiB"


def _settings(row: Row) -> Iterator[Content]:
    plan = row.plan
    layers = f"{plan.gpu_layers} of {plan.n_layers} layers on the GPU"
    where = "on the CPU" if plan.compared_with in ("CPU", "") else layers
    longest = f", longest that fits {plan.largest_ctx}" if plan.largest_ctx else ""
    kv = "/".join(dict.fromkeys(plan.kv))
    yield Content(
        f"ctx {plan.n_ctx}{longest} · KV {kv} · {where} · drafts by {plan.method} · from: {plan.source}"
    )


def _files(row: Row) -> Iterator[Content]:
    for role, model in (
        ("target", row.pair.target),
        *(("draft", d.model) for d in row.pair.drafters if d.model),
    ):
        yield Content(f"{role}: " + one_line(_file(model), LIMIT))


def _file(model: ModelFile) -> str:
    about = "" if model.size_exact else "~"
    size = "size unknown" if model.size_bytes is None else about + _gib(model.size_bytes)
    gated = "gated: accept it on the hub" if model.gated else None
    licence = f"licence {model.license or 'not stated'}"
    return " · ".join(part for part in (model.source, model.quant, size, licence, gated) if part)


def _evidence(evidence: Evidence) -> str:
    accepted = evidence.acceptance and span(*evidence.acceptance, "{:.0%}")
    parts = [
        f"accepted {accepted}" if accepted else "",
        f"speed-up {span(*evidence.gain, '{:.2f}')}×" if evidence.gain else "",
        f"{span(*evidence.spec_tps, '{:.0f}')} tok/s" if evidence.spec_tps else "",
        f"plain {span(*evidence.plain_tps, '{:.0f}')} tok/s" if evidence.plain_tps else "",
        f"k {evidence.k}" if evidence.k else "",
        evidence.note or "",
    ]
    said = ", ".join(part for part in parts if part) or "mentioned"
    where = "hardware not stated" if evidence.hardware == "not stated" else f"on {evidence.hardware}"
    return f"reported: {said}, {where} ({evidence.source})"
