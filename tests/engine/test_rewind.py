"""Dropping cells of every kind of memory: the logits afterwards equal a fresh context's, or it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.backend.rewind import StateRewinder
from localspec.engine.backend.sequence import Sequence
from tests.engine.harness import exact_context, ids, random_prompt

KINDS = ("syn", "syn-swa", "syn-hyb", "syn-hyb-nosnap", "syn-rec")
START, LENGTH = 9, 16
TOLERANCE = {"syn-swa": 5e-3}
"""Its activation goes through a half-precision table, so row counts move logits; a stale cell does by 0.1."""


def close_enough(got: np.ndarray, name: str, tokens: list[int]) -> bool:
    return bool(np.abs(got - fresh_row(name, tokens)).max() < TOLERANCE.get(name, 2e-4))


def fresh_row(name: str, tokens: list[int]) -> np.ndarray:
    context = exact_context(name, k_max=0)
    try:
        cells = context.sequence()
        for id in tokens:
            row = cells.decode(ids([id]), 1)[0].copy()
        return row
    finally:
        context.close()


def filled(cells: Sequence, prompt: list[int], rows: int) -> None:
    """Prefill `START` tokens, then decode the rest `rows` at a time, as verifications do."""
    cells.prefill(ids(prompt[:START]))
    cells.mark_reusable()
    for start in range(START, LENGTH - LENGTH % rows, rows):
        cells.guard()
        cells.decode(ids(prompt[start : start + rows]), rows)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_every_depth_of_every_memory(name: str, rows: int) -> None:
    """Known faults 22, 25, 26: native snapshots reach back into the last decode only; else a replay."""
    prompt = random_prompt(21, LENGTH + 1, name)
    after = random_prompt(22, 1, name)
    for keep in range(LENGTH):
        context = exact_context(name, k_max=8)
        cells = context.sequence()
        filled(cells, prompt, rows)
        keep = min(keep, cells.n_past)
        cells.truncate(keep)
        assert cells.n_past == keep
        assert context.last_position(0) == keep - 1
        got = cells.decode(ids(after), 1)[0].copy()
        context.close()
        assert close_enough(got, name, prompt[:keep] + after), f"keeping {keep}"


@pytest.mark.parametrize("name", KINDS)
def test_two_rollbacks_in_a_row(name: str) -> None:
    """A second rollback before the next decode is beyond native snapshots and must not be trusted to them."""
    prompt = random_prompt(23, LENGTH + 1, name)
    after = random_prompt(24, 1, name)
    context = exact_context(name, k_max=8)
    cells = context.sequence()
    filled(cells, prompt, 4)
    n = cells.n_past
    cells.truncate(n - 1)
    cells.truncate(n - 2)
    got = cells.decode(ids(after), 1)[0].copy()
    context.close()
    assert close_enough(got, name, prompt[: n - 2] + after)


def test_native_rollback_is_free_and_others_are_counted() -> None:
    """Known fault 23: what a rollback copies and decodes again is known, so that it can be priced."""
    context = exact_context("syn-hyb", k_max=8)
    native = context.sequence()
    native.prefill(ids(random_prompt(1, 5, "syn-hyb")))
    native.decode(ids(random_prompt(2, 5, "syn-hyb")), 5)
    assert native.undo_limit == 8
    assert native.truncate(7) == 0
    assert isinstance(native._rewinder, StateRewinder) and native._rewinder.bytes_saved == 0
    context.close()

    context = exact_context("syn-hyb-nosnap", k_max=8)
    saved = context.sequence()
    saved.prefill(ids(random_prompt(1, 5, "syn-hyb-nosnap")))
    saved.guard()
    saved.decode(ids(random_prompt(2, 5, "syn-hyb-nosnap")), 5)
    assert saved.undo_limit is None
    assert saved.truncate(7) == 2, "two kept tokens after the saved state are decoded again"
    assert isinstance(saved._rewinder, StateRewinder) and saved._rewinder.bytes_saved > 0
    context.close()


def test_only_reachable_prefixes_are_reused() -> None:
    """A recurrent state can return to marks, an attention cache to any point."""
    context = exact_context("syn-hyb-nosnap", k_max=4)
    cells = context.sequence()
    cells.prefill(ids(random_prompt(1, 6, "syn-hyb-nosnap")))
    cells.mark_reusable()
    cells.prefill(ids(random_prompt(2, 5, "syn-hyb-nosnap")))
    assert [cells.reusable_prefix(n) for n in (3, 6, 8, 11)] == [0, 6, 6, 11]
    context.close()
    context = exact_context("syn")
    cells = context.sequence()
    cells.prefill(ids(random_prompt(1, 20)))
    assert cells.reusable_prefix(13) == 13
    context.close()
