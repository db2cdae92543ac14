"""`localspec chat --plain`: a reply streamed to stdout, or a dialogue where stdin is a terminal.

Text or JSON Lines go to stdout; notices and the numbers of the reply go to stderr.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass, replace
from typing import Any

from localspec.engine.events import Done, Event, Notice, Prefill, Text, Token
from localspec.engine.settings import Message, Request
from localspec.engine.stats import Summary
from localspec.errors import INTERRUPTED
from localspec.interfaces import Reply, SessionInfo, SessionLike
from localspec.output import Output, Progress

FAILED = 1


def run_plain(
    session: SessionLike,
    request: Request,
    prompt: str | None,
    out: Output,
    *,
    ask: Callable[[], str] | None = None,
) -> int:
    """Answer `prompt`, then go on asking while `ask` is given; returns the exit code.

    Args:
        request: everything but the user's messages; its own messages (a system prompt) come first.
        prompt: the first user message, or None to ask for it.
        ask: reads the user's next message; raises EOFError at the end of the dialogue.
    """
    if out.json:
        out.record({"event": "run", **run_record(session.info, request)})
    messages = request.messages
    while True:
        if prompt is None:
            if ask is None:
                return 0
            try:
                prompt = ask()
            except EOFError:
                return 0
            if not prompt.strip():
                prompt = None
                continue
        messages = (*messages, Message("user", prompt))
        text, done = answer(session, replace(request, messages=messages), out)
        messages = (*messages, Message("assistant", text))
        if ask is None:
            return exit_code(done)
        prompt = None


def answer(session: SessionLike, request: Request, out: Output) -> tuple[str, Done]:
    """One reply to stdout; Ctrl+C ends it and keeps what was said."""
    reply = session.reply(request)
    text, done, wrote = "", None, False
    later: list[Notice] = []
    with _cancels(reply), out.progress("reading the prompt", unit="tokens") as progress:
        for event in reply:
            if out.json:
                out.record(event_record(event))
            if isinstance(event, Token | Text):
                if event.channel == "content":
                    text += event.text
                if not out.json and event.text and (event.channel == "content" or out.out_is_terminal):
                    out.text(event.text)
                    wrote = True
            elif isinstance(event, Done):
                done = event
            elif isinstance(event, Notice) and wrote and out.out_is_terminal:
                later.append(event)  # both streams end on this screen: it would stand inside the text
            else:
                _narrate(event, out, progress)
    assert done is not None
    if wrote and not text.endswith("\n"):
        out.line()
    for notice in later:
        _tell(notice, out)
    if done.reason == "error":
        out.error(done.error or "the reply failed")
    if not out.json:
        out.note(stats_line(done.summary))
        if done.reason in ("length", "context"):
            what = "max_tokens was reached" if done.reason == "length" else "the context is full"
            out.note(f"the reply was cut: {what}")
    return text, done


def _narrate(event: Event, out: Output, progress: Progress) -> None:
    if isinstance(event, Prefill):
        progress.update(event.done)
    elif isinstance(event, Notice) and not out.json:
        _tell(event, out)


def _tell(notice: Notice, out: Output) -> None:
    if notice.kind in ("alarm", "off"):
        out.warn(f"speculation {notice.kind}: {notice.reason}")
    else:
        out.note(f"speculation {notice.kind}: {notice.reason}" if notice.kind != "info" else notice.reason)


@contextmanager
def _cancels(reply: Reply) -> Iterator[None]:
    """Ctrl+C cancels the reply instead of killing it half-way; a second one gets through."""

    def cancel(number: int, frame: Any) -> None:
        reply.cancel()
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, cancel)
    except ValueError:  # not the main thread: the caller cancels
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def exit_code(done: Done) -> int:
    """What a script run returns for a reply's end."""
    return {"error": FAILED, "cancelled": INTERRUPTED}.get(done.reason, 0)


def event_record(event: Event) -> dict[str, Any]:
    """An event as one JSON object; bytes become text."""
    values = asdict(event) if is_dataclass(event) else {}
    for key, value in list(values.items()):
        if isinstance(value, bytes):
            values[key] = value.decode("utf-8", errors="replace")
        elif key == "top_pieces":
            values[key] = [piece.decode("utf-8", errors="replace") for piece in value]
    return {"event": type(event).__name__.lower(), **values}


def run_record(info: SessionInfo, request: Request) -> dict[str, Any]:
    """Every setting a run was made with, so that a result can be repeated."""
    asked = {k: v for k, v in asdict(request).items() if k not in ("messages", "prompt")}
    return {
        "pair": info.pair,
        "target": info.target,
        "drafts": list(info.drafts),
        "build": info.build,
        "starts_from": asdict(tuned) if (tuned := info.start_of(request.speculation)) is not None else None,
        "load": asdict(info.effective),
        **asked,
        "system": next((m.content for m in request.messages if m.role == "system"), None),
    }


def stats_line(summary: Summary) -> str:
    """The numbers of a reply in one line."""
    parts = [f"{summary.completion_tokens} tokens"]
    if summary.decode_tps is not None:
        parts.append(f"{summary.decode_tps:.1f} tok/s")
    if summary.speedup is not None:
        parts.append(f"{summary.speedup:.2f}× plain")
    if summary.accept_per_tested is not None and summary.accept_per_drafted is not None:
        tested = f"{summary.tested} tested ({100 * summary.accept_per_tested:.0f} %)"
        drafted = f"{summary.drafted} drafted ({100 * summary.accept_per_drafted:.0f} %)"
        parts.append(f"accepted {summary.accepted} of {tested}, of {drafted}")
    else:
        parts.append("nothing was drafted")
    if summary.tokens_per_round is not None:
        parts.append(f"{summary.tokens_per_round:.2f} tokens/round")
    if summary.prefill_tps is not None:
        reused = f"{summary.reused_tokens} reused, {summary.prefill_tps:.0f} tok/s"
        parts.append(f"prompt {summary.prompt_tokens} ({reused})")
    if summary.first_token_s is not None:
        parts.append(f"first token {summary.first_token_s:.2f} s")
    return " · ".join(parts)
