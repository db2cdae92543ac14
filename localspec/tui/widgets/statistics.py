"""The statistics pane (F8): curves over time, acceptance by position, lengths, counts, memory."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Sparkline, Static

from localspec.engine.stats import Stats
from localspec.interfaces import SessionInfo
from localspec.tui.live import Live
from localspec.tui.memory import DeviceUse, device_uses
from localspec.tui.status import GIB, percent, speedup_text
from localspec.tui.widgets.bars import MemoryPart, curve, histogram, memory_bar

CURVE_S = 60
MEMORY_STYLES = (
    ("target", "$primary", "█"), ("draft", "$success", "▓"), ("KV", "$warning", "▒"),
    ("buffers", "$secondary", "░"),
)  # fmt: skip


class StatisticsPane(VerticalScroll):
    """Shows a `Live`; `show` it again whenever it changed."""

    HELP = (
        "Statistics. Acceptance is accepted / tested: a draft token behind the first rejection of its round "
        "is not tested. The position curve shows acceptance by place in the draft, the histogram how many "
        "draft tokens a round gave. Draft share is the part of the decode time spent drafting."
    )

    def compose(self) -> ComposeResult:
        for name, title in (("rate", "tok/s, last minute"), ("acceptance", "acceptance, last minute")):
            yield Static(title, classes="heading", markup=False)
            yield Sparkline([], id=f"{name}-curve")
        yield Static("this reply", classes="heading", markup=False)
        yield Static(id="counts")
        yield Static("acceptance by draft position", classes="heading", markup=False)
        yield Static(id="positions")
        yield Static("accepted tokens per round", classes="heading", markup=False)
        yield Static(id="lengths")
        yield Static("memory", classes="heading", markup=False)
        yield Static(id="memory")

    def show(self, live: Live, info: SessionInfo | None) -> None:
        """Draw the numbers as they are now."""
        width = max(10, self.scrollable_content_region.width)
        for name, data in (
            ("rate", live.rate_curve(CURVE_S)),
            ("acceptance", live.acceptance_curve(CURVE_S)),
        ):
            self.query_one(f"#{name}-curve", Sparkline).data = data
        stats = live.stats
        lines = count_lines(live) + ([f"tuned     {info.tuned.text}"] if info and info.tuned else [])
        self.query_one("#counts", Static).update(Content("\n".join(lines)))
        self.query_one("#positions", Static).update(curve(_by_position(stats), width))
        self.query_one("#lengths", Static).update(histogram(stats.accepted_lengths, width))
        uses = device_uses(info) if info else []
        memory = [line for use in uses for line in _memory_lines(use, width)]
        self.query_one("#memory", Static).update(
            Content("\n").join(memory) if memory else Content("not known before a model is loaded")
        )


def count_lines(live: Live) -> list[str]:
    """What is a number rather than a picture, one per line."""
    stats, total = live.stats, live.total
    rejected, unused = stats.tested - stats.accepted, stats.drafted - stats.tested
    speedup = live.speedup()
    per_round = stats.summary().tokens_per_round
    lines = [
        f"decode    {_number(live.tps, 'tok/s')}",
        f"  plain   {_number(speedup.plain_tps if speedup else None, 'tok/s')}",
        f"  spec    {_number(speedup.speculative_tps if speedup else None, 'tok/s')}",
        f"speed-up  {speedup_text(speedup)} plain",
        f"prefill   {_number(live.summary.prefill_tps if live.summary else None, 'tok/s')}",
        f"1st token {_number(live.first_token_s, 's')}",
        f"drafted   {stats.drafted}",
        f"accepted  {stats.accepted}",
        f"rejected  {rejected}",
        f"untested  {unused}",
        f"of tested {_share(stats.accepted, stats.tested)}",
        f"of drafts {_share(stats.accepted, stats.drafted)}",
        f"per round {'–' if per_round is None else f'{per_round:.2f}'} tokens",
        f"drafting  {_share(stats.draft_s, stats.decode_s)} of time",
        f"session   {total.completion_tokens} tokens",
        f"          {_share(total.accepted, total.tested)} of tested",
    ]
    if stats.methods:
        lines.append(f"methods   {', '.join(stats.methods)}")
    return lines


def _by_position(stats: Stats) -> list[float | None]:
    accepted = [*stats.accepted_at, *[0] * (len(stats.tested_at) - len(stats.accepted_at))]
    return [a / t if t else None for a, t in zip(accepted, stats.tested_at, strict=True)]


def _memory_lines(use: DeviceUse, width: int) -> list[Content]:
    sizes = (use.target, use.draft, use.kv, use.buffers)
    parts = [
        MemoryPart(name, size, style, fill)
        for (name, style, fill), size in zip(MEMORY_STYLES, sizes, strict=True)
    ]
    lines = [
        Content(f"{use.label} {use.name}: {use.used / GIB:.2f} of {use.total / GIB:.1f} GiB"),
        memory_bar(parts, use.total, width),
    ]
    lines += [
        Content.assemble((part.fill, part.style), f" {part.name} {part.size_bytes / GIB:.2f} GiB")
        for part in parts
    ]
    return [*lines, Content.assemble(("·", "$text-muted"), f" free {use.free / GIB:.2f} GiB")]


def _number(value: float | None, unit: str) -> str:
    return f"– {unit}" if value is None else f"{value:.1f} {unit}"


def _share(above: float, below: float) -> str:
    return percent(above / below) if below else "–"
