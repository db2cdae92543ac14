"""When Python's full garbage collections happen: between replies, never inside one.

A full collection walks every object that lives long: 60 ms for the imported modules alone on a slow core, and
as much again for ten drawn replies. Python starts one every few seconds while text streams in.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SETTLE_S = 1.0
"""A reply that ended this long ago has been drawn, and the reader is reading it."""
_NEVER = 1 << 30


@contextmanager
def no_full_collections() -> Iterator[None]:
    """Full collections happen only when asked for, and leave out what exists now."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*before[:2], _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
