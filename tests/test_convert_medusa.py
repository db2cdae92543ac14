"""Published Medusa heads become a file of ours: same numbers, same orientation, own output matrices."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from localspec.header import read_header
from localspec.pairing import verdict
from tests.engine.harness import plain, random_prompt
from tests.engine.learned import Learned, Pair
from tests.engine.test_learned import checked_reply
from tests.kit.ggufs import syn
from tests.kit.reference import Llama, Weights, silu
from tests.kit.reference_drafters import Medusa

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import convert_medusa  # noqa: E402

WIDTH, HEADS = 64, 3
N_VOCAB = len(Llama(syn("syn")).output)
Tensors = dict[str, NDArray[Any]]


def published(
    *, blocks: int = 1, rows: int = N_VOCAB, width: int = WIDTH, dtype: Any = np.float32
) -> Tensors:
    """Heads that resemble nothing, each with an output matrix unlike the target's."""
    rng = np.random.default_rng(4)
    tensors = {}
    for i in range(HEADS):
        for j in range(blocks):
            tensors[f"{i}.{j}.linear.weight"] = rng.standard_normal((width, width)) * 0.4
            tensors[f"{i}.{j}.linear.bias"] = rng.standard_normal(width) * 0.1
        tensors[f"{i}.{blocks}.weight"] = rng.standard_normal((rows, width)) * 0.4
    return {name: values.astype(dtype) for name, values in tensors.items()}


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]], kind: str = "F32") -> Path:
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blob = b""
    for name, values in tensors.items():
        data = values.tobytes()
        table[name] = {
            "dtype": kind,
            "shape": values.shape,
            "data_offsets": [len(blob), len(blob) + len(data)],
        }
        blob += data
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + blob)
    return path


def run(source: Path, out: Path, *more: str, target: str = "syn") -> int:
    return convert_medusa.main([str(source), "--target", str(syn(target)), "-o", str(out), *more])


@pytest.mark.parametrize("blocks", [1, 2])
def test_converted_heads_compute_what_the_published_ones_do(blocks: int, tmp_path: Path) -> None:
    """Formula of the published layout against the reference of ours; the output matrices differ."""
    tensors = published(blocks=blocks)
    source = write_safetensors(tmp_path / "medusa_lm_head.safetensors", tensors)
    out = tmp_path / "heads.gguf"
    assert run(tmp_path, out) == 0, "a folder is searched for the usual names"
    target = Llama(syn("syn"))
    x = np.random.default_rng(1).standard_normal(WIDTH)
    got = Medusa(out, target.output).logits(x)
    for i in range(HEADS):
        h = x
        for j in range(blocks):
            h = h + silu(tensors[f"{i}.{j}.linear.weight"] @ h + tensors[f"{i}.{j}.linear.bias"])
        expected = tensors[f"{i}.{blocks}.weight"] @ h
        assert np.abs(got[i] - expected).max() < 1e-4
        assert np.abs(expected - target.output @ h).max() > 1, "the target's output matrix would be wrong"
    assert source.exists() and not out.with_name("heads.gguf.part").exists()


def test_a_converted_file_drafts_what_its_reference_says(tmp_path: Path) -> None:
    """End to end: pairing accepts it, every draft of a reply is the reference's."""
    write_safetensors(tmp_path / "medusa_lm_head.safetensors", published())
    out = tmp_path / "heads.gguf"
    assert run(tmp_path, out) == 0
    found = verdict(read_header(syn("syn")), read_header(out))
    assert found.kind == "medusa" and found.status == "compatible" and not found.warnings
    assert verdict(read_header(syn("syn-v")), read_header(out)).refused, "bound to the tokenizer"
    checked_reply(Pair("syn", "converted", "medusa", out))


@pytest.mark.parametrize(("kind", "tolerance"), [("keep", 0), ("f16", 1e-3), ("bf16", 1e-2), ("q8_0", 2e-2)])
def test_types_of_the_output_file(kind: str, tolerance: float, tmp_path: Path) -> None:
    tensors = published()
    source = write_safetensors(tmp_path / "heads.safetensors", tensors)
    out = tmp_path / "heads.gguf"
    assert run(source, out, "--type", kind) == 0
    weights = Weights(out)
    for name, ours in (("0.0.linear.weight", "head.0.0.weight"), ("2.1.weight", "head.2.lm_head.weight")):
        assert np.abs(weights[ours] - tensors[name]).max() <= tolerance * np.abs(tensors[name]).max()
    prompt = random_prompt(2, 20)
    with Learned(Pair("syn", "converted", "medusa", out)) as bench:
        result = bench.reply(prompt, k=3, max_tokens=20)
        assert result.ids == list(plain("syn", tuple(prompt), 20)) and result.done.summary.drafted > 20


