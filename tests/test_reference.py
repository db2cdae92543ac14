"""The numpy references: the dense one equals llama.cpp, the heads built on it react to what they read."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.backend import Context, ContextSettings, load_model
from localspec.selftest import VARIANTS
from tests.kit.ggufs import syn
from tests.kit.reference import Llama, Qwen2
from tests.kit.reference_drafters import DFlash, Eagle3, Medusa, Nextn
from tests.kit.reference_mimo2 import Mimo2


def prompt(name: str = "syn", length: int = 30) -> list[int]:
    return [int(id) for id in np.random.default_rng(1).choice(VARIANTS[name].live, length)]


@pytest.mark.parametrize("name", ["syn", "syn-tied", "syn-near", "syn-8", "syn-qwen2", "syn-chain"])
def test_the_dense_reference_equals_llama_cpp(name: str) -> None:
    """Within 1e-3, the bound for numeric checks in the EXACT profile; 1e-5 is usual."""
    ids = prompt(name)
    model = load_model(syn(name))
    settings = ContextSettings(
        n_ctx=256, n_batch=64, n_ubatch=64, n_outputs_max=64, kv=("f32", "f32"), flash_attn="off"
    )
    context = Context(model, settings)
    rows = context.run(np.array(ids, np.int32), 0, 0, len(ids)).copy()
    context.close()
    model.close()
    reference = {"syn-qwen2": Qwen2, "syn-chain": Mimo2}.get(name, Llama)
    assert np.abs(rows - reference(syn(name)).forward(ids).logits).max() < 1e-3


def test_an_eagle3_head_is_often_right_and_wrong_features_show() -> None:
    target = Llama(syn("syn"))
    ids = prompt()
    for _ in range(40):
        ids.append(int(target.forward(ids).logits[-1].argmax()))
    features = target.forward(ids).features([0, 1, 2])
    head = Eagle3(syn("eagle3-norm"), target)
    right = sum(head.draft(ids[: n + 1], features[:n], 1) == ids[n + 1 : n + 2] for n in range(30, 69))
    assert right > 10, "a random head would be right once in a hundred times"
    logits, _ = head.decode(ids[1:31], head.encode(features[:30]))
    swapped, _ = head.decode(ids[1:31], head.encode(np.roll(features[:30], 64, axis=1)))
    assert np.abs(logits - swapped).max() > 0.1, "the order of the layers matters"


def test_a_reduced_vocabulary_leaves_the_other_ids_impossible() -> None:
    target = Llama(syn("syn"))
    ids = prompt()
    head = Eagle3(syn("eagle3-d2t"), target)
    logits, _ = head.decode(ids[1:], head.encode(target.forward(ids).features(head.layers)[:-1]))
    possible = np.flatnonzero(np.isfinite(logits[-1]))
    assert list(possible) == sorted(VARIANTS["syn"].live[::2])


def test_a_nextn_layer_depends_on_the_hidden_state_and_on_history() -> None:
    ids, hidden = prompt("syn-mtp"), np.random.default_rng(0).standard_normal((30, 64))
    layer = Nextn(syn("syn-mtp"))
    logits, _ = layer.decode(ids, hidden)
    moved = hidden.copy()
    moved[10] = 0
    assert np.abs(layer.decode(ids, moved)[0][-1] - logits[-1]).max() > 0.01
    assert np.array_equal(Nextn(syn("syn-mtp-only")).decode(ids, hidden)[0], logits), "the same layer alone"


@pytest.mark.parametrize("name", ["dflash", "dspark", "dflash2"])
def test_a_block_drafter_reads_the_features(name: str) -> None:
    target = Llama(syn("syn"))
    ids = prompt()
    drafter = DFlash(syn(name), target)
    features = target.forward(ids).features(drafter.layers)
    draft = drafter.draft(features, ids[-1], 7)
    assert len(draft) == 7 and len(set(draft)) > 1
    assert drafter.draft(features[::-1], ids[-1], 7) != draft


def test_medusa_heads_differ_and_an_own_output_matrix_counts() -> None:
    target = Llama(syn("syn"))
    hidden = target.forward(prompt()).hidden[-1]
    shared = Medusa(syn("medusa"), target.output).logits(hidden)
    own = Medusa(syn("medusa-lm"), target.output).logits(hidden)
    assert shared.shape == (4, len(target.output))
    assert len(set(shared.argmax(axis=1))) > 1
    assert [bool(np.allclose(a, b)) for a, b in zip(shared, own, strict=True)] == [False, False, True, True]
