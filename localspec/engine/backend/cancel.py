"""A stop flag that native code can see without taking the GIL.

llama.cpp's CPU backend asks an abort callback once per graph node. Given libc's `strlen` as that
callback and a two-byte buffer as its data, a zero first byte reads as "go on" and any other as "stop":
no Python runs, so asking costs nothing.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from typing import Any


class CancelFlag:
    """Set from any thread; shared by all contexts of a session."""

    def __init__(self) -> None:
        self.buffer = ctypes.create_string_buffer(2)
        self._lock = threading.Lock()

    def set(self) -> None:
        with self._lock:
            self.buffer[0] = b"\x01"

    def clear(self) -> None:
        with self._lock:
            self.buffer[0] = b"\x00"

    @property
    def is_set(self) -> bool:
        return self.buffer.raw[0] != 0


@functools.cache
def strlen_address() -> int | None:
    """Address of a C function that returns non-zero for a non-empty string, or None."""
    try:
        libc: Any = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
        return ctypes.cast(libc.strlen, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None
