"""A pair over two devices: the plan against what was allocated, with an RPC server as the accelerator.

Loads are made in a process of their own: a device once registered stays, and llama.cpp aborts without it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from localspec import cli
from localspec.engine.settings import LoadSettings
from localspec.errors import UsageError
from localspec.interfaces import Companion, DraftKind, PairFiles
from localspec.planning import Machine, PairPlan, plan_pair, read_machine
from tests.kit import rpc
from tests.kit.ggufs import syn

endpoint, endpoints = rpc.endpoint, rpc.endpoints

PAIRS: dict[str, tuple[str, DraftKind | None, str]] = {
    "draft": ("syn", "draft", "syn-w"), "hybrids": ("syn-hyb", "draft", "syn-hyb"),
    "eagle3": ("syn", "eagle3", "eagle3"), "inside": ("syn-mtp", "mtp", "syn-mtp"),
    "sidecar": ("syn-hyb", "mtp", "syn-mtp-only"), "assistant": ("syn-share", "mtp", "assistant"),
    "dflash": ("syn", "dflash", "dflash"), "medusa": ("syn", "medusa", "medusa-lm"),
    "alone": ("syn-moe", None, ""),
}  # fmt: skip
PLACES: dict[str, dict[str, Any]] = {
    "all on the device": {}, "output only": {"gpu_layers": 1},
    "part, draft on the host": {"gpu_layers": 2, "draft_gpu_layers": 0},
    "host, draft on the device": {"gpu_layers": 0}, "all on the host": {"device": "none"},
}  # fmt: skip
APART: dict[str, dict[str, Any]] = {
    "draft device": {"device": "none", "draft_device": "RPC0"}, "draft on the host": {"draft_device": "none"}
}  # fmt: skip
"""Only drafts with an output matrix of their own can be kept apart from the target."""
CASES = [
    (pair, place, settings)
    for pair in PAIRS
    for place, settings in ({**PLACES, **APART} if pair in ("draft", "medusa") else PLACES).items()
]
CLIENT = """
import json, sys
from pathlib import Path
from localspec.engine.backend.cancel import CancelFlag
from localspec.engine.settings import LoadSettings
from localspec.interfaces import Companion, PairFiles
from localspec.session.loading import load_pair
from localspec.session.memory import memory_items
found = []
for target, companions, load in json.loads(sys.stdin.read()):
    lists = {name: tuple(value) for name, value in load.items() if isinstance(value, list)}
    drafting = tuple(Companion(kind, Path(path)) for kind, path in companions)
    files = PairFiles("pair", Path(target), drafting)
    pair = load_pair(files, LoadSettings(**{**load, **lists}), lambda _: None, CancelFlag())
    assert not pair.refused, pair.refused
    found.append([(item.term, item.device, item.size_bytes) for item in memory_items(pair)])
    pair.close()
