"""A bar chart with whiskers as SVG text. Knows nothing of what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
"""Paul Tol's bright scheme: told apart by colour-blind readers too."""
_HEIGHT, _BAR, _GAP, _TOP, _LEFT, _BOTTOM = 260, 14, 18, 56, 52, 46


@dataclass(frozen=True, slots=True)
class Bar:
    """One measured value; `low` and `high` end its whisker."""

    series: str
    value: float
    low: float
    high: float


def bar_chart(title: str, unit: str, groups: Sequence[tuple[str, Sequence[Bar]]], line: float | None) -> str:
    """Groups of bars side by side.

    Args:
        line: a value to draw across the chart, such as 1 for "as fast as plain".
    """
    series = list(dict.fromkeys(bar.series for _, bars in groups for bar in bars))
    top = max([bar.high for _, bars in groups for bar in bars] + [line or 0.0, 1e-9]) * 1.05
    spans = [max(len(bars), 1) * _BAR + _GAP for _, bars in groups]
    width = max(_LEFT + sum(spans) + _GAP, 120 + 110 * len(series), 360)

    def y(value: float) -> float:
        return round(_TOP + _HEIGHT * (1 - value / top), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_TOP + _HEIGHT + _BOTTOM}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for i, name in enumerate(series):
        x = _LEFT + 110 * i
        parts.append(f'<rect x="{x}" y="28" width="10" height="10" fill="{_colour(i)}"/>')
        parts.append(f'<text x="{x + 14}" y="37">{escape(name)}</text>')
    for step in range(5):
        value = top * step / 4
        parts.append(f'<path d="M{_LEFT} {y(value)}H{width}" stroke="#e0e0e0"/>')
        parts.append(f'<text x="{_LEFT - 4}" y="{y(value) + 4}" text-anchor="end">{value:.2f}</text>')
    parts.append(f'<text x="6" y="{_TOP - 6}">{escape(unit)}</text>')
    x = _LEFT + _GAP // 2
    for (label, bars), span in zip(groups, spans, strict=True):
        for i, bar in enumerate(bars):
            left = x + i * _BAR
            parts.append(
                f'<rect x="{left}" y="{y(bar.value)}" width="{_BAR - 3}" '
                f'height="{round(y(0) - y(bar.value), 1)}" fill="{_colour(series.index(bar.series))}">'
                f"<title>{escape(f'{label} {bar.series}: {bar.value:.2f} {unit}')}</title></rect>"
            )
            middle = left + (_BAR - 3) / 2
            parts.append(f'<path d="M{middle} {y(bar.low)}V{y(bar.high)}" stroke="black"/>')
        parts.append(
            f'<text x="{x + (span - _GAP) / 2}" y="{_TOP + _HEIGHT + 16}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
        x += span
    if line is not None:
        parts.append(f'<path d="M{_LEFT} {y(line)}H{width}" stroke="black" stroke-dasharray="4 3"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]
