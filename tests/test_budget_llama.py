"""The formula against what llama.cpp itself would allocate, for every tiny architecture."""

from __future__ import annotations

from typing import Any

import pytest

from localspec.budget.contexts import footprint
from localspec.budget.layout import place
from localspec.budget.shape import ContextShape
from localspec.engine.backend.context import Context, ContextSettings
from localspec.engine.backend.devices import memory_breakdown
from localspec.engine.backend.model import ModelSettings, load_model
from localspec.header import facts_from_header, read_header
from localspec.header.architecture import SNAPSHOTS
from tests.kit.ggufs import syn

TARGETS = ("syn", "syn-tied", "syn-w", "syn-moe", "syn-q4_0", "syn-qwen2", "syn-swa", "syn-hyb", "syn-mtp",
           "syn-hyb-nosnap", "syn-rec")  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "n_ctx": 1024, "n_batch": 512, "n_ubatch": 512, "n_outputs_max": 4, "flash_attn": "on",
    "kv": ("f16", "f16"), "swa_full": False, "n_rs_seq": 0,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "flash": {},
    "plain attention": {"flash_attn": "off"},
    "long, small batch": {"n_ctx": 4096, "n_batch": 256, "n_ubatch": 64},
    "all rows": {"n_outputs_max": 512},
    "snapshots": {"n_rs_seq": 8, "n_outputs_max": 9},
    "full window": {"swa_full": True},
    "f32 cache": {"kv": ("f32", "f32"), "flash_attn": "off"},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TARGETS)
def test_formula_against_dry_run(name: str, case: str) -> None:
    """Known fault 61: what was planned was not what the peak took. At most 3 % over, never 1 % under."""
    wanted = DEFAULTS | CASES[case]
    model = load_model(syn(name), ModelSettings(gpu_layers=0, mmap=False, no_alloc=True))
    context = Context(model, ContextSettings(**wanted))
    try:
        uses = memory_breakdown(context)
    finally:
        context.close()
        model.close()
    if uses is None:
        pytest.skip("macOS only")  # another C++ library lays the breakdown out differently
    real = sum(use.model_bytes + use.context_bytes + use.compute_bytes for use in uses)
    facts = facts_from_header(read_header(syn(name)))
    shape = ContextShape.of(
        wanted["n_ctx"],
        n_batch=wanted["n_batch"],
        n_ubatch=wanted["n_ubatch"],
        n_outputs_max=wanted["n_outputs_max"],
        n_rs_seq=wanted["n_rs_seq"] if facts.architecture in SNAPSHOTS else 0,
        flash=wanted["flash_attn"] == "on",
        kv=wanted["kv"],
        swa_full=wanted["swa_full"],
    )
    ours = footprint(facts, shape, place(facts, 0, n_devices=0), alignments=(32,))
    planned = ours.totals[0] - ours.output  # llama.cpp's breakdown leaves the output buffer out
    assert 0.99 * real <= planned <= 1.03 * real
