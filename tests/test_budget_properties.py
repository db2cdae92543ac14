"""More of anything never needs less memory: context, layers, KV width, k, batch; random models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.budget import BudgetSettings, Device, DraftPlanInput, host_device, plan, simulated_card
from localspec.budget.contexts import footprint
from localspec.budget.layout import place
from localspec.budget.replay import Graph, replay
from localspec.budget.shape import KV_BYTES, ContextShape, row_bytes
from localspec.header import ModelFacts, facts_from_header
from tests.kit.shapes import build, recipe

GIB = 1 << 30
HOST = host_device(500 * GIB, 512 * GIB)
DEVICES = [simulated_card(400 * GIB), HOST]
WIDTHS = sorted(KV_BYTES, key=lambda kind: row_bytes(kind, 32))

KINDS = ("llama", "qwen3", "gemma3", "glm4", "qwen3moe", "gpt-oss", "qwen35", "deepseek2")


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    """A model of a random architecture and size."""
    kind = draw(
        st.sampled_from(["llama", "qwen3", "gemma3", "glm4", "qwen3moe", "gpt-oss", "qwen35", "deepseek2"])
    )
    heads_kv = draw(st.sampled_from([1, 2, 4, 8]))
    head = draw(st.sampled_from([64, 128, 256]))
    heads = heads_kv * draw(st.sampled_from([1, 2, 4, 8]))
    sizes: dict[str, Any] = {
        "n_layer": draw(st.integers(1, 12)) * 4, "n_embd": 256 * draw(st.integers(2, 24)), "n_head": heads,
        "n_head_kv": heads_kv, "head_k": head, "head_v": head, "n_ff": 256 * draw(st.integers(2, 64)),
        "n_vocab": 256 * draw(st.integers(40, 1000)), "n_ctx_train": 131072, "tied": draw(st.booleans()),
    }  # fmt: skip
    if kind in ("gemma3", "gpt-oss"):
        sizes["window"] = draw(st.sampled_from([128, 1024]))
    if kind in ("qwen3moe", "gpt-oss", "deepseek2"):
        sizes |= {"n_expert": 16, "n_expert_used": 4, "n_ff_expert": 256 * draw(st.integers(1, 8))}
    if kind == "deepseek2":
        sizes |= {"n_head_kv": 1, "head_k": 576, "head_v": 512, "kv_lora_rank": 512, "rope_dim": 64,
                  "mla_head_k": 192, "mla_head_v": 128}  # fmt: skip
    if kind == "qwen35":
        sizes |= {"ssm_conv": 4, "ssm_state": 128, "ssm_groups": 8, "ssm_inner": 2048, "ssm_heads": 16}
    return facts_from_header(build(kind, recipe("Q8_0"), **sizes))


def total(facts: ModelFacts, chosen: BudgetSettings, draft: DraftPlanInput | None = None) -> int:
    return plan(facts, draft, chosen, DEVICES, detail=False).total_bytes


@st.composite
def choices(draw: st.DrawFn) -> BudgetSettings:
    flash = draw(st.booleans())
    kinds = WIDTHS if flash else ["f16", "f32"]
    return BudgetSettings(
        n_ctx=256 * draw(st.integers(1, 256)),
        kv=(draw(st.sampled_from(kinds)), draw(st.sampled_from(kinds))),
        n_ubatch=draw(st.sampled_from([32, 128, 512, 1024])),
        k_max=draw(st.integers(1, 32)),
        flash=flash,
        gpu_layers=draw(st.one_of(st.none(), st.integers(0, 40))),
        swa_full=draw(st.booleans()),
    )


@settings(max_examples=60, deadline=None)
@given(models(), choices(), st.integers(1, 64))
def test_monotone_in_context(facts: ModelFacts, chosen: BudgetSettings, steps: int) -> None:
    """Known fault 59: the estimate ignored or misread an input."""
    longer = replace(chosen, n_ctx=chosen.n_ctx + 256 * steps)
    assert total(facts, longer) >= total(facts, chosen)


@settings(max_examples=40, deadline=None)
@given(models(), choices(), st.integers(1, 512))
def test_monotone_in_batch(facts: ModelFacts, chosen: BudgetSettings, more: int) -> None:
    larger = replace(chosen, n_ubatch=chosen.n_ubatch + more)
    assert total(facts, larger) >= total(facts, chosen)


@settings(max_examples=40, deadline=None)
@given(models(), choices(), st.integers(1, 16))
def test_monotone_in_k(facts: ModelFacts, chosen: BudgetSettings, more: int) -> None:
    draft = DraftPlanInput("draft", facts)
    longer = replace(chosen, k_max=chosen.k_max + more)
    assert total(facts, longer, draft) >= total(facts, chosen, draft)


@settings(max_examples=40, deadline=None)
@given(models(), choices())
def test_monotone_in_kv_width(facts: ModelFacts, chosen: BudgetSettings) -> None:
    if not chosen.flash:
        chosen = replace(chosen, flash=True)
    sizes = []
    for kind in ("q4_0", "q8_0"):  # both rotated
        sizes.append(total(facts, replace(chosen, kv=(kind, kind))))
    assert sizes == sorted(sizes)
    f16, f32 = (total(facts, replace(chosen, kv=(kind, kind))) for kind in ("f16", "f32"))
    assert f16 <= f32 and sizes[0] < f16 + 64 * GIB


@settings(max_examples=40, deadline=None)
@given(models(), choices(), st.integers(0, 20))
def test_more_layers_on_the_accelerator_weigh_more_there(
    facts: ModelFacts, chosen: BudgetSettings, layers: int
) -> None:
    card = replace(DEVICES[0], op_offload=False)

    def on_card(n: int) -> int:
        found = plan(facts, None, replace(chosen, gpu_layers=n), [card, HOST], detail=False)
        return sum(found.on(card.name, f"target {term}") for term in ("weights", "KV", "state"))

    assert on_card(layers + 1) >= on_card(layers)


@settings(max_examples=30, deadline=None)
@given(models(), choices())
def test_the_largest_context_is_the_largest(facts: ModelFacts, chosen: BudgetSettings) -> None:
    needed = sum(size for use in plan(facts, None, chosen, DEVICES).devices for size in [use.needed_bytes])
    card = Device("GPU", "gpu", needed + 2 * GIB, needed + 2 * GIB)
    chosen = replace(chosen, gpu_layers=None, flash=True)
    found = plan(facts, None, chosen, [card, HOST], detail=False)
    if not 0 < found.largest_ctx < facts.n_ctx_train:
        return
    at, beyond = (
        plan(facts, None, replace(chosen, n_ctx=found.largest_ctx + extra), [card, HOST], detail=False)
        for extra in (0, 256)
    )
    assert at.fit in ("fits", "tight") and beyond.fit not in ("fits", "tight")


@given(models())
def test_a_device_more_moves_bytes_but_keeps_the_sum_of_weights(facts: ModelFacts) -> None:
    def weights(n: int) -> int:
        placement = place(facts, 99, n_devices=n)
        shape = ContextShape.of(1024, n_outputs_max=8)
        return sum(footprint(facts, shape, placement, alignments=(32,) + (128,) * n).weights)

    assert weights(1) == weights(2) == weights(3)


def test_an_inplace_chain_takes_one_slot() -> None:
    graph = Graph()
    x = graph.op(1000, "x", graph.leaf(320, "in"))
    for _ in range(5):
        x = graph.op(1000, "next", x, inplace=True)
    graph.kept.add(x)
    assert replay(graph, (32,)).peaks == (320 + 1024,)


def test_freed_space_is_used_again_best_fit_first() -> None:
    graph = Graph()
    source = graph.leaf(32, "in")
    first, second = graph.op(640, "a", source), graph.op(320, "b", source)
    third = graph.op(64, "c", second)
    graph.op(320, "d", third)  # b's place
    graph.kept.add(first)
    found = replay(graph, (32,), detail=True)
    assert found.peaks == (32 + 640 + 320 + 64,)
    assert dict(found.largest[0])["a"] == 640


def test_reading_from_another_device_copies_once() -> None:
    graph = Graph()
    source = graph.leaf(320, "in")
    graph.device = 1
    a = graph.op(64, "a", source)
    graph.kept.add(graph.op(64, "b", a, source))
    host, card = replay(graph, (32, 128)).peaks
    assert host == 320 and card == 384 + 128 + 128


def test_borrowed_weights_share_a_place() -> None:
    """Host weights copied for large products: each opens a split, so one tensor's space serves all."""
    graph = Graph(device=1)
    x = graph.op(128, "x")
    for n in range(3):
        x = graph.op(128, "y", graph.buffer(1 << 20, f"w{n}", 0), x)
    assert replay(graph, (32, 128)).peaks[1] < (1 << 20) * 1.01 + 1024


@pytest.mark.parametrize("n_seq", [1, 2, 5])
def test_contexts_are_padded_like_llama_cpp(n_seq: int) -> None:
    split = ContextShape.of(1000, n_seq=n_seq, unified=False)
    assert split.n_ctx_seq % 256 == 0 and split.n_ctx == split.n_ctx_seq * n_seq
    assert ContextShape.of(1000).n_ctx == 1024
    assert split.n_tokens % n_seq == 0
