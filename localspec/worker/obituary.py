"""Says in a sentence why a worker ended: exit code or signal, and what it last wrote to the log."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from localspec.errors import EngineError

MEANING = {
    "SIGKILL": "was killed (SIGKILL), most likely because memory ran out",
    "SIGABRT": "aborted inside llama.cpp (SIGABRT)",
    "SIGSEGV": "crashed (SIGSEGV)",
    "SIGBUS": "crashed (SIGBUS), which a model file that shrank or a full disk can cause",
    "SIGILL": "crashed (SIGILL): this llama.cpp build uses instructions that this CPU lacks",
    "SIGTERM": "was ended from outside (SIGTERM)",
}
LOG_FORMAT = "%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ \d+ (?P<level>[A-Z]+) [\w.]+: (?P<message>.*)")
_STOPPED = re.compile(
    r"failed with error 1$|compute status: 1$|removing memory module entries|failed to decode, ret = 2$"
)
"""What llama.cpp complains of when a decode is stopped at the user's wish; it explains no end."""
TAIL_BYTES = 8192
TAIL_LINES = 3
LINE_CHARS = 200
AFTERMATH = ("Fatal Python error", "Current thread 0x", "Thread 0x", "[New LWP", "Extension modules:")
"""What Python's fault handler and a debugger write after the message that matters."""


def describe_exit(code: int) -> str:
    """`was killed (SIGKILL), …` or `ended with exit code 3`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was ended by signal {-code}"
    return MEANING.get(name, f"was ended by {name}")


def last_words(log: Path, since: int) -> str:
    """The last few lines a worker wrote to `log` after byte `since`, joined by ` · `; "" when none."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, 2)
            since = since if size >= since else 0
            stream.seek(max(since, size - TAIL_BYTES))
            if size - TAIL_BYTES > since:
                stream.readline()  # the rest of a line, which shows no level
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(AFTERMATH):
            break
        logged = _LOGGED.match(line)
        if logged and logged["level"] in ("DEBUG", "INFO"):
            continue  # llama.cpp tells what it loads; only its complaints explain an end
        if _STOPPED.search(line):
            continue
        if stripped := (logged["message"] if logged else line).strip():
            lines.append(stripped[:LINE_CHARS])
    return " · ".join(lines[-TAIL_LINES:])


def obituary(what: str, log: Path | None, since: int) -> EngineError:
    """The error for a worker that `what` (`was killed …`); its hint is where the log lies."""
    words = last_words(log, since) if log else ""
    message = f"the model process {what}" + (f": {words}" if words else "")
    return EngineError(
        message, hint=f"load the model again; the log is {log}" if log else "load the model again"
    )
