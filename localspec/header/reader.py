"""Read the header of a GGUF file: metadata and tensor table, from any range source.

The first 64 KiB hold the hyper-parameters (enough for a list row); the tokenizer and the tensor table
need 2 to 16 MB more and are read in growing pieces. Headers are treated as hostile: every count, length
and offset is checked against fixed limits and against the bytes that are really there.
Knows the container format (ggml's docs/gguf.md, versions 2 and 3), not what the keys mean.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localspec.errors import ModelFileError
from localspec.header.source import FileSource, RangeSource, shard_paths

FIRST_READ = 64 * 1024
GROWTH = (2 << 20, 4 << 20, 8 << 20, 16 << 20)
MAX_HEADER_BYTES = 256 << 20
MAX_KEYS = 65_536
MAX_TENSORS = 262_144
MAX_KEY_LENGTH = 65_535
MAX_NAME_LENGTH = 256
MAX_STRING = 16 << 20
MAX_ARRAY = 1 << 21
MAX_DEPTH = 2
MAX_DIMS = 4
MAX_ELEMENTS = 1 << 48
MAX_ALIGNMENT = 1 << 20

# GGUF value type -> (struct code, bytes); 8 is a string, 9 an array.
_SCALARS = {
    0: ("B", 1), 1: ("b", 1), 2: ("H", 2), 3: ("h", 2), 4: ("I", 4), 5: ("i", 4), 6: ("f", 4),
    7: ("?", 1), 10: ("Q", 8), 11: ("q", 8), 12: ("d", 8),
}  # fmt: skip
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class Strings:
    """A string array kept as its raw bytes: a vocabulary of 260k texts costs one slice, not 260k objects."""

    raw: bytes = field(repr=False)
    """Each text as 8-byte little-endian length and its bytes, as in the file."""
    count: int

    def texts(self) -> list[bytes]:
        raw, position, result = self.raw, 0, []
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(self.count):
            (length,) = unpack(raw, position)
            position += 8
            result.append(raw[position : position + length])
            position += length
        return result

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True, slots=True)
class Tensor:
    """One row of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """In ggml order: the fastest dimension first."""
    type: str
    """ggml type name: `Q4_K`, `F32`, …"""
    offset: int
    """From the start of its file, in bytes."""
    size_bytes: int
    shard: int = 0


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says about itself."""

    name: str
    """File name, for messages."""
    metadata: Mapping[str, object]
    tensors: tuple[Tensor, ...]
    size_bytes: int
    """Size of all parts together."""
    complete: bool
    """False when only the first 64 KiB were read: no tensor table, perhaps no tokenizer."""
    array_lengths: Mapping[str, int] = field(default_factory=dict)
    """Announced lengths of arrays, known even where the array itself was not read."""

    def get(self, key: str) -> object:
        return self.metadata.get(key)


def printable(text: object) -> str:
    """Text from a file as it may stand in a message: one short line of printable characters."""
    line = "".join(c if c.isprintable() else "\ufffd" for c in str(text)[:61])
    return line if len(line) <= 60 else line[:59] + "…"


class _Short(Exception):
    """The header goes on beyond the bytes that were allowed."""


class _Cursor:
    """Reads values from a source, fetching it in growing pieces."""

    def __init__(self, source: RangeSource, name: str, *, only_first: bool) -> None:
        self.source, self.name = source, name
        self.only_first = only_first
        self.buffer = b""
        self.position = 0
        self._reads = 0

    def fail(self, what: str) -> ModelFileError:
        return ModelFileError(f"`{self.name}` is no usable GGUF file: {what}")

    def truncated(self) -> ModelFileError:
        return ModelFileError(
            f"`{self.name}` is truncated: its header is longer than the {self.source.size} bytes there",
            hint="fetch it again with `localspec pull`, or check it with `localspec models verify`",
        )

    @property
    def left(self) -> int:
        """Bytes of the file behind the cursor."""
        return self.source.size - self.position

    def need(self, length: int) -> None:
        """Make `length` bytes behind the cursor available."""
        end = self.position + length
        if end <= len(self.buffer):
            return
        if end > self.source.size:
            raise self.truncated()
        if end > MAX_HEADER_BYTES:
            raise self.fail(f"its header is larger than {MAX_HEADER_BYTES >> 20} MiB")
        while len(self.buffer) < end:
            if self._reads and self.only_first:
                raise _Short
            step = FIRST_READ if not self._reads else GROWTH[min(self._reads - 1, len(GROWTH) - 1)]
            chunk = self.source.read(len(self.buffer), min(step, self.source.size - len(self.buffer)))
            if not chunk:
                raise self.truncated()
            self.buffer += chunk
            self._reads += 1

    def number(self, code: str, length: int) -> int:
        self.need(length)
        (value,) = struct.unpack_from("<" + code, self.buffer, self.position)
        self.position += length
        return int(value)

    def text(self, limit: int) -> str:
        length = self.number("Q", 8)
        if length > limit:
            raise self.fail(f"a text of {length} bytes in its header")
        self.need(length)
        raw = self.buffer[self.position : self.position + length]
        self.position += length
        return raw.decode("utf-8", errors="replace")

    def scalar(self, kind: int) -> object:
        code, length = _SCALARS[kind]
        self.need(length)
        (value,) = struct.unpack_from("<" + code, self.buffer, self.position)
        self.position += length
        return value

    def value(self, kind: int, key: str, lengths: dict[str, int], depth: int = 0) -> object:
        if kind == _STRING:
            return self.text(MAX_STRING)
        if kind in _SCALARS:
            return self.scalar(kind)
        if kind != _ARRAY:
            raise self.fail(f"key `{printable(key)}` has the unknown value type {kind}")
        if depth >= MAX_DEPTH:
            raise self.fail(f"key `{printable(key)}` nests arrays too deeply")
        element = self.number("I", 4)
        count = self.number("Q", 8)
        smallest = _SCALARS[element][1] if element in _SCALARS else 8
        if count > MAX_ARRAY:
            raise self.fail(f"key `{printable(key)}` has {count} elements")
        if count * smallest > self.left:
            raise self.truncated()
        if not depth:
            lengths[key] = count
        if element == _STRING:
            return self.strings(count)
        if element in _SCALARS:
            code, length = _SCALARS[element]
            self.need(count * length)
            values = struct.unpack_from(f"<{count}{code}", self.buffer, self.position)
            self.position += count * length
            return values
        return tuple(self.value(element, key, lengths, depth + 1) for _ in range(count))

    def strings(self, count: int) -> Strings:
        start = position = self.position
        unpack = struct.Struct("<Q").unpack_from
        available = len(self.buffer)
        for _ in range(count):
            if position + 8 > available:
                self.position = position
                self.need(8)
                available = len(self.buffer)
            (length,) = unpack(self.buffer, position)
            position += 8 + length
            if length > MAX_STRING:
                raise self.fail(f"a text of {length} bytes in its header")
            if position > available:
                self.position = position - length
                self.need(length)
                available = len(self.buffer)
        self.position = position
        return Strings(self.buffer[start:position], count)


def _type_name_and_size(kind: int) -> tuple[str, int, int] | None:
    """(name, elements per block, bytes per block) of a ggml tensor type, None when unknown."""
    # Imported here: the gguf package costs a quarter of a second, which no `--help` should pay.
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    if kind == 42:  # Q2_0 of ggml 0.25, younger than the gguf package: 64 weights, one f16 scale
        return "Q2_0", 64, 18
    try:
        entry = GGMLQuantizationType(kind)
        block, size = GGML_QUANT_SIZES[entry]
    except (ValueError, KeyError):
        return None
    return entry.name, block, size


def _tensor(cursor: _Cursor, shard: int, types: dict[int, tuple[str, int, int]]) -> Tensor:
    name = cursor.text(MAX_NAME_LENGTH)
    n_dims = cursor.number("I", 4)
    if n_dims > MAX_DIMS:
        raise cursor.fail(f"tensor `{printable(name)}` has {n_dims} dimensions")
    shape = tuple(cursor.number("Q", 8) for _ in range(n_dims))
    kind = cursor.number("I", 4)
    offset = cursor.number("Q", 8)
    if kind not in types:
        known = _type_name_and_size(kind)
        if known is None:
            raise cursor.fail(f"tensor `{printable(name)}` has the unknown type {kind}")
        types[kind] = known
    type_name, block, size = types[kind]
    elements = math.prod(shape)
    if elements > MAX_ELEMENTS or any(n > MAX_ELEMENTS for n in shape):
        raise cursor.fail(f"tensor `{printable(name)}` has {elements} elements")
    if shape and shape[0] % block:
        raise cursor.fail(f"rows of tensor `{printable(name)}` are no multiple of {block}")
    return Tensor(name, shape, type_name, offset, elements // block * size, shard)


def _read_metadata(cursor: _Cursor) -> tuple[dict[str, object], dict[str, int], int, bool]:
    """(metadata, array lengths, tensor count, all keys read)."""
    magic = cursor.source.read(0, 4)
    if magic != b"GGUF":
        looks = "an HTML page" if magic.lstrip().lower().startswith(b"<") else None
        looks = "a Git LFS pointer" if magic == b"vers" else looks
        raise ModelFileError(
            f"`{cursor.name}` is not a GGUF file" + (f" but {looks}" if looks else ""),
            hint="fetch it again with `localspec pull`" if looks else None,
        )
    cursor.number("I", 4)
    version = cursor.number("I", 4)
    if version not in (2, 3):
        swapped = "a big-endian one" if version & 0xFFFF == 0 else f"of version {version}"
        raise cursor.fail(f"it is {swapped}, and only little-endian versions 2 and 3 are read")
    n_tensors, n_keys = cursor.number("Q", 8), cursor.number("Q", 8)
    if n_keys > MAX_KEYS or n_tensors > MAX_TENSORS:
        raise cursor.fail(f"it announces {n_keys} keys and {n_tensors} tensors")
    # A key takes at least 13 bytes and a tensor 24.
    if n_keys * 13 + n_tensors * 24 > cursor.left:
        raise cursor.truncated()
    metadata: dict[str, object] = {}
    lengths: dict[str, int] = {}
    try:
        for _ in range(n_keys):
            key = cursor.text(MAX_KEY_LENGTH)
            if key in metadata:
                raise cursor.fail(f"key `{printable(key)}` occurs twice")
            metadata[key] = cursor.value(cursor.number("I", 4), key, lengths)
    except _Short:
        return metadata, lengths, n_tensors, False
    return metadata, lengths, n_tensors, True


def _read_tensors(
    cursor: _Cursor, n_tensors: int, metadata: Mapping[str, object], shard: int
) -> list[Tensor]:
    types: dict[int, tuple[str, int, int]] = {}
    rows = [_tensor(cursor, shard, types) for _ in range(n_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.fail(f"its alignment is {printable(alignment)}")
    data = (cursor.position + alignment - 1) // alignment * alignment
    placed = []
    for row in rows:
        if row.offset % alignment:
            raise cursor.fail(f"tensor `{printable(row.name)}` is not aligned")
        end = data + row.offset + row.size_bytes
        if end > cursor.source.size:
            raise ModelFileError(
                f"`{cursor.name}` is truncated: its tensors need {end} bytes, {cursor.source.size} are there",
                hint="fetch it again with `localspec pull`",
            )
        placed.append(Tensor(row.name, row.shape, row.type, data + row.offset, row.size_bytes, shard))
    return placed


def read_sources(sources: Sequence[RangeSource], name: str, *, only_first: bool = False) -> Header:
    """Read the header of a model given as one source per part.

    Args:
        sources: the file, or all parts of a split one, in order.
        name: what messages call it.
        only_first: read no more than 64 KiB: hyper-parameters, usually without tokenizer and tensors.

    Raises:
        ModelFileError: not GGUF, truncated, a part is missing, or an absurd header.
    """
    size = sum(source.size for source in sources)
    cursor = _Cursor(sources[0], name, only_first=only_first)
    metadata, lengths, n_tensors, complete = _read_metadata(cursor)
    count = metadata.get("split.count", 1) or 1
    if complete and count != len(sources):
        raise ModelFileError(f"`{printable(name)}` has {count} parts, but {len(sources)} were found")
    tensors: list[Tensor] = []
    if complete:
        try:
            tensors = _read_tensors(cursor, n_tensors, metadata, 0)
        except _Short:
            complete = False
    if complete:
        for number, source in enumerate(sources[1:], start=1):
            part = _Cursor(source, f"{name}, part {number + 1}", only_first=False)
            keys, _, n_tensors, _ = _read_metadata(part)
            if keys.get("split.no", number) != number:
                raise part.fail(f"it says that it is part {keys['split.no']}, counted from 0")
            tensors += _read_tensors(part, n_tensors, keys, number)
        expected = metadata.get("split.tensors.count", len(tensors))
        if expected != len(tensors):
            raise ModelFileError(f"`{name}` announces {expected} tensors, but its parts hold {len(tensors)}")
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise cursor.fail("two tensors have the same name")
    return Header(name, metadata, tuple(tensors), size, complete, lengths)


def read_header(path: Path, *, only_first: bool = False) -> Header:
    """Read the header of a local GGUF; the name of any part of a split one stands for all parts.

    Raises:
        ModelFileError: missing, unreadable, not GGUF, truncated, or an absurd header.
    """
    paths = shard_paths(path)
    missing = [part.name for part in paths if not part.exists()]
    if missing and len(missing) < len(paths):
        raise ModelFileError(
            f"part `{missing[0]}` of `{path.name}` is missing", hint="fetch it with `localspec pull`"
        )
    return read_sources([FileSource(part) for part in paths], path.name, only_first=only_first)
