"""The tiny models: each loads, depends on its history, and is what its name says."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from localspec.engine.backend import Context, ContextSettings, Model, load_model
from localspec.engine.backend.model import ModelVocabulary
from localspec.errors import UsageError
from localspec.header.kind import FileKind, draft_kind
from localspec.header.reader import read_header
from localspec.pairing import verdict
from localspec.selftest import VARIANTS, Variant, closing_cycle, history_matters, write
from localspec.selftest.targets import Target, write_llama
from localspec.selftest.vocab import EIGHT, TEXT
from localspec.selftest.weights import Draw, tiny_file
from tests.kit.ggufs import syn

TARGETS = tuple(variant for variant in VARIANTS.values() if variant.kind == "target")


class Forward:
    """Logits of the last position in the EXACT profile; continues the cache when the ids do."""

    def __init__(self, path: Path) -> None:
        self.model: Model = load_model(path)
        self._context = Context(
            self.model,
            ContextSettings(n_ctx=256, n_batch=256, n_ubatch=256, kv=("f32", "f32"), flash_attn="off"),
        )
        self._ids: list[int] = []

    def __call__(self, ids: Sequence[int]) -> NDArray[np.float32]:
        known = len(self._ids)
        if known >= len(ids) or list(ids[:known]) != self._ids:
            self._context.clear()
            known = 0
        self._ids = list(ids)
        rows = self._context.run(np.array(ids[known:], np.int32), known, 0, 1)
        last: NDArray[np.float32] = rows[0].copy()
        return last

    def close(self) -> None:
        self._context.close()
        self.model.close()


def agreement(one: str, other: str, *, cases: int = 60) -> float:
    """Share of random prompts after which two models choose the same id."""
    forwards = Forward(syn(one)), Forward(syn(other))
    rng = np.random.default_rng(2)
    prompts = [rng.choice(VARIANTS[one].live, 24).tolist() for _ in range(cases)]
    n_vocab = forwards[0].model.n_vocab
    same = sum(
        int(forwards[0](prompt).argmax()) == int(forwards[1](prompt)[:n_vocab].argmax()) for prompt in prompts
    )
    for forward in forwards:
        forward.close()
    return same / cases


@pytest.mark.parametrize("variant", TARGETS, ids=lambda variant: variant.name)
def test_a_targets_next_token_depends_on_its_history(variant: Variant) -> None:
    """A model that ignores its history hides every broken cache; its greedy text keeps to its live ids."""
    forward = Forward(syn(variant.name))
    said: set[int] = set()

    def spied(ids: Sequence[int]) -> NDArray[np.float32]:
        logits = forward(ids)
        said.add(int(logits.argmax()))
        return logits

    check = history_matters(spied, live=variant.live, cases=60)
    forward.close()
    assert check.passed, check
    assert said <= set(variant.live)
    assert len(said) > 2


def test_the_usual_size_of_random_weights_fails_the_check(tmp_path: Path) -> None:
    """At 0.02 the argmax follows the last token alone."""
    write_llama(tmp_path / "weak.gguf", Target("weak", Draw(seed=1, scale=0.02), quiet=1))
    forward = Forward(tmp_path / "weak.gguf")
    check = history_matters(forward, live=TEXT.readable, cases=60, greedy_tokens=100)
    forward.close()
    assert not check.passed


def test_cycles_are_found_by_their_shortest_period() -> None:
    assert closing_cycle([9, 8, 7] + [1, 2, 3] * 20) == 3
    assert closing_cycle([5] * 60) == 1
    assert closing_cycle(list(range(100))) is None
    assert closing_cycle(list(range(60)) * 2) is None, "60 is no short cycle"


def test_all_files_are_written_within_two_seconds(tmp_path: Path) -> None:
    start = time.process_time()
    for name in VARIANTS:
        write(name, tmp_path)
    assert time.process_time() - start < 2.0
    assert {path.stem for path in tmp_path.iterdir()} == set(VARIANTS), "nothing but the models is left"


def test_writing_is_repeatable_and_keeps_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    path, again = write("syn-hyb", tmp_path), write("syn-hyb", tmp_path / "again")
    assert path.read_bytes() == again.read_bytes() == syn("syn-hyb").read_bytes()
    path.write_bytes(b"kept")
    assert write("syn-hyb", tmp_path).read_bytes() == b"kept"


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with pytest.raises(TypeError, match="float64"), tiny_file(path, "llama", "x", Draw(1)) as file:
        file.add("wide", np.zeros(4))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown tiny model `syn-swe`") as caught:
        write("syn-swe", Path())
    assert caught.value.hint == "did you mean `syn-swa`?"


def test_importing_the_writers_loads_neither_numpy_nor_gguf() -> None:
    code = "import sys, localspec.selftest; print(*{'numpy', 'gguf', 'llama_cpp'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


KINDS: dict[str, FileKind] = {
    "target": "model", "eagle3": "eagle3", "mtp": "mtp", "dflash": "dflash", "medusa": "medusa",
    "unembedding": "model",
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda variant: variant.name)
def test_the_header_tells_what_a_file_is(variant: Variant) -> None:
    stem = variant.name.removesuffix("-few")
    expected = stem if stem in ("dspark", "dflash2") else KINDS[variant.kind]
    if variant.name.startswith(("syn-mtp", "syn-chain")) and variant.kind == "target":
        expected = "model with nextn"
    if variant.name == "assistant":
        expected = "gemma4-assistant"
    header = read_header(syn(variant.name))
    assert draft_kind(header) == expected
    assert header.get("general.name") == variant.name or variant.kind == "unembedding"


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.base])
def test_a_companion_fits_its_target_and_only_the_misfit_is_refused(name: str) -> None:
    """Names, widths, tokenizer and its digest as the pairing check reads them."""
    target = read_header(syn(VARIANTS[name].base or ""))
    judged = verdict(target, read_header(syn(name)))
    assert judged.status == ("refused" if name in ("eagle3-misfit", "unembedding") else "compatible")
    assert judged.warnings == ()


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[ModelVocabulary]:
    model = load_model(syn("syn"))
    yield model.vocabulary
    model.close()


@given(text=st.text(max_size=40))
def test_any_text_survives_the_tokenizer(vocabulary: ModelVocabulary, text: str) -> None:
    ids = vocabulary.tokenize(text, special=False, add_special=False)
    assert b"".join(vocabulary.piece(id) for id in ids) == text.encode()


def test_emoji_split_in_both_ways(vocabulary: ModelVocabulary) -> None:
    """For known fault 49: a character of four bytes in tokens of 2 + 2 and of 1 + 3 bytes."""
    for emoji, split in (("😀", [2, 2]), ("🚀", [1, 3])):
        ids = vocabulary.tokenize(emoji, special=False, add_special=False)
        assert [len(vocabulary.piece(id)) for id in ids] == split


def test_specials_are_read_as_such_and_end_generation(vocabulary: ModelVocabulary) -> None:
    ids = vocabulary.tokenize("<|im_start|>user\nhi<|im_end|>", special=True, add_special=True)
    assert ids[:2] == [TEXT.bos, TEXT.tokens.index("<|im_start|>")] and ids[-1] == TEXT.eot
    assert vocabulary.eog == {TEXT.eos, TEXT.eot}
    assert all(vocabulary.piece(id).decode() for id in TEXT.readable), "live text is whole characters"


def test_variants_of_the_vocabulary_differ_where_they_say() -> None:
    moved = TEXT.with_eot_moved()
    assert [i for i in range(len(TEXT)) if moved.tokens[i] != TEXT.tokens[i]] == [TEXT.eot, TEXT.mask]
    padded = TEXT.padded(11)
    assert padded.tokens[: len(TEXT)] == TEXT.tokens and len(padded) == len(TEXT) + 11
    with pytest.raises(ValueError, match="end-of-turn"):
        EIGHT.with_eot_moved()


def test_padding_rows_win_unless_they_are_masked() -> None:
    """For known fault 81: a draft that is not masked proposes ids the target does not have."""
    forward, rng = Forward(syn("syn-w")), np.random.default_rng(0)
    best = [int(forward(rng.choice(TEXT.readable, 24).tolist()).argmax()) for _ in range(60)]
    forward.close()
    assert any(id >= len(TEXT) for id in best)
    assert agreement("syn", "syn-w") == 1.0


def test_relatives_agree_as_much_as_their_names_promise() -> None:
    assert agreement("syn", "syn-b") < 0.1
    assert 0.3 < agreement("syn", "syn-near") < 0.9
    assert 0.3 < agreement("syn", "syn-q4_0") < agreement("syn", "syn-q8_0") <= 1.0
    assert 0.2 < agreement("syn-8", "syn-8-near") < 0.9


def test_a_target_keeps_its_trunk_beside_a_nextn_layer() -> None:
    assert agreement("syn-hyb", "syn-mtp", cases=10) == 1.0
    assert agreement("syn-hyb-few", "syn-mtp-few", cases=10) == 1.0
