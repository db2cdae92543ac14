"""Errors as the OpenAI API words them: status, type, offending parameter and code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localspec.api.replies import ErrorDetail, ErrorReply
from localspec.errors import (
    LocalspecError,
    OutsideError,
    PromptTooLongError,
    UsageError,
)


class BodyError(UsageError):
    """One field of a request body is wrong."""

    def __init__(
        self, message: str, *, hint: str | None = None, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.param = param
        self.code = code


NO_FIELD = frozenset({"body", "str", "int", "float", "bool"})
"""Parts of pydantic's error locations that name a branch of a union, like the types in brackets."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failed request as a client sees it."""

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None

    def reply(self) -> ErrorReply:
        return ErrorReply(
            error=ErrorDetail(message=self.message, type=self.kind, param=self.param, code=self.code)
        )


def fault_of(error: LocalspecError) -> Fault:
    """The wire form of an error: 400 for what the client can change, 5xx for what it cannot."""
    message = f"{error.message}; {error.hint}" if error.hint else error.message
    if isinstance(error, BodyError):
        return Fault(400, "invalid_request_error", message, error.param, error.code)
    if isinstance(error, PromptTooLongError):
        return Fault(400, "invalid_request_error", message, "messages", "context_length_exceeded")
    if isinstance(error, UsageError):
        return Fault(400, "invalid_request_error", message)
    return Fault(503 if isinstance(error, OutsideError) else 500, "server_error", message)


def validation_fault(errors: Sequence[Any]) -> Fault:
    """The most specific of pydantic's complaints about a body, with the path of the field it is about.

    `errors` are items as `ValidationError.errors()` gives them; the location may start with `body`.
    """
    # A value that fits no branch of a union is complained about once for each; the deepest says most.
    first = max(errors, key=lambda error: len(error["loc"]))
    path = ""
    for part in first["loc"]:
        if part in NO_FIELD or (isinstance(part, str) and not part.isidentifier()):
            continue
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    message = str(first["msg"])
    return Fault(
        400, "invalid_request_error", f"`{path}`: {message}" if path else message, path or None, first["type"]
    )
