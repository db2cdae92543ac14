"""Turn a TOML value, or the text of an environment variable, into a setting's value.

Each parser returns the value or raises `ValueError` with what it must be; the caller adds the place.
Knows nothing of files or of what the settings are for.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from localspec.errors import nearest
from localspec.tomlfile import kind_of, shortened

Parser = Callable[[object], Any]

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_BIAS = re.compile(r"(\d{1,9})(\+\d{1,6}(?:\.\d{1,6})?|-\d{1,6}(?:\.\d{1,6})?|-inf)")


def whole(low: int, high: int = 2**31 - 1) -> Parser:
    """A whole number in a range; without an upper end, what llama.cpp's 32 bits hold."""

    def parse(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be a whole number, not {kind_of(value)}")
        if not low <= value <= high:
            raise ValueError(f"must be between {low} and {high}")
        return value

    return parse


def auto_or(low: int, high: int = 2**31 - 1) -> Parser:
    """`"auto"` (None) or a whole number in a range."""
    number_of = whole(low, high)

    def parse(value: object) -> int | None:
        if value == "auto":
            return None
        if isinstance(value, str):
            raise ValueError('must be "auto" or a whole number')
        return int(number_of(value))

    return parse


def number(low: float = -math.inf, high: float = math.inf) -> Parser:
    """A finite number in a range, both ends included."""

    def parse(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"must be a number, not {kind_of(value)}")
        if isinstance(value, int) and abs(value) > 1 << 53:
            raise ValueError("is too large a number")
        if not math.isfinite(value) or not low <= value <= high:
            above = f"must be {low:g} or more" if math.isfinite(low) else "must be a finite number"
            raise ValueError(above if math.isinf(high) else f"must be between {low:g} and {high:g}")
        return float(value)

    return parse


def flag(value: object) -> bool:
    """A boolean."""
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {kind_of(value)}")
    return value


def text(value: object) -> str:
    """A string that is not blank."""
    if not isinstance(value, str):
        raise ValueError(f"must be a string, not {kind_of(value)}")
    if not value.strip() or "\0" in value:
        raise ValueError("must be text, not empty")
    return value


def path(value: object) -> Path:
    """A path; `~` is the home folder."""
    try:
        found = Path(text(value)).expanduser()
    except RuntimeError as error:  # `~name` of a user that does not exist
        raise ValueError("names a home folder that does not exist") from error
    if not found.is_absolute():
        raise ValueError("must be an absolute path, or start with ~")
    return found


def word(words: Collection[str]) -> Parser:
    """One of a few words."""

    def parse(value: object) -> str:
        if isinstance(value, str) and value in words:
            return value
        close = nearest(value, words) if isinstance(value, str) else None
        meant = f" (did you mean `{close}`?)" if close else ""
        raise ValueError(f"must be one of {', '.join(words)}{meant}")

    return parse


def _parts(value: object, what: str) -> list[str]:
    """A comma list or a TOML list of strings."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or not parts or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"must be {what}")
    return [part.strip() for part in parts]


def kv_pair(value: object) -> tuple[str, str]:
    """One KV cache type for K and V, or one for each."""
    parts = _parts(value, 'a KV cache type, or one for K and one for V ("q8_0,f16")')
    if len(parts) > 2:
        raise ValueError("names more than K and V")
    known = word(KV_TYPES)
    return known(parts[0]), known(parts[-1])


def shares(value: object) -> tuple[float, ...]:
    """Shares of the model per device, `[3, 1]` or `"3,1"`."""
    items = value
    if isinstance(value, str):
        try:
            items = [float(part) for part in value.split(",")]
        except ValueError:
            raise ValueError('must be shares per device ("3,1")') from None
    if not isinstance(items, list) or not 0 < len(items) <= 128:
        raise ValueError('must be shares per device ("3,1")')
    found = tuple(float(number(0, 1e9)(item)) for item in items)
    if not sum(found):
        raise ValueError("has only shares of 0")
    return found


def endpoints(value: object) -> tuple[str, ...]:
    """`host:port` of each RPC server."""
    parts = _parts(value, "a list of host:port")
    for part in parts:
        host, _, port = part.rpartition(":")
        if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port[:6]) < 65536:
            raise ValueError(f"has `{shortened(part)}`, which is no host:port")
    return tuple(parts)


def texts(value: object) -> tuple[str, ...]:
    """A list of strings, none empty."""
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise ValueError("must be a list of strings, none empty")
    return tuple(value)


def logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    """`["15043+1", "2-inf"]`: token id and what is added to its logit."""
    found = []
    for part in _parts(value, 'a list of ID+X, ID-X or ID-inf ("15043+1")'):
        match = _BIAS.fullmatch(part)
        if not match:
            raise ValueError(f"has `{shortened(part)}`, which is neither ID+X nor ID-X nor ID-inf")
        found.append((int(match[1]), float(match[2])))
    return tuple(found)


def json_object(value: object) -> str:
    """The text of a JSON object."""
    source = text(value)
    try:
        parsed = json.loads(source)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError("must be the text of a JSON object")
    return source


def from_environment(parse: Parser, raw: str) -> object:
    """The value of a variable: as text where the parser wants text, else read as TOML when it is TOML.

    A relative path means the current folder, as in a shell; in a file it would mean nothing certain.
    """
    if parse is path:
        return raw if raw.startswith("~") else str(Path(raw).absolute())
    if parse in (text, json_object) or "\n" in raw:
        return raw
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        return raw
