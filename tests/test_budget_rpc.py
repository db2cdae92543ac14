"""Layers on another device: the formula against llama.cpp with an RPC server as its accelerator.

The processes are apart from the test's: a device once registered stays, and llama.cpp aborts when it is gone.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from localspec.budget.contexts import footprint
from localspec.budget.layout import place
from localspec.budget.shape import ContextShape
from localspec.header import facts_from_header, read_header
from tests.kit import rpc
from tests.kit.ggufs import syn

endpoint = rpc.endpoint
MODELS = ("syn", "syn-tied", "syn-moe", "syn-swa", "syn-hyb", "syn-mtp")
LAYERS = (0, 1, 2, 99)
CONTEXT = {"n_ctx": 2048, "n_batch": 512, "n_ubatch": 256, "n_outputs_max": 5}
CLIENT = """
import json, sys
from pathlib import Path
from localspec.engine.backend.context import Context, ContextSettings
from localspec.engine.backend.devices import add_rpc_server, memory_breakdown
from localspec.engine.backend.model import ModelSettings, load_model
asked = json.loads(sys.argv[1])
add_rpc_server(asked["endpoint"])
found = []
for path, layers in asked["loads"]:
    model = load_model(Path(path), ModelSettings(gpu_layers=layers, mmap=False))
    context = Context(model, ContextSettings(flash_attn="on", **asked["context"]))
    uses = memory_breakdown(context)
    rows = [(u.device.startswith("RPC"), u.model_bytes, u.context_bytes, u.compute_bytes) for u in uses or ()]
    found.append(rows)
    context.close()
    model.close()
print(json.dumps(found))
"""
LOADS = [(name, layers) for name in MODELS for layers in LAYERS]


@pytest.fixture(scope="module")
def measured(endpoint: str) -> list[list[tuple[bool, int, int, int]]]:
    asked = {
        "endpoint": endpoint,
        "loads": [(str(syn(name)), layers) for name, layers in LOADS],
        "context": CONTEXT,
    }
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(asked)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[list[tuple[bool, int, int, int]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", range(len(LOADS)), ids=[f"{name}-{layers}" for name, layers in LOADS])
def test_bytes_per_device(case: int, measured: list[list[tuple[bool, int, int, int]]]) -> None:
    """Weights, caches and states to 0.2 % per device; compute never 1 % under, at most 5 % and 4 KiB over."""
    name, layers = LOADS[case]
    facts = facts_from_header(read_header(syn(name)))
    shape = ContextShape.of(**CONTEXT, swa_full=False)
    placement = place(facts, layers, n_devices=1, op_offload=False)
    ours = footprint(facts, shape, placement, alignments=(32, 32))
    for device in (0, 1):
        real = [sum(row[term] for row in measured[case] if row[0] == bool(device)) for term in (1, 2, 3)]
        assert ours.weights[device] == pytest.approx(real[0], rel=0.002)
        assert ours.kv[device] + ours.state[device] == pytest.approx(real[1], rel=0.002)
        assert 0.99 * real[2] <= ours.compute[device] <= 1.05 * real[2] + 4096
