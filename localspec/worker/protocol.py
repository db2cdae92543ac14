"""What a worker and its parent say to each other, and how it travels.

Each message is a frozen dataclass, pickled behind a four-byte length. The child is our own process and
the pipe is private to the two, so unpickling is safe. This module knows nothing of processes or sessions.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import IO, Any

from localspec.engine.events import Event, Loading, Notice
from localspec.engine.settings import LoadSettings, Request
from localspec.errors import LocalspecError
from localspec.interfaces import PairFiles, SessionInfo

LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Boot:
    """First word of the parent: what to load and with which function."""

    factory: str
    """`module:function` of an `open_session(files, load, notify) -> SessionLike`."""
    files: PairFiles
    load: LoadSettings
    parent_pid: int


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a reply; `number` names it in every later message."""

    number: int
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    number: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Close the session and end, once idle."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What the load says while it goes on."""

    event: Loading | Notice


@dataclass(frozen=True, slots=True)
class Ready:
    info: SessionInfo


@dataclass(frozen=True, slots=True)
class LoadFailed:
    error: LocalspecError


@dataclass(frozen=True, slots=True)
class Accepted:
    number: int


@dataclass(frozen=True, slots=True)
class Refused:
    """`session.reply` itself raised."""

    number: int
    error: LocalspecError


@dataclass(frozen=True, slots=True)
class Batch:
    """Events of one reply in order; several when they came faster than the pipe took them."""

    number: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The reply raised instead of ending with `Done`."""

    number: int
    error: LocalspecError


ToChild = Boot | Start | Cancel | Finish
ToParent = Progress | Ready | LoadFailed | Accepted | Refused | Batch | Failed


def send(stream: IO[bytes], message: ToChild | ToParent) -> None:
    """Write one message and flush it.

    Raises:
        OSError: the other side is gone.
    """
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read one message, or None when the other side is gone, also in the middle of a message."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    body = stream.read(size)
    return pickle.loads(body) if len(body) == size else None
