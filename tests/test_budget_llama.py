"""The formula against what llama.cpp would allocate, and does: every tiny architecture, and SmolLM2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localspec.budget.contexts import footprint
from localspec.budget.layout import place
from localspec.budget.shape import ContextShape
from localspec.catalog import demo_target_path
from localspec.engine.backend.context import Context, ContextSettings
from localspec.engine.backend.devices import BufferUse, memory_breakdown
from localspec.engine.backend.model import ModelSettings, load_model
from localspec.header import facts_from_header, read_header
from localspec.header.architecture import SNAPSHOTS
from localspec.selftest import VARIANTS
from tests.kit.ggufs import syn

SMOLLM2 = "SmolLM2"
TARGETS = (*(name for name, variant in VARIANTS.items() if variant.kind == "target"), SMOLLM2)
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


def model_file(name: str) -> Path:
    if name != SMOLLM2:
        return syn(name)
    path = demo_target_path()
    assert path is not None, "the embedded model is not installed"
    return path


def allocated(name: str, wanted: dict[str, Any], *, dry: bool) -> tuple[BufferUse, ...]:
    model = load_model(model_file(name), ModelSettings(gpu_layers=0, mmap=False, no_alloc=dry))
    context = Context(model, ContextSettings(**wanted))
    try:
        uses = memory_breakdown(context)
    finally:
        context.close()
        model.close()
    if uses is None:
        pytest.skip("macOS only")  # another C++ library lays the breakdown out differently
    return uses


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TARGETS)
def test_formula_against_dry_run(name: str, case: str) -> None:
    """Known fault 61: what was planned was not what the peak took. At most 3 % over, never 1 % under."""
    wanted = DEFAULTS | CASES[case]
    real = sum(
        use.model_bytes + use.context_bytes + use.compute_bytes for use in allocated(name, wanted, dry=True)
    )
    facts = facts_from_header(read_header(model_file(name)))
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


@pytest.mark.parametrize("name", TARGETS)
def test_a_dry_run_is_the_load(name: str) -> None:
    wanted = DEFAULTS | CASES["snapshots"]
    dry, loaded = (
        {use.buffer: (use.model_bytes, use.context_bytes, use.compute_bytes) for use in uses}
        for uses in (allocated(name, wanted, dry=dry) for dry in (True, False))
    )
    assert dry == loaded
