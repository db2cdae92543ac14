"""Convert Medusa heads from the layout they are published in to localspec's GGUF format.

Published (Cai et al. 2024, FasterDecoding/Medusa), with i the head and j the residual block, L blocks each:

    {i}.{j}.linear.weight, {i}.{j}.linear.bias      x + SiLU(Wx + b)
    {i}.{L}.weight                                  the head's own output matrix

optionally behind `medusa_head.`. Ours is described in `localspec/selftest/medusa.py`; matrices keep their
orientation (outputs × inputs). Tensors are mapped from a safetensors file, so memory stays small; a `.pt`
file needs PyTorch and is read with `weights_only`, because a pickle may run anything.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pickle
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

from localspec.errors import LocalspecError, ModelFileError, PairingError, UsageError
from localspec.header import Header, facts_from_header, read_header
from localspec.pairing import tokenizer_digest
from localspec.selftest.medusa import FORMAT_VERSION

NAMES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "model.safetensors")
"""What a folder of published heads contains, best first."""
_KEY = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(?:linear\.)?(weight|bias)")
_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_MOST_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class Matrix:
    """A tensor as stored; `bf16` values are kept as their 16 bits."""

    data: NDArray[Any]
    bf16: bool = False

    def f32(self) -> NDArray[np.float32]:
        if self.bf16:
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        return self.data.astype(np.float32)


def read_safetensors(path: Path) -> dict[str, Matrix]:
    """The tensors of a safetensors file, mapped.

    Raises:
        ModelFileError: it is none, is damaged, or holds a type that heads do not have.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= min(_MOST_HEADER_BYTES, size - 8):
                raise ValueError
            table = json.loads(file.read(length))
        table.pop("__metadata__", None)
        whole = np.memmap(path, np.uint8, "r")
        return {name: _tensor(whole, 8 + length, entry) for name, entry in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"`{path}` is no usable safetensors file") from error


def _tensor(whole: NDArray[np.uint8], base: int, entry: dict[str, Any]) -> Matrix:
    start, end = entry["data_offsets"]
    kind = _TYPES[entry["dtype"]]
    return Matrix(
        whole[base + start : base + end].view(kind).reshape(entry["shape"]), entry["dtype"] == "BF16"
    )


