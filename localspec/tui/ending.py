"""The note below a finished reply: how it ended and what it cost, in one line."""

from __future__ import annotations

from localspec.engine.events import Done, DoneReason
from localspec.tui.speed import SpeedUp
from localspec.tui.status import percent, speedup_text
from localspec.tui.text import one_line

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
    parts = [ending, f"{summary.completion_tokens} tokens"]
    if summary.decode_tps is not None:
        parts.append(f"{summary.decode_tps:.1f} tok/s")
    if speedup is not None and summary.drafted:
        parts.append(f"{speedup_text(speedup)} plain")
    if summary.paused_at_token is not None:
        parts.append(f"paused after {summary.paused_at_token}")
    if summary.accept_per_tested is not None:
        parts.append(f"{percent(summary.accept_per_tested)} of {summary.tested} tested drafts")
    if summary.first_token_s is not None:
        parts.append(f"{summary.first_token_s:.1f} s to the first token")
    return " · ".join(part for part in parts if part)
