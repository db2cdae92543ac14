"""The note below a finished reply: how it ended and what it cost, in one line."""

from __future__ import annotations

from localspec.engine.events import Done, DoneReason
from localspec.tui.speed import SpeedUp
from localspec.tui.status import percent, speedup_text
from localspec.tui.text import counted, one_line

ENDINGS: dict[DoneReason, str] = {
    "stop": "",
    "length": "cut at max_tokens, /continue goes on",
    "context": "the context is full",
    "cancelled": "stopped",
}
ERROR_CHARS = 80
"""An error's beginning is enough here: all of it is shown above the prompt."""


def note_of(done: Done, speedup: SpeedUp | None) -> str:
    """`128 tokens · 41.2 tok/s · 2.1× plain · 68 % of 93 tested drafts · 0.3 s to the first token`."""
    summary = done.summary
    ending = one_line(done.error or "", ERROR_CHARS) if done.reason == "error" else ENDINGS[done.reason]
    parts = [ending, counted(summary.completion_tokens, "token")]
    if summary.decode_tps is not None:
        parts.append(f"{summary.decode_tps:.1f} tok/s")
    if speedup is not None and summary.drafted:
        parts.append(f"{speedup_text(speedup)} plain")
    if summary.paused_at_token is not None:
        parts.append(f"paused after {summary.paused_at_token}")
    if summary.accept_per_tested is not None:
        parts.append(f"{percent(summary.accept_per_tested)} of {counted(summary.tested, 'tested draft')}")
    if summary.first_token_s is not None:
        parts.append(f"{wait(summary.first_token_s)} to the first token")
    return " · ".join(part for part in parts if part)


def wait(seconds: float) -> str:
    """`84 ms`, `1.3 s`."""
    return f"{1000 * seconds:.0f} ms" if seconds < 0.995 else f"{seconds:.1f} s"
