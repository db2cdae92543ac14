"""TOML files a user may have edited: reading with errors that name the place, and careful writing.

Both `models.toml` and `config.toml` are read through here. Knows nothing of what the keys mean; the only
rewriting it does is one key at a time, so that comments and order survive.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from localspec.errors import UsageError, nearest

MAX_BYTES = 1 << 18
"""Three times the shipped model list; parsing time is bounded by it."""
MAX_PARTS = 32
"""Parts of a dotted key. tomllib's time grows with their square: a 1 MB key would take hours."""
_BETWEEN_KEYS = re.compile(r"[={},\[\]#]")
_PLACE = re.compile(r"\s*\(at (line \d+), column \d+\)|\s*\(at (end of document)\)")
_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a file; one that does not exist is empty.

    Raises:
        UsageError: unreadable, too large, not UTF-8, or not TOML; names the file and the line.
    """
    return parse_toml(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The text of a file, empty when there is none; raises as `read_toml`."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise UsageError(f"`{path}` is larger than {MAX_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UsageError(f"`{path}` line {line}: not UTF-8 text") from error


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Parse TOML text; raises as `read_toml`, with `source` as the file's name."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > MAX_PARTS and any(map(_endless, _BETWEEN_KEYS.split(line))):
            raise UsageError(f"`{source}` line {number}: a key of more than {MAX_PARTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise UsageError(f"`{source}`: values are nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError, or a number Python refuses to convert
        found = _PLACE.search(str(error))
        place = f" {found[1] or found[2]}" if found else ""
        reason = _PLACE.sub("", str(error)).rstrip(".")
        raise UsageError(f"`{source}`{place}: {reason[:1].lower()}{reason[1:]}") from error


def _endless(text: str) -> bool:
    return sum(1 for part in text.split(".") if part.strip()) > MAX_PARTS


class Table:
    """Typed reads from one TOML table; every problem names the file, the table and the key."""

    def __init__(self, data: object, source: str, name: str, keys: Collection[str]) -> None:
        """Check that `data` is a table with no key outside `keys`.

        Args:
            source: the file, for messages.
            name: the table as in its header, empty for the top of the file.

        Raises:
            UsageError: not a table, or an unknown key (the hint has the nearest one).
        """
        self.source, self.name = source, name
        if not isinstance(data, dict):
            raise UsageError(f"`{source}`: {self._table} must be a table, not {kind_of(data)}")
        self.data: dict[str, Any] = data
        for key in data:
            if key not in keys:
                close = nearest(key, keys)
                hint = f"did you mean `{close}`?" if close else f"known: {', '.join(sorted(keys))}"
                raise UsageError(f"`{source}`: {self._table} has no key `{shortened(key)}`", hint=hint)

    @property
    def _table(self) -> str:
        return f"[{shortened(self.name)}]" if self.name else "the top level"

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def error(self, key: str, problem: str, hint: str | None = None) -> UsageError:
        """The error that `key` has this problem ("must be …")."""
        return UsageError(f"`{self.source}`: {self._table} `{key}` {problem}", hint=hint)

    def missing(self, key: str) -> UsageError:
        return UsageError(f"`{self.source}`: {self._table} needs `{key}`")

    def text(self, key: str) -> str | None:
        """A string that is not blank, or None when the key is absent."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.error(key, f"must be a string, not {kind_of(value)}")
        if not value.strip():
            raise self.error(key, "must not be empty")
        return value

    def needed_text(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            raise self.missing(key)
        return value

    def whole(self, key: str, low: int, high: int) -> int | None:
        """An integer in `low..high`, or None when the key is absent."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(key, f"must be an integer, not {kind_of(value)}")
        if not low <= value <= high:
            raise self.error(key, f"must be between {low} and {high}")
        return value

    def flag(self, key: str) -> bool | None:
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {kind_of(value)}")
        return value

    def choice(self, key: str, words: Collection[str]) -> str | None:
        """One of a few words, or None when the key is absent."""
        value = self.text(key)
        if value is not None and value not in words:
            close = nearest(value, words)
            hint = f"did you mean `{close}`?" if close else f"known: {', '.join(words)}"
            raise self.error(key, f"is `{shortened(value)}`, which is unknown", hint)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings, empty when the key is absent."""
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(key, "must be a list of strings")
        return tuple(value)

    def rows(self, key: str) -> list[Any]:
        """A list whose items will be read as tables, empty when the key is absent."""
        value = self.data.get(key, [])
        if not isinstance(value, list):
            raise self.error(key, f"must be a list of tables, not {kind_of(value)}")
        return value

    def tables(self, key: str) -> Mapping[str, Any]:
        """A table of tables, empty when the key is absent."""
        value = self.data.get(key, {})
        if not isinstance(value, dict):
            raise self.error(key, f"must be a table, not {kind_of(value)}")
        return value


def kind_of(value: object) -> str:
    """What TOML calls the kind of a value."""
    kinds = ((bool, "a boolean"), (int, "an integer"), (float, "a number"), (str, "a string"),
             (list, "a list"), (dict, "a table"))  # fmt: skip
    return next((word for kind, word in kinds if isinstance(value, kind)), "a date or time")


def shortened(text: str, width: int = 60) -> str:
    """Text from a file made fit for a message: one line, no control characters, not long."""
    clean = "".join(c if c.isprintable() else "·" for c in text)
    return clean if len(clean) <= width else clean[: width - 1] + "…"


def to_toml(value: object) -> str:
    """A value as TOML source; strings come out as basic strings on one line.

    Raises:
        TypeError: a value TOML has no form for.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return '"' + "".join(_escaped(c) for c in value) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(to_toml(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key_toml(k)} = {to_toml(v)}" for k, v in value.items()) + " }"
    raise TypeError(f"no TOML form for {type(value).__name__}")


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def key_toml(key: str) -> str:
    """A key as TOML source, quoted only where it must be."""
    return key if _BARE.fullmatch(key) else to_toml(key)


def with_value(text: str, table: str, key: str, value: object, source: str) -> str:
    """`text` with one key set and everything else, comments included, as it was.

    Args:
        table: name of the table, empty for the top of the file; made when it is missing.

    Raises:
        UsageError: `text` is not TOML, or the key is written in a form that cannot be edited line by line.
    """
    wanted = parse_toml(text, source)
    holder = wanted.setdefault(table, {}) if table else wanted
    by_hand = UsageError(
        f"`{source}`: cannot set `{key}` there", hint=f"write {key} = {to_toml(value)} by hand"
    )
    if not isinstance(holder, dict):
        raise by_hand
    holder[key] = value
    edited = _edit(text.splitlines(), table, f"{key_toml(key)} = {to_toml(value)}", key)
    result = "\n".join(edited) + "\n"
    try:
        done = parse_toml(result, source)
    except UsageError as error:
        raise by_hand from error
    if done != wanted:
        raise by_hand
    return result


def without_table(text: str, path: tuple[str, str], source: str) -> str:
    """`text` without the table `[a.b]`, its sub-tables and the comment right above it.

    Raises:
        UsageError: `text` is not TOML, or the table is written in a form that cannot be cut out by lines.
    """
    outer, name = path
    wanted = parse_toml(text, source)
    del wanted[outer][name]
    lines = text.splitlines()
    kept, inside, begin = [], False, 0
    for at, header in [(n, _header(line)) for n, line in enumerate(lines)] + [(len(lines), [])]:
        if header is None:
            continue
        first = at  # comments right above a header belong to it
        while header and first > begin and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        kept += [] if inside else lines[begin:first]
        inside, begin = header[:2] == [outer, name], first
    result = "\n".join(kept).strip("\n")
    result += "\n" if result else ""
    if {outer: {}, **parse_toml(result, source)} != wanted:
        raise UsageError(f"`{source}`: cannot take [{outer}.{name}] out", hint="delete it by hand")
    return result


def _header(line: str) -> list[str] | None:
    """The keys of a table header, None for any other line."""
    if not line.lstrip().startswith("["):
        return None
    try:
        found: object = tomllib.loads(line)
    except ValueError:
        return None
    keys: list[str] = []
    while found:
        if isinstance(found, list):
            found = found[0]
        if not isinstance(found, dict) or len(found) != 1:
            break
        key, found = next(iter(found.items()))
        keys.append(key)
    return keys


def _edit(lines: list[str], table: str, entry: str, key: str) -> list[str]:
    start = 0
    if table:
        headers = [
            n for n, line in enumerate(lines) if (found := _HEADER.fullmatch(line)) and found[1] == table
        ]
        if not headers:
            return [*lines, *([""] if lines else []), f"[{key_toml(table)}]", entry]
        start = headers[0] + 1
    end = next((n for n in range(start, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
    spelling = re.compile(rf"\s*(?:{re.escape(key_toml(key))}|\"{re.escape(key)}\"|'{re.escape(key)}')\s*=")
    for n in range(start, end):
        if spelling.match(lines[n]):
            return [*lines[:n], entry + _comment(lines[n]), *lines[n + 1 :]]
    while start < end < len(lines) and lines[end - 1].lstrip().startswith("#"):
        end -= 1  # comments just above the next header belong to it
    while end > start and not lines[end - 1].strip():
        end -= 1
    return [*lines[:end], entry, *lines[end:]]


def _comment(line: str) -> str:
    """The comment that ends a `key = value` line, with two spaces before it, or nothing."""
    for at, character in enumerate(line):
        if character == "#":
            try:
                tomllib.loads(line[:at])
            except tomllib.TOMLDecodeError:
                continue  # inside a string
            return "  " + line[at:]
    return ""
