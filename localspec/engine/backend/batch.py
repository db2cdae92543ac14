"""The `llama_batch` that every decode of a context reuses: memory that stays, and pointers into it that move.

A decode leaves the processor's caches cold, so each array operation around it costs far more than its few
bytes suggest. Positions are therefore no array to fill but a place in a ramp, output flags one in a row of
zeros and ones, and the owners of the rows change only with the sequence.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.engine.backend.library import library, native
from localspec.errors import EngineError

Ids = NDArray[np.int32]
Tokens = Ids | list[int]
"""Token ids; lists where they are few and on their way to the next decode."""


@functools.cache
def _structure() -> Any:
    """`llama_batch` with plain addresses for pointers, which are quicker to set than typed ones."""
    fields = [
        (name, kind if name == "n_tokens" else ctypes.c_void_p)
        for name, kind in library().llama_batch._fields_
    ]
    return type("Batch", (ctypes.Structure,), {"_fields_": fields})


def batch_call(name: str) -> Any:
    """`llama_decode` or `llama_encode`: (context, `Batch.native`) → code."""
    return native(name, ctypes.c_int32, ctypes.c_void_p, _structure())


class Batch:
    """Rows of one decode.

    Args:
        n_batch: most rows.
        n_cells: of the context; no row lies behind them.
        n_seq_max: sequences that rows can belong to.
        width: floats of a row's embedding, 0 for rows of tokens only.
        tokens: whether each row has a token.
        sections: positions that a row carries, one after the other; 4 for embeddings alone under M-RoPE,
            where they are p, p, p, 0.
    """

    def __init__(
        self,
        n_batch: int,
        n_cells: int,
        *,
        n_seq_max: int = 1,
        width: int = 0,
        tokens: bool = True,
        sections: int = 1,
    ) -> None:
        self.tokens: Any = (ctypes.c_int32 * n_batch)()
        """Assign slices of lists."""
        self.rows = np.zeros((n_batch, width), np.float32)
        self.positions: Ids = np.zeros(n_batch * sections, np.int32)
        self._n_batch = n_batch
        self._ramp: Ids = np.arange(n_cells + n_batch, dtype=np.int32)
        self._flags = np.repeat(np.array([0, 1], np.int8), n_batch)
        self._chosen = np.zeros(n_batch, np.int8)
        self._seq_ids: Ids = np.arange(n_seq_max, dtype=np.int32)
        self._seq_count: Ids = np.ones(n_batch, np.int32)
        self._seq_addresses = np.uintp(self._seq_ids.ctypes.data) + 4 * np.arange(n_seq_max, dtype=np.uintp)
        self._owners = np.full(n_batch, self._seq_addresses[0], np.uintp)
        self._owner = 0
        self._ramp_at: int = self._ramp.ctypes.data
        self._ones_at: int = self._flags.ctypes.data + n_batch
        self._chosen_at: int = self._chosen.ctypes.data
        self._positions_at: int = self.positions.ctypes.data
        self.native = _structure()()
        self.native.token = ctypes.addressof(self.tokens) if tokens else None
        self.native.embd = self.rows.ctypes.data if width else None
        self.native.n_seq_id = self._seq_count.ctypes.data
        self.native.seq_id = self._owners.ctypes.data

    def follow(self, n: int, start: int, outputs: int, seq_id: int = 0) -> None:
        """Rows are `n` consecutive positions of a sequence; the last `outputs` of them give logits.

        Raises:
            EngineError: they lie behind the last cell.
        """
        native = self.native
        if not 0 <= start <= len(self._ramp) - n:
            raise EngineError(f"positions {start} to {start + n - 1} in a cache that ends before them")
        if seq_id != self._owner:
            self._owners[:] = self._seq_addresses[seq_id]
            self._owner = seq_id
        native.pos = self._ramp_at + 4 * start
        native.logits = self._ones_at - (n - outputs)
        native.n_tokens = n

    def spread(
        self, positions: NDArray[np.integer], seq_ids: NDArray[np.integer], outputs: NDArray[np.bool]
    ) -> None:
        """Row i is position `positions[i]` of sequence `seq_ids[i]` and gives logits where `outputs[i]`."""
        n, native = len(positions), self.native
        self.positions[:n] = positions
        self._owners[:n] = self._seq_addresses[seq_ids]
        self._owner = -1
        self._chosen[:n] = outputs
        native.pos = self._positions_at
        native.logits = self._chosen_at
        native.n_tokens = n

    def in_sections(self, n: int, start: int) -> None:
        """Give the rows set by `follow` the four positions of M-RoPE."""
        self.positions[: 3 * n].reshape(3, n)[:] = self._ramp[start : start + n]
        self.positions[3 * n : 4 * n] = 0
        self.native.pos = self._positions_at