print(json.dumps(found))
"""
Sizes = dict[str, int]


def files(name: str) -> PairFiles:
    target, kind, draft = PAIRS[name]
    return PairFiles(name, syn(target), (Companion(kind, syn(draft)),) if kind else ())


def load(endpoint: str | tuple[str, ...], place: dict[str, Any]) -> LoadSettings:
    servers = (endpoint,) if isinstance(endpoint, str) else endpoint
    return LoadSettings(n_ctx=2048, threads=1, mmap=False, flash_attn="on", rpc=servers, **place)


def loaded(endpoint: str | tuple[str, ...], cases: Iterable[tuple[str, dict[str, Any]]]) -> list[Sizes]:
    """What each pair takes per device when it is placed so."""
    asked = []
    for name, place in cases:
        pair = files(name)
        companions = [[c.kind, str(c.path)] for c in pair.companions]
        asked.append([str(pair.target), companions, asdict(load(endpoint, place))])
    done = subprocess.run(
        [sys.executable, "-c", CLIENT], input=json.dumps(asked), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [per_device(rows) for rows in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def machine(endpoint: str) -> Machine:
    return read_machine(rpc=[endpoint])


@pytest.fixture(scope="module")
def allocated(endpoint: str) -> list[Sizes]:
    return loaded(endpoint, [(name, place) for name, _, place in CASES])


def per_device(rows: Iterable[tuple[str, str, int]]) -> Sizes:
    """Bytes per device without what llama.cpp does not list."""
    sums: Sizes = defaultdict(int)
    for term, device, size in rows:
        if term not in ("output buffer", "backend context", "reserve"):
            sums[device] += size
    return dict(sums)


def planned(plan: PairPlan) -> Sizes:
    return per_device((item.term, item.device, item.size_bytes) for item in plan.bytes)


def agree(planned: Sizes, real: Sizes) -> None:
    assert set(planned) == set(real)
    for device in real:
        assert 0.99 * real[device] <= planned[device] <= 1.03 * real[device], device


@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{pair}, {place}" for pair, place, _ in CASES])
def test_bytes_per_device(
    home: Path, case: int, endpoint: str, machine: Machine, allocated: list[Sizes]
) -> None:
    """Known faults 51 and 63: per device never 1 % under, at most 3 % over, for drafts as well."""
    name, _, place = CASES[case]
    found = planned(plan_pair(files(name), machine=machine, load=load(endpoint, place)))
    agree(found, allocated[case])


@pytest.mark.parametrize("name", ["draft", "eagle3", "assistant"])
def test_a_dry_run_asks_the_server_too(
    home: Path, name: str, endpoint: str, machine: Machine, allocated: list[Sizes]
) -> None:
    place = "part, draft on the host"
    plan = plan_pair(files(name), machine=machine, load=load(endpoint, PLACES[place]), dry_run=True)
    assert plan.source == "dry-run", plan.notes
    real = next(sizes for case, sizes in zip(CASES, allocated, strict=True) if case[:2] == (name, place))
    assert planned(plan) == real


def test_the_command_says_what_goes_where(
    home: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ("--target", str(syn("syn")), "--draft", str(syn("syn-w")), "--ctx", "2048")
    assert cli.run(["plan", *pair, "--rpc", endpoint, "--gpu-layers", "2", "--draft-gpu-layers", "0"]) == 0
    out, err = capsys.readouterr()
    assert "◔ partial 2/4" in out and "all 4 layers fit on the GPU" in out
    assert "compared with RPC0" in err
    assert cli.run(["plan", *pair, "--rpc", endpoint, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["fit"], record["compared_with"], record["source"]) == ("fits", "GPU", "dry-run")
    assert {item["device"] for item in record["bytes"] if item["term"].endswith("KV")} == {"RPC0"}
    assert {device["name"] for device in record["devices"]} == {"RPC0", "CPU"}


def test_a_device_that_is_not_there(home: Path, machine: Machine, endpoint: str) -> None:
    for place in ({"device": "RPC1"}, {"draft_device": "RPC1"}):
        with pytest.raises(UsageError, match="unknown device `RPC1`"):
            plan_pair(files("draft"), machine=machine, load=load(endpoint, place))


@pytest.mark.parametrize("name", ["eagle3", "dflash", "assistant"])
def test_a_head_apart_from_what_it_borrows_is_refused(
    home: Path, endpoint: str, machine: Machine, name: str
) -> None:
    """llama.cpp would end the process."""
    pair = files(name)
    plan = plan_pair(pair, machine=machine, load=load(endpoint, {"draft_device": "none"}))
    assert "cannot read the target's part on RPC0" in plan.notes[0]
    assert not plan_pair(pair, machine=machine, load=load(endpoint, {"draft_device": "RPC0"})).notes
    assert not plan_pair(files("draft"), machine=machine, load=load(endpoint, {"draft_device": "none"})).notes
    companions = [[c.kind, str(c.path)] for c in pair.companions]
    asked = [[str(pair.target), companions, asdict(load(endpoint, {"draft_device": "none"}))]]
    done = subprocess.run(
        [sys.executable, "-c", CLIENT], input=json.dumps(asked), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 1 and "out of reach of the draft device `none`" in done.stderr


TWO: dict[str, dict[str, Any]] = {
    "as a pipeline": {}, "part": {"gpu_layers": 2}, "in shares": {"tensor_split": (3.0, 1.0)},
    "on the second": {"device": "RPC1"},
}  # fmt: skip


def test_two_devices(home: Path, endpoints: tuple[str, str]) -> None:
    """A model that is on several devices as a whole keeps four copies of its inputs; so does its draft."""
    machine = read_machine(rpc=endpoints)
    cases = [(name, place) for name in PAIRS for place in TWO.values()]
    for (name, place), real in zip(cases, loaded(endpoints, cases), strict=True):
        agree(planned(plan_pair(files(name), machine=machine, load=load(endpoints, place))), real)
