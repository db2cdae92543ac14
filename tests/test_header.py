"""GGUF headers: what is read, in how many bytes, and how a bad file is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from localspec.errors import ModelFileError, UsageError
from localspec.header import (
    FileSource,
    ModelFacts,
    draft_kind,
    facts_from_catalogue,
    facts_from_header,
    read_header,
    read_sources,
    shard_paths,
)
from localspec.header.reader import FIRST_READ, Strings
from localspec.pairs import resolve
from tests.kit.ggufs import syn
from tests.kit.shapes import build, recipe

LLAMA = {"architecture": "llama", "n_layer": 32, "n_embd": 4096, "n_head": 32, "n_head_kv": 8, "head_k": 128,
         "head_v": 128, "n_ff": 14336, "n_vocab": 128256, "n_ctx_train": 131072, "tied": False}  # fmt: skip


class Counting:
    """A range source that remembers what was read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.read_bytes = data, 0

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        self.read_bytes += length
        return self.data[offset : offset + length]


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(
    keys: bytes = b"", n_keys: int = 0, tensors: bytes = b"", n_tensors: int = 0, version: int = 3
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys) + keys + tensors


def refusal(data: bytes) -> str:
    with pytest.raises(ModelFileError) as caught:
        read_sources([Counting(data)], "bad.gguf")
    assert "bad.gguf" in caught.value.message
    return caught.value.message


def test_a_tiny_model_is_read_whole() -> None:
    header = read_header(syn("syn"))
    assert header.complete and header.size_bytes == syn("syn").stat().st_size
    tokens = header.get("tokenizer.ggml.tokens")
    assert isinstance(tokens, Strings) and len(tokens.texts()) == 309
    facts = facts_from_header(header)
    assert (facts.architecture, facts.n_layer, facts.n_embd, facts.n_vocab, facts.tied) == (
        "llama",
        3,
        64,
        309,
        False,
    )
    in_blocks = sum(layer.weight_bytes for layer in facts.layers)
    assert in_blocks + facts.embedding_bytes + facts.output_bytes == sum(t.size_bytes for t in header.tensors)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("syn", "model"), ("syn-moe", "model"), ("syn-mtp", "model with nextn"), ("syn-mtp-only", "mtp"),
        ("eagle3", "eagle3"), ("dflash", "dflash"), ("dflash2", "dflash2"), ("dspark", "dspark"),
        ("medusa", "medusa"),
    ],
)  # fmt: skip
def test_the_kind_comes_from_the_contents(name: str, kind: str, tmp_path: Path) -> None:
    disguised = tmp_path / "ordinary-model.gguf"
    disguised.write_bytes(syn(name).read_bytes())
    assert draft_kind(read_header(disguised)) == kind


def test_facts_of_every_memory_kind() -> None:
    window = facts_from_header(read_header(syn("syn-swa")))
    assert window.window == 32 and any(layer.windowed for layer in window.layers)
    hybrid = facts_from_header(read_header(syn("syn-hyb")))
    assert hybrid.recurrent and {layer.kind for layer in hybrid.layers} == {"attention", "recurrent"}
    nextn = facts_from_header(read_header(syn("syn-mtp")))
    assert (nextn.n_layer, nextn.n_nextn, len(nextn.layers)) == (3, 1, 4)
    experts = facts_from_header(read_header(syn("syn-moe")))
    assert (
        experts.n_expert == 4
        and experts.layers[0].expert_bytes > 3 * experts.layers[0].expert_tensor_bytes - 1
    )
    assert facts_from_header(read_header(syn("syn-tied"))).tied
    head = facts_from_header(read_header(syn("eagle3-d2t")))
    assert 0 < head.n_draft_vocab < head.n_vocab and len(head.target_layers) == 3


def test_facts_survive_json() -> None:
    for name in ("syn", "syn-hyb", "syn-swa", "eagle3"):
        facts = facts_from_header(read_header(syn(name)))
        assert ModelFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts
    raw = facts.to_json()
    del raw["n_embd"]
    with pytest.raises(ValueError, match="n_embd"):
        ModelFacts.from_json(raw)


@pytest.mark.real_model
def test_hyper_parameters_are_in_the_first_64_kib() -> None:
    demo_weights = resolve("demo").target
    source = Counting(demo_weights.read_bytes())
    short = read_sources([source], "demo", only_first=True)
    assert source.read_bytes <= FIRST_READ + 4 and not short.complete
    assert short.array_lengths["tokenizer.ggml.tokens"] == 49152
    facts, whole = facts_from_header(short), facts_from_header(read_header(demo_weights))
    assert [layer.n_head_kv for layer in facts.layers] == [layer.n_head_kv for layer in whole.layers]
    assert facts.estimated and not whole.estimated
    source.read_bytes = 0
    assert read_sources([source], "demo").complete
    assert source.read_bytes < 6 << 20


