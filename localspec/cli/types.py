"""Parameter types: how the text of an option becomes a value, and what is said when it cannot."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

from localspec.engine.settings import KvType
from localspec.errors import LocalspecError, unknown

KV_TYPES: tuple[str, ...] = get_args(KvType)


class OneOf(click.ParamType[str]):
    """One of a few words; an unknown one is answered with the nearest."""

    def __init__(self, what: str, words: Sequence[str]) -> None:
        self.name = what
        self._words = words

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "[" + "|".join(self._words) + "]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self._words:
            raise unknown(self.name, value, self._words)
        return str(value)


class Whole(click.ParamType[int]):
    """A whole number in a range."""

    name = "n"

    def __init__(self, low: int, high: int | None = None) -> None:
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = int(value)
        except ValueError:
            self.fail(f"`{value}` is no whole number", param, ctx)
        if number < self._low or (self._high is not None and number > self._high):
            self.fail(f"{number} is not {_range(self._low, self._high)}", param, ctx)
        return number


class AutoOr(click.ParamType[int | None]):
    """`auto` (None) or a whole number in a range."""

    name = "auto|n"

    def __init__(self, low: int, high: int | None = None) -> None:
        self._number = Whole(low, high)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        return None if value == "auto" else self._number.convert(value, param, ctx)


class Real(click.ParamType[float]):
    """A finite number in a range, both ends included."""

    name = "x"

    def __init__(self, low: float = -math.inf, high: float = math.inf) -> None:
        self._low, self._high = low, high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            self.fail(f"`{value}` is no number", param, ctx)
        if not math.isfinite(number) or not self._low <= number <= self._high:
            self.fail(f"{number:g} is not {_range(self._low, self._high)}", param, ctx)
        return number


def _range(low: float, high: float | None) -> str:
    if high is None or math.isinf(high):
        return f"{low:g} or more" if not math.isinf(low) else "a finite number"
    return f"between {low:g} and {high:g}"


class KvPair(click.ParamType[tuple[str, str]]):
    """`K` for both caches or `K,V`."""

    name = "k[,v]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        parts = str(value).split(",")
        if len(parts) > 2:
            self.fail(f"`{value}` names more than K and V", param, ctx)
        for part in parts:
            if part not in KV_TYPES:
                raise unknown("KV cache type", part, KV_TYPES)
        return parts[0], parts[-1]


class Split(click.ParamType[tuple[float, ...]]):
    """`3,1`: shares of the model per device."""

    name = "a,b,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        shares = tuple(Real(0).convert(part, param, ctx) for part in str(value).split(","))
        if not sum(shares):
            self.fail("every share is 0", param, ctx)
        return shares


class Endpoints(click.ParamType[tuple[str, ...]]):
    """`host:port,…` of ggml RPC servers."""

    name = "host:port,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        parts = tuple(str(value).split(","))
        for part in parts:
            host, _, port = part.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                self.fail(f"`{part}` is no host:port", param, ctx)
        return parts


class LogitBias(click.ParamType[tuple[int, float]]):
    """llama.cpp's `ID+X`, `ID-X`, `ID-inf`."""

    name = "id±x"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        match = re.fullmatch(r"(\d+)([+-](?:\d+\.?\d*|\.\d+|inf))", str(value))
        if not match or match[2] == "+inf":
            self.fail(f"`{value}` is neither ID+X nor ID-X nor ID-inf", param, ctx)
        return int(match[1]), float(match[2])


class KeyValue(click.ParamType[tuple[str, Any]]):
    """`K=V`; V is JSON where it reads as JSON (`true`, `3`), else text."""

    name = "k=v"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        key, sign, text = str(value).partition("=")
        if not sign or not key:
            self.fail(f"`{value}` is not K=V", param, ctx)
        try:
            return key, json.loads(text)
        except ValueError:
            return key, text


class JsonText(click.ParamType[str]):
    """Text that must be a JSON object, kept as text."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parsed = json.loads(value)
        except ValueError as error:
            self.fail(f"not JSON: {error}", param, ctx)
        if not isinstance(parsed, dict):
            self.fail("not a JSON object", param, ctx)
        return str(value)


class TextFile(click.ParamType[str]):
    """A file whose text is the value, read as `inner` reads text."""

    name = "file"

    def __init__(self, inner: click.ParamType[str] | None = None) -> None:
        self._inner = inner

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            text = Path(value).read_text(encoding="utf-8")
        except OSError as error:
            raise LocalspecError(f"cannot read `{value}`: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise LocalspecError(f"`{value}` is not UTF-8 text") from error
        return self._inner.convert(text, param, ctx) if self._inner else text
