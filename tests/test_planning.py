"""Plans of pairs: what a list says offline, what a closer look adds, and when it must say `unknown`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec.budget import Device, host_device
from localspec.catalog import Catalog, Drafter, ModelFile, Pair, load_catalog
from localspec.engine.settings import LoadSettings
from localspec.errors import DoesNotFitError, ModelFileError, UsageError
from localspec.interfaces import Companion, DeviceMemory, DraftKind, MemoryItem, PairFiles, SessionInfo
from localspec.planning import Machine, PairPlan, own_memory, plan_pair, plan_pairs, remember_load, settle
from localspec.planning import machine as machines
from localspec.planning.machine import ask_child, budget_devices, read_machine
from localspec.store.measurements import Measurements
from tests.kit.ggufs import syn

GIB = 1 << 30
MIB = 1 << 20
HOST = host_device(64 * GIB, 64 * GIB)
CARD = "24GB-card"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


@pytest.fixture
def listed(catalog: Catalog, home: Path) -> Callable[..., dict[str, PairPlan]]:
    def plans(**question: Any) -> dict[str, PairPlan]:
        return {plan.name: plan for plan in plan_pairs(catalog, **question)}

    return plans


class TestList:
    def test_most_pairs_are_known_offline(self, listed: Any) -> None:
        plans = listed(budget=CARD, n_ctx=8192)
        unknown = [plan.name for plan in plans.values() if plan.fit == "unknown"]
        assert unknown == ["qwen3-coder-30b-a3b-0.75b"], "nobody states what its draft looks like"
        assert all(plan.simulated and plan.compared_with == "SIM" for plan in plans.values())
        assert all(plan.reason for plan in plans.values() if plan.fit == "unknown")

    @pytest.mark.parametrize(
        ("name", "n_ctx", "fits"),
        [
            ("llama-3.1-8b-1b", 8192, ("fits",)),
            ("qwen2.5-32b-0.5b", 32768, ("partial", "too big")),
            ("qwen3-32b-0.6b", 32768, ("partial", "too big")),
            ("llama-3.3-70b-1b", 8192, ("partial", "too big")),
        ],
    )
    def test_what_a_24_gb_card_holds(self, listed: Any, name: str, n_ctx: int, fits: tuple[str, ...]) -> None:
        """Known fault: the cache and the draft were left out of what a card must hold."""
        plan = listed(budget=CARD, n_ctx=n_ctx)[name]
        assert plan.fit in fits
        assert plan.estimated and plan.source == "catalogue"

    def test_the_whole_catalogue_is_quick(self, catalog: Catalog, home: Path) -> None:
        def took() -> float:
            start = time.process_time()
            plan_pairs(catalog, budget=CARD, n_ctx=8192)
            return time.process_time() - start

        assert min(took() for _ in range(3)) < 1

    def test_a_partial_fit_says_how_many_layers(self, listed: Any) -> None:
        plan = listed(budget=CARD, n_ctx=8192)["llama-3.3-70b-1b"]
        assert plan.fit == "partial" and 0 < plan.gpu_layers < plan.n_layers == 81

    def test_nothing_can_be_told_without_devices(self, listed: Any) -> None:
        plans = listed(machine=Machine(reason="the devices could not be read: it hung"))
        assert {plan.fit for plan in plans.values()} == {"unknown"}
        assert {plan.reason for plan in plans.values()} == {"the devices could not be read: it hung"}
        assert plans["llama-3.1-8b-1b"].total_bytes > 5 * GIB

    def test_no_gpu_is_compared_with_ram_and_labelled_so(self, listed: Any) -> None:
        plan = listed(machine=Machine((HOST,)))["llama-3.1-8b-1b"]
        assert (plan.compared_with, plan.simulated, plan.gpu_layers) == ("CPU", False, 0)

    def test_context_and_cache_types_reach_the_budget(self, listed: Any) -> None:
        short, long = (listed(budget=CARD, n_ctx=n)["llama-3.1-8b-1b"] for n in (4096, 32768))
        small = listed(budget=CARD, n_ctx=32768, kv=("q8_0", "q8_0"))["llama-3.1-8b-1b"]
        assert short.total_bytes < small.total_bytes < long.total_bytes

    def test_a_budget_that_is_none(self, listed: Any) -> None:
        with pytest.raises(UsageError, match="`24 parsecs` is no memory size"):
            listed(budget="24 parsecs")

    def test_state_follows_the_disk(self, catalog: Catalog, listed: Any, home: Path) -> None:
        pair = catalog.pair("llama-3.1-8b-1b")
        models = home / "data" / "models"
        target = pair.target.location(models)
        assert target is not None and pair.draft is not None
        assert listed(budget=CARD)[pair.name].state == "not downloaded"
        target.parent.mkdir(parents=True)
        target.write_bytes(b"GGUF")
        assert listed(budget=CARD)[pair.name].state == "partial download"
        draft = pair.draft.location(models)
        assert draft is not None
        draft.parent.mkdir(parents=True)
        draft.write_bytes(b"GGUF")
        assert listed(budget=CARD)[pair.name].state == "installed"


def files(target: str, draft: str | None = None) -> PairFiles:
    return PairFiles("tiny", syn(target), (Companion("draft", syn(draft)),) if draft else ())


def info(pair: PairFiles, items: tuple[MemoryItem, ...], n_ctx: int = 512) -> SessionInfo:
    return SessionInfo(
        "tiny", "t", (), ("auto",), n_ctx, 64, "llama", LoadSettings(n_ctx=n_ctx, threads=1), items, (),
        build="b",
    )  # fmt: skip


class TestOne:
    def test_files_are_planned_from_their_headers(self, home: Path) -> None:
        plan = plan_pair(files("syn", "syn-w"), machine=Machine((HOST,)), n_ctx=1024)
        assert (plan.fit, plan.source, plan.estimated, plan.state) == ("fits", "header", False, "installed")
        assert plan.verdict is not None and plan.verdict.status == "compatible"
        assert plan.verdict_text is not None and plan.verdict_text.startswith("compatible: ")
        assert plan.explain[0].startswith("context 1024 tokens")
        terms = {item.term for item in plan.bytes}
        assert {"target weights", "target KV", "draft weights", "draft KV", "output buffer"} <= terms

    def test_the_sum_is_the_items(self, home: Path) -> None:
        plan = plan_pair(files("syn", "syn-w"), machine=Machine((HOST,)), n_ctx=1024)
        kept = ("reserve", "backend context")
        assert plan.total_bytes == sum(item.size_bytes for item in plan.bytes if item.term not in kept)
        record = plan.to_record()
        assert (
            sum(row["bytes"] for row in record["bytes"] if row["term"] not in kept) == record["total_bytes"]
        )

    def test_two_companions_are_both_paid_for(self, home: Path) -> None:
        both = PairFiles(
            "tiny", syn("syn"), (Companion("draft", syn("syn-w")), Companion("draft", syn("syn-8")))
        )
        one = plan_pair(files("syn", "syn-w"), machine=Machine((HOST,)), n_ctx=1024)
        two = plan_pair(both, machine=Machine((HOST,)), n_ctx=1024)
        assert two.total_bytes > one.total_bytes
        assert two.devices[0].needed_bytes == two.total_bytes
        assert two.devices[0].usable_bytes == HOST.usable_bytes
        weights = [item.size_bytes for item in two.bytes if item.term == "draft weights"]
        assert len(weights) == 2

    def test_layers_inside_the_target_are_no_second_file(self, home: Path) -> None:
        pair = PairFiles("tiny", syn("syn-mtp"), (Companion("mtp", syn("syn-mtp")),))
        plan = plan_pair(pair, machine=Machine((HOST,)), n_ctx=1024)
        assert (plan.method, plan.draft) == ("mtp", None)
        terms = {item.term for item in plan.bytes}
        assert "draft KV" in terms and "draft weights" not in terms

    def test_a_file_that_is_gone_is_an_error(self, home: Path, tmp_path: Path) -> None:
        with pytest.raises(ModelFileError, match="does not exist"):
            plan_pair(PairFiles("gone", tmp_path / "gone.gguf"), machine=Machine((HOST,)))

    def test_offline_the_catalogue_answers_and_says_what_was_not_read(
        self, catalog: Catalog, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        plan = plan_pair(catalog.pair("llama-3.1-8b-1b"), budget=CARD, n_ctx=8192)
        assert (plan.fit, plan.source, plan.verdict) == ("fits", "catalogue", None)
        assert len(plan.notes) == 2 and all("HF_HUB_OFFLINE" in note for note in plan.notes)

    def test_what_would_help_is_suggested(self, catalog: Catalog, home: Path) -> None:
        plan = plan_pair(catalog.pair("qwen3-32b-0.6b"), budget=CARD, n_ctx=32768, online=False)
        assert {suggestion.setting for suggestion in plan.suggestions} >= {"ctx", "gpu_layers"}

    def test_rpc_devices_align_and_offload_differently(self) -> None:
        found = [
            DeviceMemory("RPC0[a:1]", "", "gpu", 4 * GIB, 8 * GIB),
            DeviceMemory("CUDA0", "", "gpu", 4 * GIB, 8 * GIB),
            DeviceMemory("Vulkan1", "", "igpu", GIB, GIB),
            DeviceMemory("CPU", "", "cpu", GIB, 2 * GIB),
        ]
        rpc, cuda, host = budget_devices(found, {"CUDA0": GIB, "CPU": 4 * GIB})
        assert (rpc.alignment, rpc.op_offload, rpc.overhead_bytes) == (32, False, 0)
        assert (cuda.alignment, cuda.op_offload, cuda.free_bytes) == (128, True, 5 * GIB)
        assert (host.kind, host.alignment, host.free_bytes) == ("cpu", 32, 2 * GIB)

    def test_an_integrated_gpu_counts_where_there_is_no_other(self) -> None:
        found = [DeviceMemory("Vulkan0", "", "igpu", GIB, GIB), DeviceMemory("CPU", "", "cpu", GIB, GIB)]
        assert [device.kind for device in budget_devices(found, {})] == ["igpu", "cpu"]


class TestMeasured:
    ITEMS = (MemoryItem("target weights", "CPU", 5 * MIB), MemoryItem("target KV", "CPU", 7 * MIB))

    def test_the_next_estimate_is_what_the_load_took(self, home: Path) -> None:
        store, pair = Measurements(None), files("syn")
        remember_load(pair, info(pair, self.ITEMS), store)
        question: dict[str, Any] = {
            "machine": Machine((HOST,), "b"), "measurements": store, "load": LoadSettings(n_ctx=512)
        }  # fmt: skip
        plan = plan_pair(pair, **question)
        assert (plan.source, plan.estimated, plan.fit) == ("measured", False, "fits")
        assert {(i.term, i.size_bytes) for i in plan.bytes} >= {
            ("target weights", 5 * MIB),
            ("target KV", 7 * MIB),
        }
        assert 12 * MIB < plan.total_bytes < 13 * MIB, (
            "the output buffer, which llama.cpp does not list, stays"
        )
        assert plan.devices[0].needed_bytes == plan.total_bytes

    @pytest.mark.parametrize(
        "change",
        [{"load": LoadSettings(n_ctx=600)}, {"load": LoadSettings(n_ctx=512, kv=("q8_0", "f16"))},
         {"machine": Machine((HOST,), "another build")}, {"budget": "24GB-card"}],
        ids=["context", "cache type", "build", "simulated"],
    )  # fmt: skip
    def test_it_holds_for_nothing_else(self, home: Path, change: dict[str, Any]) -> None:
        store, pair = Measurements(None), files("syn")
        remember_load(pair, info(pair, self.ITEMS), store)
        question = {"machine": Machine((HOST,), "b"), "load": LoadSettings(n_ctx=512)} | change
        assert plan_pair(pair, measurements=store, **question).source == "header"

    def test_a_second_load_replaces_the_first(self, home: Path) -> None:
        store, pair = Measurements(None), files("syn")
        remember_load(pair, info(pair, self.ITEMS), store)
        remember_load(pair, info(pair, self.ITEMS[:1]), store)
        [(_, rows, _)] = store.items("memory")
        assert len(rows) == 1 and len(rows[0]["items"]) == 1

    def test_nothing_is_kept_where_llama_cpp_says_nothing(self) -> None:
        store, pair = Measurements(None), files("syn")
        remember_load(pair, info(pair, ()), store)
        assert store.items("memory") == []

    def test_what_our_own_worker_holds_counts_as_available(self) -> None:
        assert own_memory(info(files("syn"), self.ITEMS)) == {"CPU": 12 * MIB}


class TestDryRun:
    @pytest.mark.parametrize(
        ("name", "kind", "draft"),
        [("syn", None, ""), ("syn-hyb", None, ""), ("syn-mtp", "mtp", "syn-mtp"), ("syn", "draft", "syn-w"),
         ("syn", "eagle3", "eagle3"), ("syn", "dflash", "dflash2"), ("syn", "medusa", "medusa-lm")],
    )  # fmt: skip
    def test_llama_cpp_and_the_formula_agree(
        self, home: Path, name: str, kind: DraftKind | None, draft: str
    ) -> None:
        """Target and draft files alike: a draft's dry context must never be driven."""
        pair = PairFiles("tiny", syn(name), (Companion(kind, syn(draft)),) if kind else ())
        formula, asked = (
            plan_pair(pair, machine=Machine((HOST,)), n_ctx=1024, dry_run=dry) for dry in (False, True)
        )
        if asked.source != "dry-run" and not asked.notes:
            pytest.skip("macOS only")  # another C++ library lays the breakdown out differently
        assert asked.source == "dry-run", asked.notes
        assert (formula.source, asked.estimated) == ("header", False)
        assert 0.99 * asked.total_bytes <= formula.total_bytes <= 1.03 * asked.total_bytes

    def test_a_run_that_fails_leaves_the_formula_and_says_so(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("localspec.planning.pairs.ask_child", lambda *_: "it hung")
        plan = plan_pair(files("syn"), machine=Machine((HOST,)), n_ctx=1024, dry_run=True)
        assert plan.source == "header" and "it hung" in plan.notes[0]

    def test_a_simulated_card_is_never_asked(self, home: Path) -> None:
        assert plan_pair(files("syn"), budget=CARD, n_ctx=1024, dry_run=True).source == "header"


def gpu(free: int, name: str = "CUDA0") -> Device:
    return Device(name, "gpu", free, free, reserve_bytes=0, overhead_bytes=0)


class TestGate:
    def test_what_fits_is_loaded_as_asked(self) -> None:
        load = LoadSettings(n_ctx=1024)
        assert settle(files("syn", "syn-w"), load, machine=Machine((HOST,))) == load

    def test_what_does_not_fit_is_refused_with_what_would(self) -> None:
        small = Machine((replace(HOST, free_bytes=GIB + 12 * MIB),))
        with pytest.raises(DoesNotFitError, match=r"`tiny` needs .* of RAM") as caught:
            settle(files("syn", "syn-w"), LoadSettings(n_ctx=100_000), machine=small)
        assert caught.value.exit_code == 4
        assert caught.value.hint is not None and caught.value.hint.endswith("`--force` goes on anyway")

    def test_force_loads_it(self) -> None:
        small = Machine((replace(HOST, free_bytes=GIB),))
        load = LoadSettings(n_ctx=100_000)
        assert settle(files("syn"), load, machine=small, force=True) == load

    def test_layers_are_filled_in_where_only_a_part_fits(self) -> None:
        load = LoadSettings(n_ctx=16384)
        whole = plan_pair(files("syn"), load=load, machine=Machine((gpu(64 * GIB), HOST)))
        needed = next(device.needed_bytes for device in whole.devices if device.kind == "gpu")
        some = Machine((gpu(needed - MIB), HOST))
        settled = settle(files("syn"), load, machine=some)
        assert settled.gpu_layers is not None and 0 < settled.gpu_layers < whole.n_layers
        assert settle(files("syn"), replace(load, gpu_layers=1), machine=some).gpu_layers == 1

    def test_unknown_devices_refuse_nothing(self) -> None:
        load = LoadSettings(n_ctx=10**6)
        assert settle(files("syn"), load, machine=Machine(reason="it hung")) == load

    def test_a_device_that_is_not_there(self) -> None:
        machine = Machine((gpu(GIB), HOST))
        with pytest.raises(UsageError, match="unknown device `CUDA1`"):
            settle(files("syn"), LoadSettings(device="CUDA1"), machine=machine)
        assert settle(files("syn"), LoadSettings(device="none"), machine=machine).gpu_layers is None


class TestProbe:
    def test_ram_read_without_llama_cpp_is_of_the_build_that_sessions_name(self) -> None:
        """Measurements are found again although no library was asked."""
        quick = machines._release()
        assert quick and read_machine().build.startswith(quick)

    def test_this_machine_through_the_child(self) -> None:
        found = read_machine()
        assert found.reason is None and found.build.startswith("llama-cpp-python ")
        host = next(device for device in found.devices if device.kind == "cpu")
        assert 0 < host.free_bytes <= host.total_bytes

    def test_asking_loads_no_llama_cpp_here(self) -> None:
        import subprocess
        import sys

        code = (
            "from localspec.planning import read_machine; assert read_machine().devices\n"
            "import sys; assert 'llama_cpp' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_a_child_that_hangs_is_ended_and_the_reason_kept(self) -> None:
        found = read_machine(timeout_s=0.01)
        assert found.devices == () and found.reason is not None and "within 0.01 s" in found.reason

    def test_an_abort_is_a_reason(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        fake = tmp_path / "python"
        fake.write_text("#!/bin/sh\necho 'GGML_ASSERT failed' >&2\nkill -ABRT $$\n")
        fake.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(fake))
        assert ask_child({"ask": "devices"}, 5) == "the probe ended with code -6 (GGML_ASSERT failed)"

    def test_an_rpc_server_that_is_not_there_is_a_reason(self) -> None:
        found = read_machine(rpc=["127.0.0.1:1"])
        assert found.devices == () and found.reason is not None

    def test_ram_within_a_container_is_what_the_container_has(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        limit, used = tmp_path / "max", tmp_path / "current"
        limit.write_text(str(300 * MIB))
        used.write_text(str(100 * MIB))
        monkeypatch.setattr(machines, "_LIMITS", ((limit, used),))
        free = machines.available_ram()
        if free is None:
            pytest.skip("POSIX only")
        assert free == 200 * MIB
        limit.write_text("max\n")
        assert machines.available_ram() != 200 * MIB


def test_a_drafter_with_two_kinds_of_row() -> None:
    """A pair of files becomes the same row that the catalogue would hold."""
    from localspec.planning.pairs import pair_of_files

    pair = pair_of_files(files("syn", "syn-w"))
    assert isinstance(pair, Pair) and isinstance(pair.target, ModelFile)
    assert pair.drafters == (Drafter("draft", pair.draft),) and pair.draft is not None
