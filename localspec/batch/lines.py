"""Reads a batch: OpenAI Batch JSONL, or one prompt per line.

What is not JSON at all stops the run before it starts, because the file is not what it seems; a line that
is JSON but no request becomes an item with a fault, whose result is that fault.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

import pydantic_core

from localspec.api.faults import Fault
from localspec.errors import UsageError

Format = Literal["auto", "jsonl", "lines"]
FORMATS: tuple[Format, ...] = ("auto", "jsonl", "lines")
CHAT_URL = "/v1/chat/completions"
COMPLETION_URL = "/v1/completions"
URLS = (CHAT_URL, COMPLETION_URL)
ID_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class Item:
    """One request of the batch."""

    index: int
    """0-based place in the output."""
    custom_id: str
    url: str
    body: dict[str, Any]
    key: str
    """Names the request by its content: equal in every run over the same input."""
    fault: Fault | None = None
    """What is wrong with the line, when it cannot be asked."""


def read_items(data: bytes, name: str, format: Format = "auto") -> list[Item]:
    """The requests in `data`, in order; blank lines are skipped.

    Args:
        data: The whole input.
        name: What to call it in errors.
        format: `auto` takes JSONL for files called so and for inputs whose first line is a batch request.

    Raises:
        UsageError: not UTF-8, a JSONL line that is not a JSON object, an id used twice, or no request.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"`{name}` is not UTF-8 text at line {line}") from error
    # Not splitlines(): a prompt may hold a form feed or a line separator.
    lines = [(n, line.rstrip("\r")) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise UsageError(f"`{name}` holds no request")
    if format == "auto":
        jsonl = name.endswith((".jsonl", ".ndjson")) or _is_request(lines[0][1])
        format = "jsonl" if jsonl else "lines"
    if format == "lines":
        return [_prompt(index, n, line) for index, (n, line) in enumerate(lines)]
    items = [_request(index, n, line, name) for index, (n, line) in enumerate(lines)]
    _refuse_twins(items, [n for n, _ in lines], name)
    return items


def _is_request(line: str) -> bool:
    try:
        first = pydantic_core.from_json(line)
    except ValueError:
        return False
    return isinstance(first, dict) and ("body" in first or "custom_id" in first)


def _prompt(index: int, number: int, line: str) -> Item:
    return _item(index, f"line-{number}", CHAT_URL, {"messages": [{"role": "user", "content": line}]})


def _request(index: int, number: int, line: str, name: str) -> Item:
    try:
        value = pydantic_core.from_json(line, allow_inf_nan=False)
    except ValueError as error:
        raise UsageError(
            f"`{name}` line {number} is not JSON: {error}",
            hint="one JSON object per line; plain prompts need `--format lines`",
        ) from error
    if not isinstance(value, dict):
        raise UsageError(f"`{name}` line {number} is not a JSON object")
    custom_id = value.get("custom_id", f"line-{number}")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= ID_CHARS:
        fault = _wrong("custom_id", f"`custom_id` is a text of 1 to {ID_CHARS} characters")
        return _item(index, f"line-{number}", CHAT_URL, {"line": value}, fault)
    url, body = value.get("url", CHAT_URL), value.get("body")
    if value.get("method", "POST") != "POST":
        return _item(index, custom_id, CHAT_URL, {"line": value}, _wrong("method", "`method` must be POST"))
    if url not in URLS:
        return _item(
            index, custom_id, CHAT_URL, {"line": value}, _wrong("url", f"`url` must be {' or '.join(URLS)}")
        )
    if not isinstance(body, dict):
        return _item(index, custom_id, url, {"line": value}, _wrong("body", "`body` must be a JSON object"))
    return _item(index, custom_id, url, body)


def _wrong(param: str, message: str) -> Fault:
    return Fault(400, "invalid_request_error", message, param, "invalid_batch_line")


def _item(index: int, custom_id: str, url: str, body: dict[str, Any], fault: Fault | None = None) -> Item:
    content = json.dumps([custom_id, url, body], ensure_ascii=True, sort_keys=True)
    return Item(index, custom_id, url, body, hashlib.sha256(content.encode()).hexdigest()[:32], fault)


def _refuse_twins(items: list[Item], numbers: list[int], name: str) -> None:
    seen: dict[str, int] = {}
    for item, number in zip(items, numbers, strict=True):
        if (earlier := seen.setdefault(item.custom_id, number)) != number:
            raise UsageError(
                f"`{name}` uses the custom_id `{item.custom_id[:60]}` in lines {earlier} and {number}"
            )