def read_torch(path: Path) -> dict[str, Matrix]:
    """The tensors of a PyTorch state dictionary.

    Raises:
        UsageError: PyTorch is not installed.
        ModelFileError: the file is no state dictionary.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise UsageError(
            f"`{path.name}` needs PyTorch to be read",
            hint="`pip install torch`, or convert a safetensors file",
        ) from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise ModelFileError(f"`{path}` is no usable PyTorch file: {error}") from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise ModelFileError(f"`{path}` holds something else than tensors by name")
    return {
        name: Matrix(value.view(torch.int16).numpy().view(np.uint16), bf16=True)
        if value.dtype == torch.bfloat16
        else Matrix(value.numpy())
        for name, value in state.items()
    }


def find(source: Path) -> Path:
    """The file of heads: `source` itself or the best known name in that folder."""
    if not source.is_dir():
        if not source.is_file():
            raise ModelFileError(f"`{source}` does not exist")
        return source
    for name in NAMES:
        if (source / name).is_file():
            return source / name
    raise ModelFileError(f"`{source}` contains none of {', '.join(NAMES)}")


@dataclass(frozen=True)
class Heads:
    """Published heads, sorted: `blocks[i][j]` is (weight, bias), `outputs[i]` the output matrix."""

    blocks: list[list[tuple[Matrix, Matrix]]]
    outputs: list[Matrix]


def arrange(tensors: dict[str, Matrix], width: int, n_vocab: int) -> Heads:
    """Sort tensors into heads and check every shape.

    Args:
        width: of the target's final hidden state.
        n_vocab: of the target; further rows of an output matrix are padding and are cut.

    Raises:
        ModelFileError: a tensor is missing, unknown or of another shape.
        PairingError: the heads are of another width or a smaller vocabulary than the target.
    """
    found: dict[tuple[int, int, str], Matrix] = {}
    for name, matrix in tensors.items():
        match = _KEY.fullmatch(name)
        if match is None:
            raise ModelFileError(f"`{name}` is no tensor of Medusa heads")
        found[int(match[1]), int(match[2]), match[3]] = matrix
    if not found:
        raise ModelFileError("the file holds no tensors")
    count = 1 + max(i for i, _, _ in found)
    depth = max(j for _, j, _ in found)
    expected = {(i, j, part) for i in range(count) for j in range(depth) for part in ("weight", "bias")}
    expected |= {(i, depth, "weight") for i in range(count)}
    odd = sorted(expected ^ found.keys())
    if odd or not depth:
        raise ModelFileError(
            f"{count} heads of {depth} residual blocks do not fit the tensors: "
            + (".".join(map(str, odd[0])) if odd else "no block at all")
        )
    for (_, j, part), matrix in found.items():
        _check_shape(matrix.data.shape, j == depth, part, width, n_vocab)
    return Heads(
        [[(found[i, j, "weight"], found[i, j, "bias"]) for j in range(depth)] for i in range(count)],
        [
            Matrix(found[i, depth, "weight"].data[:n_vocab], found[i, depth, "weight"].bf16)
            for i in range(count)
        ],
    )


def _check_shape(shape: tuple[int, ...], output: bool, part: str, width: int, n_vocab: int) -> None:
    if shape[-1:] != (width,) or len(shape) != (1 if part == "bias" else 2):
        raise PairingError(f"the heads have a tensor of shape {list(shape)}, the target's width is {width}")
    if part == "weight" and not output and shape[0] != width:
        raise ModelFileError(f"a residual block has the shape {list(shape)} instead of {[width, width]}")
    if output and shape[0] < n_vocab:
        raise PairingError(f"the heads know {shape[0]} tokens, the target {n_vocab}")


def write(path: Path, heads: Heads, target: Header, *, name: str, kind: str) -> None:
    """Write the GGUF file; nothing is left under its name when that fails.

    Args:
        kind: `keep` stores the matrices as they are, else a ggml type for all of them.
    """
    facts = facts_from_header(target)
    part = path.with_name(path.name + ".part")
    writer = GGUFWriter(part, "medusa")
    try:
        writer.add_name(name)
        for key, value in (
            ("format_version", FORMAT_VERSION), ("block_count", len(heads.blocks)),
            ("residual_block_count", len(heads.blocks[0])), ("embedding_length", facts.n_embd),
            ("vocab_size", facts.n_vocab),
        ):  # fmt: skip
            writer.add_uint32(f"medusa.{key}", value)
        writer.add_string("medusa.target.name", str(target.get("general.name") or target.name))
        writer.add_string("medusa.target.architecture", facts.architecture)
        digest = tokenizer_digest(target)
        if digest is not None:
            writer.add_string("medusa.target.tokenizer_digest", digest)
        for i, blocks in enumerate(heads.blocks):
            for j, (weight, bias) in enumerate(blocks):
                _add(writer, f"head.{i}.{j}.weight", weight, kind)
                writer.add_tensor(f"head.{i}.{j}.bias", bias.f32())
            _add(writer, f"head.{i}.lm_head.weight", heads.outputs[i], kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        part.replace(path)
    finally:
        writer.close()
        part.unlink(missing_ok=True)


def _add(writer: GGUFWriter, name: str, matrix: Matrix, kind: str) -> None:
    if kind == "keep" and not matrix.bf16:
        writer.add_tensor(name, np.ascontiguousarray(matrix.data))
        return
    wanted = GGMLQuantizationType["BF16" if kind == "keep" else kind.upper()]
    if wanted is GGMLQuantizationType.BF16 and matrix.bf16:
        raw = np.ascontiguousarray(matrix.data).view(np.uint8)
    else:
        raw = quantize(matrix.f32(), wanted)
    writer.add_tensor(name, raw, raw_dtype=wanted)


def convert(source: Path, target: Path, out: Path, *, kind: str = "keep") -> Heads:
    """Convert `source` (a file or folder) for the model in `target`.

    Raises:
        LocalspecError: either file is unusable, or they do not belong together.
    """
    header = read_header(target)
    facts = facts_from_header(header)
    file = find(source)
    read: Callable[[Path], dict[str, Matrix]] = (
        read_safetensors if file.suffix == ".safetensors" else read_torch
    )
    heads = arrange(read(file), facts.n_embd, facts.n_vocab)
    write(out, heads, header, name=file.resolve().parent.name, kind=kind)
    return heads


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/convert_medusa", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("heads", type=Path, help="medusa_lm_head.safetensors or .pt, or the folder it is in")
    parser.add_argument(
        "--target", type=Path, required=True, help="GGUF file of the model the heads belong to"
    )
    parser.add_argument("-o", "--out", type=Path, required=True, help="GGUF file to write")
    parser.add_argument(
        "--type", choices=("keep", "f32", "f16", "bf16", "q8_0"), default="keep",
        help="type of the matrices; q8_0 halves their memory (default: as published)",
    )  # fmt: skip
    args = parser.parse_args(argv)
    try:
        heads = convert(args.heads, args.target, args.out, kind=args.type)
    except LocalspecError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"error: `{error.filename or args.out}`: {error.strerror}", file=sys.stderr)
        return 1
    print(
        f"{args.out}: {len(heads.blocks)} heads, {args.out.stat().st_size / 2**20:.0f} MiB; "
        f"try `localspec chat --target {args.target} --draft {args.out}`"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
