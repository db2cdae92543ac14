"""What llama.cpp reads from a batch, read back through the addresses it is given."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from localspec.engine.backend.batch import Batch
from localspec.engine.drafters.ngram import ids_of
from localspec.errors import EngineError


def seen(batch: Batch, rows: int, sections: int = 1) -> tuple[list[int], list[int], list[int]]:
    """(positions, flags, owners) by way of the structure's pointers."""
    native = batch.native

    def at(address: int, kind: Any, n: int) -> list[int]:
        return list((kind * n).from_address(address))

    assert native.n_tokens == rows and at(native.n_seq_id, ctypes.c_int32, rows) == [1] * rows
    owners = [at(address, ctypes.c_int32, 1)[0] for address in at(native.seq_id, ctypes.c_size_t, rows)]
    return at(native.pos, ctypes.c_int32, rows * sections), at(native.logits, ctypes.c_int8, rows), owners


@pytest.mark.parametrize("start", [0, 1, 99])
@pytest.mark.parametrize(("rows", "outputs"), [(1, 0), (1, 1), (4, 0), (4, 1), (4, 4), (8, 3), (8, 8)])
def test_rows_of_one_sequence(rows: int, outputs: int, start: int) -> None:
    batch = Batch(8, 100, n_seq_max=3)
    for seq_id in (0, 2, 2, 1, 0):
        batch.follow(rows, start, outputs, seq_id)
        flags = [0] * (rows - outputs) + [1] * outputs
        assert seen(batch, rows) == (list(range(start, start + rows)), flags, [seq_id] * rows)


def test_rows_of_several_sequences_leave_nothing_behind() -> None:
    batch = Batch(8, 100, n_seq_max=3)
    batch.spread(ids_of([7, 50, 7]), ids_of([1, 0, 2]), np.array([True, False, True]))
    assert seen(batch, 3) == ([7, 50, 7], [1, 0, 1], [1, 0, 2])
    batch.follow(8, 20, 1)
    assert seen(batch, 8) == (list(range(20, 28)), [0] * 7 + [1], [0] * 8)


def test_four_positions_per_row() -> None:
    batch = Batch(8, 100, width=4, tokens=False, sections=4)
    batch.follow(2, 5, 2)
    batch.in_sections(2, 5)
    assert seen(batch, 2, sections=4)[0] == [5, 6, 5, 6, 5, 6, 0, 0]
    assert batch.native.token is None and batch.native.embd == batch.rows.ctypes.data


@pytest.mark.parametrize(("rows", "start"), [(1, -1), (8, 101), (1, 10_000)])
def test_no_address_behind_the_last_cell(rows: int, start: int) -> None:
    """What lies there is no position; llama.cpp would read it all the same."""
    batch = Batch(8, 100)
    with pytest.raises(EngineError, match="ends before them"):
        batch.follow(rows, start, 1)
    batch.follow(8, 92, 1)
    assert list(batch.tokens) == [0] * 8