def test_split_files_are_one_model(tmp_path: Path) -> None:
    """Known fault 102: only the first part of a split GGUF was seen."""

    def part(number: int, tensor: str) -> bytes:
        def key(name: str, value: int) -> bytes:
            return text(name) + struct.pack("<IH", 2, value)

        keys = key("split.no", number) + key("split.count", 2)
        keys += text("split.tensors.count") + struct.pack("<Ii", 5, 2)
        row = text(tensor) + struct.pack("<IQIQ", 1, 8, 0, 0)
        head = gguf(keys, 3, row, 1)
        return head + b"\0" * (-len(head) % 32) + b"\0" * 32

    first, second = (tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2))
    first.write_bytes(part(0, "a"))
    with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf.*missing"):
        read_header(first)
    second.write_bytes(part(1, "b"))
    header = read_header(second)
    assert [(t.name, t.shard) for t in header.tensors] == [("a", 0), ("b", 1)]
    assert header.size_bytes == first.stat().st_size + second.stat().st_size
    assert shard_paths(second) == [first, second]
    second.write_bytes(part(0, "b"))
    with pytest.raises(ModelFileError, match="part 0"):
        read_header(first)


def test_bad_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    assert "HTML" in refusal(b"<!doctype html>" * 9)
    assert "LFS" in refusal(b"version https://git-lfs")
    assert "not a GGUF" in refusal(b"")
    assert "big-endian" in refusal(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
    assert "version 1" in refusal(gguf(version=1) + b"\0" * 64)
    assert "truncated" in refusal(gguf(n_keys=5))
    with pytest.raises(ModelFileError, match="does not exist"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="folder"):
        read_header(tmp_path)


def test_hostile_headers_cost_nothing() -> None:
    """Counts, lengths, nesting, dimensions and offsets are checked before anything is allocated."""
    filler = b"\0" * 4096
    huge = 1 << 60
    assert "announces" in refusal(gguf(n_keys=huge, n_tensors=huge) + filler)
    assert "elements" in refusal(gguf(text("k") + struct.pack("<IIQ", 9, 4, huge), 1) + filler)
    assert "text of" in refusal(gguf(struct.pack("<Q", huge), 1) + filler)
    nested = text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50
    assert "nests" in refusal(gguf(nested, 1) + filler)
    assert "value type" in refusal(gguf(text("k") + struct.pack("<I", 77), 1) + filler)
    assert "twice" in refusal(gguf((text("k") + struct.pack("<IB", 0, 1)) * 2, 2) + filler)

    def tensor(*shape: int, kind: int = 0, offset: int = 0, name: str = "t") -> bytes:
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        return text(name) + dims + struct.pack("<IQ", kind, offset)

    assert "dimensions" in refusal(gguf(tensors=tensor(1, 1, 1, 1, 1), n_tensors=1) + filler)
    assert "elements" in refusal(gguf(tensors=tensor(1 << 40, 1 << 40), n_tensors=1) + filler)
    assert "unknown type" in refusal(gguf(tensors=tensor(32, kind=999), n_tensors=1) + filler)
    assert "multiple" in refusal(gguf(tensors=tensor(33, kind=2), n_tensors=1) + filler)
    assert "truncated" in refusal(gguf(tensors=tensor(4096, 4096), n_tensors=1) + filler)
    assert "aligned" in refusal(gguf(tensors=tensor(8, offset=7), n_tensors=1) + filler)
    assert "same name" in refusal(gguf(tensors=tensor(8) * 2, n_tensors=2) + filler)


def test_a_truncated_model_is_noticed_without_reading_it(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(syn("syn").read_bytes()[:-100])
    with pytest.raises(ModelFileError, match="truncated"):
        read_header(cut)


def test_catalogue_facts_match_the_header_of_the_same_model() -> None:
    typing = recipe("Q4_K", [["output.", "Q6_K"], ["attn_v", "Q6_K", "more"], ["ffn_down", "Q6_K", "more"]])
    sizes = {key: value for key, value in LLAMA.items() if key != "architecture"}
    real = facts_from_header(build("llama", typing, **sizes))
    guess = facts_from_catalogue(LLAMA, real.size_bytes, file_type="Q4_K_M")
    assert not guess.unknown and guess.estimated
    assert guess.embedding_bytes == real.embedding_bytes
    assert guess.output_bytes == pytest.approx(real.output_bytes, rel=0.001)
    for ours, theirs in zip(guess.layers, real.layers, strict=True):
        assert ours.weight_bytes == pytest.approx(theirs.weight_bytes, rel=0.03)
        assert (ours.n_head_kv, ours.head_k, ours.n_ff) == (theirs.n_head_kv, theirs.head_k, theirs.n_ff)


def test_missing_catalogue_facts_are_named() -> None:
    assert facts_from_catalogue({"architecture": "llama", "n_layer": 2}, 10**9).unknown[:2] == (
        "n_embd",
        "n_vocab",
    )
    assert "size" in facts_from_catalogue(LLAMA, 0).unknown
    with pytest.raises(UsageError, match="n_heads") as caught:
        facts_from_catalogue({"n_heads": 3}, 1)
    assert "n_head" in str(caught.value.hint)


def test_a_missing_width_is_found_from_the_size() -> None:
    without = {key: value for key, value in LLAMA.items() if key != "n_ff"}
    guess = facts_from_catalogue(without, 4_920_739_232, file_type="Q4_K_M")
    assert guess.layers[0].n_ff == pytest.approx(14336, rel=0.1)


def test_a_file_source_reads_ranges(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    source = FileSource(path)
    assert source.size == 10 and source.read(3, 4) == b"3456" and source.read(8, 9) == b"89"
