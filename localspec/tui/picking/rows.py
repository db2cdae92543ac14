"""The rows of the picker: what a pair's plan says in a few words, in which order, and which rows match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from localspec.budget import Fit
from localspec.catalog import Catalog, Pair
from localspec.planning import SYMBOLS, PairPlan, State
from localspec.planning.result import rate_text
from localspec.tui.picking.downloads import Transfer
from localspec.tui.text import one_line

GIB = 1 << 30
FIT_ORDER: tuple[Fit, ...] = ("fits", "tight", "partial", "unknown", "too big")
NAME_WIDTH = 30
STATES: dict[State, str] = {
    "installed": "installed", "partial download": "in part", "not downloaded": "–"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One pair as listed."""

    plan: PairPlan
    pair: Pair
    transfer: Transfer | None
    default: bool
    """The pair that commands without one use."""

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def installed(self) -> bool:
        return self.plan.state == "installed"

    @property
    def fit(self) -> str:
        """Symbol, word and GiB: `● fits ~17.3 GiB`."""
        return f"{fit_text(self.plan):<9} {self.plan.needed_text:>9}"

    @property
    def state(self) -> str:
        """Where the files are, the download's progress included."""
        if self.transfer is None:
            return "★ default" if self.default and self.installed else STATES[self.plan.state]
        share = self.transfer.share
        known = "" if share is None else f" {100 * share:.0f} %"
        return f"{self.transfer.state}{known}"

    @property
    def sizes(self) -> str:
        """Files of target and draft in GiB."""
        draft = self.pair.draft
        return size_text(self.pair.target.size_bytes) + (f" + {size_text(draft.size_bytes)}" if draft else "")

    @property
    def cells(self) -> tuple[str, ...]:
        """One text per column of `COLUMNS`."""
        plan = self.plan
        return (
            one_line(self.name, NAME_WIDTH), self.fit, speed_text(plan), one_line(self.state, 18),
            plan.method, self.sizes, context_text(plan.largest_ctx),
            one_line(plan.license or "not stated", 18),
        )  # fmt: skip


COLUMNS = ("pair", "fit", "tok/s", "state", "method", "GiB on disk", "longest ctx", "licence")


def fit_text(plan: PairPlan) -> str:
    """The fit word with its mark."""
    return f"{SYMBOLS[plan.fit]} {plan.fit}"


def size_text(n_bytes: int | None) -> str:
    """GiB without the unit; `?` when unknown, never rounded down to nothing."""
    if n_bytes is None:
        return "?"
    return f"{n_bytes / GIB:.2f}" if n_bytes < GIB else f"{n_bytes / GIB:.1f}"


def context_text(tokens: int) -> str:
    """`32k`; `–` when none is known."""
    return "–" if tokens <= 0 else f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)


def span(low: float, high: float, form: str) -> str:
    """`51–60` or, when both read the same, `51`."""
    first, last = form.format(low), form.format(high)
    return first if first == last else f"{first}–{last}"


def speed_text(plan: PairPlan) -> str:
    """Speed measured here, marked `✓`, or published, marked `~` because it was elsewhere; `–` without any."""
    if plan.speed is not None:
        ratio = f" {plan.speed.speedup:.1f}×" if plan.speed.speedup else ""
        return f"✓{rate_text(plan.speed.tps)}{ratio}"
    rates = [evidence.spec_tps for evidence in plan.evidence if evidence.spec_tps]
    if rates:
        return "~" + span(min(low for low, _ in rates), max(high for _, high in rates), "{:.0f}")
    if plan.gain:
        return "~" + span(*plan.gain, "{:.1f}") + "×"
    return "–"


def matching(rows: Iterable[Row], query: str) -> list[Row]:
    """Rows in which every word of the query occurs: in name, files, method, fit, licence or state."""
    words = query.lower().split()
    return [row for row in rows if all(word in _haystack(row) for word in words)]


def _haystack(row: Row) -> str:
    plan = row.plan
    parts = (plan.name, plan.target, plan.draft, plan.method, plan.fit, plan.license, row.state, plan.state)
    return " ".join(part for part in parts if part).lower()


def _by_fit(row: Row) -> tuple[object, ...]:
    return FIT_ORDER.index(row.plan.fit), not row.installed, -(row.pair.target.size_bytes or 0), row.name


def _by_speed(row: Row) -> tuple[object, ...]:
    """Speed-ups measured here before published ones."""
    measured = row.plan.speed.speedup if row.plan.speed else None
    return measured is None, -(measured or (row.plan.gain or (0.0, 0.0))[1]), row.name


ORDERS: dict[str, Callable[[Row], tuple[object, ...]]] = {
    "fit": _by_fit,
    "name": lambda row: (row.name,),
    "memory": lambda row: (row.plan.total_bytes, row.name),
    "longest ctx": lambda row: (-row.plan.largest_ctx, row.name),
    "speed-up": _by_speed,
    "state": lambda row: (row.transfer is None, not row.installed, row.plan.state, row.name),
}
"""How rows may be ordered; the first is where the picker begins: the largest target that fits on top."""


def make_rows(
    catalog: Catalog, plans: Sequence[PairPlan], transfers: Sequence[Transfer], default: str | None
) -> list[Row]:
    """Join plans with the catalogue, the downloads and the user's default."""
    moving = {transfer.name: transfer for transfer in transfers}
    return [
        Row(plan, catalog.pairs[plan.name], moving.get(plan.name), plan.name == default)
        for plan in plans
        if plan.name in catalog.pairs
    ]
