"""Verdicts on pairs: what is compatible, what is masked, what is refused and why."""

from __future__ import annotations

import hashlib
import struct
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.errors import PairingError
from localspec.header import Header, Strings, read_header
from localspec.pairing import Verdict, tokenizer_digest, verdict
from tests.kit.ggufs import syn


def header(name: str) -> Header:
    return read_header(syn(name))


def judged(target: str, draft: str) -> Verdict:
    return verdict(header(target), header(draft))


def strings(texts: list[bytes]) -> Strings:
    return Strings(b"".join(struct.pack("<Q", len(text)) + text for text in texts), len(texts))


def model(texts: list[bytes], name: str = "m", **more: Any) -> Header:
    """A header with a vocabulary and nothing else that matters."""
    metadata = {
        "general.architecture": "llama",
        "general.name": name,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": strings(texts),
    }
    metadata |= {key.replace("__", "."): value for key, value in more.items()}
    tensors = header("syn").tensors
    return Header(f"{name}.gguf", metadata, tensors, 1000 + len(name), True)


WORDS = [f"w{n}".encode() for n in range(1000)]


def test_a_model_drafts_for_itself() -> None:
    found = judged("syn", "syn")
    assert found.status == "compatible" and not found.masked_ids and "itself" in found.reasons[0]


def test_same_vocabulary_with_other_weights() -> None:
    found = judged("syn", "syn-b")
    assert found.status == "compatible" and found.n_shared == 309


def test_padded_rows_are_allowed_and_never_proposed() -> None:
    """Known fault 81: 151 936 against 152 064 rows was refused."""
    wider = judged("syn", "syn-w")
    assert wider.status == "compatible" and wider.n_shared == 309
    assert any("beyond the target's" in reason for reason in wider.reasons)
    narrower = judged("syn-w", "syn")
    assert narrower.status == "compatible" and any("padding" in reason for reason in narrower.reasons)


def test_real_tokens_beyond_the_draft_are_no_padding() -> None:
    found = verdict(model([*WORDS, *(f"x{n}".encode() for n in range(200))]), model(WORDS, "d"))
    assert found.refused and "200 of the rest are real" in found.reasons[0]


def test_another_vocabulary_is_refused_with_the_first_differences() -> None:
    """Known fault 82: different vocabularies gave silent nonsense."""
    found = judged("syn", "syn-8")
    assert found.refused and [difference.id for difference in found.differences] == [0, 1, 2]
    assert all(str(difference) in found.reasons[0] for difference in found.differences)
    with pytest.raises(PairingError) as caught:
        found.raise_if_refused()
    assert caught.value.exit_code == 1 and caught.value.hint


def test_a_label_is_not_behaviour() -> None:
    """Known fault 83: the tokenizer's label was compared, not what it does."""
    found = judged("syn", "syn-label")
    assert found.status == "compatible" and any("labelled" in reason for reason in found.reasons)
    swapped = verdict(model(WORDS), model(WORDS, "d", tokenizer__ggml__model="llama"))
    assert swapped.status == "compatible"


def test_a_few_moved_ids_are_masked() -> None:
    found = judged("syn", "syn-v")
    assert found.status == "compatible with mask" and found.masked_ids == (4, 5)
    assert found.text == "compatible with mask (ids 4, 5)"
    found.raise_if_refused()


@given(st.sets(st.integers(0, 999), max_size=40))
def test_exactly_the_differing_ids_are_masked_until_there_are_too_many(ids: set[int]) -> None:
    other = [b"other%d" % n if n in ids else text for n, text in enumerate(WORDS)]
    found = verdict(model(WORDS), model(other, "d"))
    assert found.refused == (len(ids) > 10)
    if not found.refused:
        assert set(found.masked_ids) == ids


def test_bos_counts_only_where_it_is_added() -> None:
    ids = {"tokenizer.ggml.bos_token_id": 1}
    other = {"tokenizer.ggml.bos_token_id": 2}
    silent = {"tokenizer.ggml.add_bos_token": False}
    added = {"tokenizer.ggml.add_bos_token": True}

    def with_keys(name: str, *keys: dict[str, Any]) -> Header:
        base = model(WORDS, name)
        merged = dict(base.metadata)
        for more in keys:
            merged |= more
        return replace(base, metadata=merged)

    assert verdict(with_keys("t", ids, silent), with_keys("d", other, silent)).status == "compatible"
    assert "BOS" in verdict(with_keys("t", ids, added), with_keys("d", other, added)).reasons[0]
    assert verdict(with_keys("t", ids, added), with_keys("d", silent)).status == "compatible"
    ends = verdict(
        with_keys("t", {"tokenizer.ggml.eos_token_id": 3}), with_keys("d", {"tokenizer.ggml.eos_token_id": 4})
    )
    assert ends.status == "compatible" and "ends replies" in ends.warnings[0]