def test_bf16_and_f16_values_are_kept_to_the_bit(tmp_path: Path) -> None:
    exact = {name: (v.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, v in published().items()}
    bits = {name: (v.view(np.uint32) >> 16).astype(np.uint16) for name, v in exact.items()}
    source = write_safetensors(tmp_path / "bf16.safetensors", bits, "BF16")
    assert run(source, tmp_path / "bf16.gguf") == 0
    half = published(dtype=np.float16)
    assert run(write_safetensors(tmp_path / "f16.safetensors", half, "F16"), tmp_path / "f16.gguf") == 0
    for file, values in (("bf16.gguf", exact), ("f16.gguf", half)):
        weights = Weights(tmp_path / file)
        for i in range(HEADS):
            assert np.array_equal(weights[f"head.{i}.lm_head.weight"], values[f"{i}.1.weight"])
            assert np.array_equal(weights[f"head.{i}.0.bias"], values[f"{i}.0.linear.bias"])


def test_padding_rows_beyond_the_targets_vocabulary_are_cut(tmp_path: Path) -> None:
    tensors = published(rows=N_VOCAB + 7)
    renamed = {f"medusa_head.{name}": values for name, values in tensors.items()}
    assert run(write_safetensors(tmp_path / "h.safetensors", renamed), tmp_path / "h.gguf") == 0
    assert np.array_equal(
        Weights(tmp_path / "h.gguf")["head.1.lm_head.weight"], tensors["1.1.weight"][:N_VOCAB]
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("1.1.weight"), "do not fit the tensors: 1.1.weight"),
        (lambda t: t.pop("2.0.linear.bias"), "do not fit the tensors: 2.0.bias"),
        (lambda t: t.update({"model.norm.weight": t["0.0.linear.bias"]}), "`model.norm.weight` is no tensor"),
        (
            lambda t: t.update({"0.0.linear.weight": t["0.0.linear.weight"][:9]}),
            "[9, 64] instead of [64, 64]",
        ),
        (lambda t: t.update({"0.1.weight": t["0.1.weight"][:50]}), "the heads know 50 tokens"),
        (lambda t: t.update(published(width=32)), "the target's width is 64"),
        (lambda t: t.clear(), "holds no tensors"),
    ],
)
def test_what_does_not_fit_is_one_sentence_and_leaves_no_file(
    change: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = published()
    change(tensors)
    out = tmp_path / "h.gguf"
    assert run(write_safetensors(tmp_path / "h.safetensors", tensors), out) == 1
    assert said in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h.safetensors"]


@pytest.mark.parametrize("spoil", ["short", "length", "json", "offsets", "dtype", "empty"])
def test_damaged_safetensors_are_refused(
    spoil: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_safetensors(tmp_path / "h.safetensors", published())
    data = path.read_bytes()
    path.write_bytes(
        {
            "short": data[: len(data) // 2],
            "length": (2**60).to_bytes(8, "little") + data[8:],
            "json": data[:8] + b"]" + data[9:],
            "offsets": data.replace(b"[0, ", b"[-9,", 1),
            "dtype": data.replace(b'"F32"', b'"I64"', 1),
            "empty": b"",
        }[spoil]
    )
    assert run(path, tmp_path / "h.gguf") == 1
    assert "no usable safetensors file" in capsys.readouterr().err


def test_missing_files_and_a_missing_pytorch_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path / "none.safetensors", tmp_path / "h.gguf") == 1
    assert "does not exist" in capsys.readouterr().err
    assert run(tmp_path, tmp_path / "h.gguf") == 1
    assert "contains none of" in capsys.readouterr().err
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(tmp_path, tmp_path / "h.gguf") == 2
    assert "hint: `pip install torch`" in capsys.readouterr().err
    source = write_safetensors(tmp_path / "h.safetensors", published())
    assert run(source, tmp_path / "no" / "folder" / "h.gguf") == 1
    assert "No such file" in capsys.readouterr().err


def test_a_pytorch_state_dictionary_is_read_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch is no dependency, so a stand-in of the five names that are used."""

    class Tensor:
        def __init__(self, values: NDArray[Any], dtype: str) -> None:
            self.values, self.dtype = values, dtype

        def view(self, dtype: str) -> Tensor:
            assert dtype == "int16"
            return Tensor(self.values.view(np.int16), dtype)

        def numpy(self) -> NDArray[Any]:
            assert self.dtype != "bfloat16", "numpy has no such type"
            return self.values

    tensors = published()
    bits = {name: (v.view(np.uint32) >> 16).astype(np.uint16) for name, v in tensors.items()}
    asked: dict[str, Any] = {}

    def load(path: Path, **how: Any) -> dict[str, Tensor]:
        asked.update(how)
        return {
            name: Tensor(bits[name], "bfloat16") if name.startswith("1.") else Tensor(v, "float32")
            for name, v in tensors.items()
        }

    torch = SimpleNamespace(load=load, Tensor=Tensor, bfloat16="bfloat16", int16="int16")
    monkeypatch.setitem(sys.modules, "torch", torch)
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"x")
    assert run(tmp_path, tmp_path / "h.gguf") == 0
    assert asked["weights_only"] is True
    weights = Weights(tmp_path / "h.gguf")
    assert np.array_equal(weights["head.0.lm_head.weight"], tensors["0.1.weight"])
    assert np.abs(weights["head.1.lm_head.weight"] - tensors["1.1.weight"]).max() < 0.02


@pytest.mark.skipif(os.name != "posix", reason="POSIX only")
def test_the_command_is_executable_and_hands_its_arguments_on() -> None:
    script = ROOT / "scripts" / "convert_medusa"
    assert os.access(script, os.X_OK)
    assert 'convert_medusa.py" "$@"' in script.read_text()
