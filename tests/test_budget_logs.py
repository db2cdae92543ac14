"""Predicted bytes against real load logs of llama.cpp (tests/data/load_logs.toml)."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.budget.contexts import Footprint, footprint
from localspec.budget.layout import place
from localspec.budget.placement import Placement
from localspec.budget.shape import CURRENT, Build, ContextShape
from localspec.header import ModelFacts, facts_from_header
from tests.kit.shapes import build, recipe

MIB = 1 << 20
LOGS: list[dict[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "data" / "load_logs.toml").read_text(encoding="utf-8")
)["log"]
OLD = Build(
    mask_f16=False, idle_embd_input=False, index_inputs=False, mla_caches_v=True, rotated_caches=False
)
BUILDS = {
    "2024": replace(OLD, fused_glu=False),
    "2025": OLD,
    "2026": CURRENT,
    "fork": replace(OLD, windowed_cache=False),
}
LOOSE = 0.10


def facts_of(log: dict[str, Any]) -> ModelFacts:
    sizes = dict(log["facts"])
    architecture = sizes.pop("architecture")
    same_shapes = {"qwen3vlmoe": "qwen3moe"}
    return facts_from_header(
        build(same_shapes.get(architecture, architecture), recipe(log["default"], log["types"]), **sizes)
    )


def predicted(log: dict[str, Any]) -> Footprint:
    run, n_devices = log["run"], log["devices"]
    rules = BUILDS[log["build"].split()[0]]
    facts = facts_of(log)
    placement = place(
        facts,
        run["gpu_layers"],
        n_devices=n_devices,
        shares=run.get("shares", ()),
        n_cpu_moe=run.get("n_cpu_moe", 0),
    )
    if "host_experts" in run:
        placement = replace(placement, host_experts=frozenset(range(*run["host_experts"])))
    shape = ContextShape.of(
        run["n_ctx"],
        n_batch=run.get("n_batch", 2048),
        n_ubatch=run["n_ubatch"],
        flash=run["flash"],
        kv=tuple(run.get("kv", ("f16", "f16"))),
        swa_full=not rules.windowed_cache,
    )
    found = footprint(facts, shape, placement, alignments=(32,) + (128,) * n_devices, build=rules)
    return replace(found, weights=pinned(log, facts, placement, found.weights))


def pinned(
    log: dict[str, Any], facts: ModelFacts, placement: Placement, sizes: Sequence[int]
) -> tuple[int, ...]:
    """Weights after the log's patterns moved the feed-forward parts of some blocks to another accelerator."""
    moved = list(sizes)
    for first, last, device in log["run"].get("expert_devices", ()):
        for block in range(first, last):
            moved[placement.blocks[block]] -= facts.layers[block].expert_bytes
            moved[device] += facts.layers[block].expert_bytes
    return tuple(moved)


def by_id(field: str) -> list[Any]:
    return [pytest.param(log, id=log["id"]) for log in LOGS if field in log]


def close(found: Sequence[int], printed: Sequence[float], tolerance: float) -> None:
    for ours, theirs in zip(found, printed, strict=True):
        assert ours / MIB == pytest.approx(theirs, rel=tolerance, abs=0.05)


@pytest.mark.parametrize("log", by_id("file_gib"))
def test_tensor_tables_reproduce_the_file(log: dict[str, Any]) -> None:
    """The tables the other tests stand on: same total as the printed file size (nextn tensors aside)."""
    tolerance = 0.012 if log["facts"].get("n_nextn") else 0.002
    assert facts_of(log).size_bytes / (1 << 30) == pytest.approx(log["file_gib"], rel=tolerance)


@pytest.mark.parametrize("log", by_id("weights"))
def test_weights_per_accelerator(log: dict[str, Any]) -> None:
    close(predicted(log).weights[1:], log["weights"], 0.01)


@pytest.mark.parametrize("log", by_id("host_weights"))
def test_weights_on_the_host(log: dict[str, Any]) -> None:
    """Tied embeddings are paid on the host and on the accelerator (C03, C07, C09, B01)."""
    close(predicted(log).weights[:1], [log["host_weights"]], 0.01)


@pytest.mark.parametrize("log", by_id("kv"))
def test_caches_and_states_per_accelerator(log: dict[str, Any]) -> None:
    found = predicted(log)
    close([a + b for a, b in zip(found.kv[1:], found.state[1:], strict=True)], log["kv"], 0.01)


@pytest.mark.parametrize("log", by_id("host_kv"))
def test_caches_on_the_host(log: dict[str, Any]) -> None:
    close(predicted(log).kv[:1], [log["host_kv"]], 0.01)


@pytest.mark.parametrize("log", by_id("compute"))
def test_compute_buffers(log: dict[str, Any]) -> None:
    """Mainline builds only: the fork's graphs are its own."""
    close(predicted(log).compute[1:], log["compute"], LOOSE)


@pytest.mark.parametrize("log", by_id("host_compute"))
def test_host_compute_buffers(log: dict[str, Any]) -> None:
    close(predicted(log).compute[:1], [log["host_compute"]], LOOSE)


def test_most_compute_buffers_are_exact() -> None:
    """The replay is llama.cpp's own allocation, so most buffers agree to the printed digit."""
    logs = [log for log in LOGS if "compute" in log]
    off = [log["id"] for log in logs if abs(predicted(log).compute[1] / MIB - log["compute"][0]) > 0.1]
    assert off == ["A09"]  # the only one with every block on the host and a GPU beside it


def test_a_flat_draft_costs_what_a_real_card_showed() -> None:
    """InventiveHQ's sweep: a 0.5B Q8_0 draft beside a 14B target took 590 MB more on the card."""
    sizes = {"n_layer": 24, "n_embd": 896, "n_head": 14, "n_head_kv": 2, "head_k": 64, "head_v": 64,
             "n_ff": 4864, "n_vocab": 151936, "tied": True}  # fmt: skip
    facts = facts_from_header(build("qwen2", recipe("Q8_0"), **sizes))
    placement = place(facts, 99, n_devices=1)
    shape = ContextShape.of(4096, n_outputs_max=1)
    total = footprint(facts, shape, placement, alignments=(32, 128)).totals[1] / MIB
    assert 540 < total < 640
