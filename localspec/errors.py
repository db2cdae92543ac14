"""Every error a user can meet, with its exit code and the next step.

    LocalspecError (1)
    ├── UsageError (2)          bad option, key, value, malformed TOML / JSONL
    │   └── PromptTooLongError (2)  the prompt does not fit the context
    ├── ModelFileError (1)      missing, unreadable, not GGUF, truncated
    ├── PairingError (1)        the draft does not belong to the target
    ├── EngineError (1)         load, decode or worker failure
    ├── OutsideError (3)        network, hub 5xx, rate limit, timeout: worth retrying
    ├── DoesNotFitError (4)     memory or disk budget
    └── PermissionDeniedError (5)  gated repository, missing or rejected token

Messages are one sentence without a full stop that names the file, key or value; `hint` is the next step.
The command line prints `error: <message>` and, when present, `hint: <hint>` on stderr.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LocalspecError(Exception):
    """Base class; `exit_code` is what the process returns when nobody handles it."""

    exit_code: int = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross the worker pipe, so keyword-only fields must survive pickling.
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[LocalspecError], message: str, hint: str | None) -> LocalspecError:
    return kind(message, hint=hint)


class UsageError(LocalspecError):
    """The request itself is wrong: unknown name, bad value, prompt longer than the context."""

    exit_code = 2


class PromptTooLongError(UsageError):
    """The prompt is longer than the context; programs shorten the conversation and try again."""


class ModelFileError(LocalspecError):
    """A model file is missing, unreadable, not GGUF or truncated."""


class PairingError(LocalspecError):
    """The draft cannot speculate for this target."""


class EngineError(LocalspecError):
    """Loading, decoding or the worker process failed."""


class OutsideError(LocalspecError):
    """A cause outside this machine that may go away by itself."""

    exit_code = 3


class DoesNotFitError(LocalspecError):
    """The plan exceeds the memory or disk budget."""

    exit_code = 4


class PermissionDeniedError(LocalspecError):
    """Gated repository, missing token, or a token without access."""

    exit_code = 5


INTERRUPTED = 130
"""Exit code after Ctrl+C in a script run."""


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `word`, or None when none is close."""
    matches = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.5)
    return matches[0] if matches else None


def unknown(kind: str, word: str, candidates: Iterable[str]) -> UsageError:
    """A `UsageError` for a name that is not in `candidates`, hinting at the nearest one."""
    known = sorted(candidates)
    close = nearest(word, known)
    hint = f"did you mean `{close}`?" if close else f"known: {', '.join(known)}" if known else None
    return UsageError(f"unknown {kind} `{word}`", hint=hint)