def test_a_hybrid_draft_is_possible_with_a_remark() -> None:
    """Known fault 25: a draft that cannot rewind failed at the first request."""
    found = judged("syn", "syn-hyb")
    assert found.status == "compatible" and any("checkpoint" in warning for warning in found.warnings)
    target = judged("syn-hyb-nosnap", "syn")
    assert any("cannot keep recurrent states" in warning for warning in target.warnings)


@pytest.mark.parametrize(
    "kind", ["eagle3", "eagle3-d2t", "dflash", "dflash2", "dspark", "medusa", "medusa-lm"]
)
def test_heads_fit_their_own_target(kind: str) -> None:
    found = judged("syn", kind)
    assert found.status == "compatible" and found.native and not found.warnings


def test_heads_are_bound_to_widths_vocabulary_and_blocks() -> None:
    assert "width 96" in judged("syn", "eagle3-misfit").reasons[0]
    assert "8" in judged("syn-8", "eagle3").reasons[0]
    head = header("eagle3")
    deep = dict(head.metadata) | {"eagle3.target_layers": (0, 1, 40)}
    assert "block 40" in verdict(header("syn"), replace(head, metadata=deep)).reasons[0]
    last = dict(head.metadata) | {"eagle3.target_layers": (0, 1, 3)}
    assert "final hidden state" in verdict(header("syn"), replace(head, metadata=last)).reasons[0]
    two = dict(head.metadata) | {"eagle3.target_layers": (0, 1)}
    assert any(
        "instead of 3" in reason for reason in verdict(header("syn"), replace(head, metadata=two)).reasons
    )


def test_targets_without_open_states_use_the_callback_and_say_so() -> None:
    head = header("eagle3")
    bare = {key: value for key, value in head.metadata.items() if key != "tokenizer.ggml.tokens"}
    found = verdict(header("syn-qwen2"), replace(head, metadata=bare))
    assert found.status == "compatible" and not found.native
    assert any("callback" in warning for warning in found.warnings)


def test_nextn_blocks_of_another_checkpoint_are_a_warning() -> None:
    """Known fault 85: an MTP file of another model was accepted by width alone."""
    assert judged("syn-hyb", "syn-mtp-only").status == "compatible"
    assert "`qwen35` model" in judged("syn", "syn-mtp-only").reasons[0]
    sidecar = header("syn-mtp-only")
    named = replace(sidecar, metadata=dict(sidecar.metadata) | {"general.name": "Qwen3.6-27B-MTP"})
    target = header("syn-hyb")
    same = replace(target, metadata=dict(target.metadata) | {"general.name": "Qwen3.6-27B"})
    other = replace(target, metadata=dict(target.metadata) | {"general.name": "Qwen3.8-27B"})
    assert not verdict(same, named).warnings
    assert any("fine-tune" in warning for warning in verdict(other, named).warnings)


def test_medusa_heads_know_their_target() -> None:
    heads = header("medusa")
    assert heads.get("medusa.target.tokenizer_digest") == tokenizer_digest(header("syn"))
    moved = dict(heads.metadata) | {"medusa.target.tokenizer_digest": hashlib.sha256(b"x").hexdigest()}
    assert "digest" in verdict(header("syn"), replace(heads, metadata=moved)).reasons[0]
    renamed = dict(heads.metadata) | {"medusa.target.name": "another-model"}
    assert "trained on" in verdict(header("syn"), replace(heads, metadata=renamed)).warnings[0]
    assert "`qwen35` model" in judged("syn", "medusa-few").reasons[0]


def test_files_that_are_no_target_or_no_draft() -> None:
    assert "EAGLE-3" in judged("eagle3", "syn").reasons[0]
    assert "no tokenizer" in judged("syn", "unembedding").reasons[0]
    vision = replace(model(WORDS), metadata={"general.architecture": "clip", "general.type": "mmproj"})
    assert "generates no text" in verdict(header("syn"), vision).reasons[0]
    part = replace(header("syn"), complete=False)
    assert "in part" in verdict(part, header("syn")).reasons[0]


def test_large_vocabularies_are_compared_quickly() -> None:
    texts = [b"token%d" % n for n in range(150_000)]
    target, draft = model(texts), model([*texts[:-1], b"else"], "d")
    began = time.perf_counter()
    found = verdict(target, draft)
    assert time.perf_counter() - began < 0.6  # 0.1 s on an idle core
    assert found.masked_ids == (149_999,)
