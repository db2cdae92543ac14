"""The target as a teacher: its vocabulary, its matrices, and a copy of its weights that decodes faster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import ModelFileError

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What trainers need to know of a target file."""

    name: str
    architecture: str
    width: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_vocab: int
    n_ctx: int
    rope_base: float
    eps: float
    tokens: tuple[str, ...]

    @property
    def head_size(self) -> int:
        return self.width // self.n_head

    @property
    def layers(self) -> tuple[int, int, int]:
        """Inputs of an early, a middle and a late layer, as the EAGLE-3 converters choose them."""
        return (min(2, self.n_layer - 1), self.n_layer // 2, max(self.n_layer - 3, 0))


def read_target(path: Path) -> TargetFacts:
    """Facts of a target GGUF.

    Raises:
        ModelFileError: the file lacks a key that a trainer needs.
    """
    reader = _reader(path)

    def key(name: str, default: Any = None) -> Any:
        field = reader.fields.get(name.replace("*", architecture))
        if field is None and default is None:
            raise ModelFileError(f"`{path.name}` has no `{name}`, so nothing can be trained for it")
        return default if field is None else field.contents()

    architecture = ""
    architecture = key("general.architecture")
    tokens = tuple(key("tokenizer.ggml.tokens"))
    n_head = int(key("*.attention.head_count"))
    return TargetFacts(
        name=str(key("general.name", path.stem)),
        architecture=architecture,
        width=int(key("*.embedding_length")),
        n_layer=int(key("*.block_count")),
        n_ff=int(key("*.feed_forward_length")),
        n_head=n_head,
        n_head_kv=int(key("*.attention.head_count_kv", n_head)),
        n_vocab=len(tokens),
        n_ctx=int(key("*.context_length")),
        rope_base=float(key("*.rope.freq_base", 10000.0)),
        eps=float(key("*.attention.layer_norm_rms_epsilon")),
        tokens=tokens,
    )


def matrix(path: Path, *names: str) -> Floats:
    """The first of the named tensors that the file has, unpacked, outputs × inputs.

    Raises:
        ModelFileError: it has none of them.
    """
    found = tensors(path)
    for name in names:
        if name in found:
            return unpack(found[name])
    raise ModelFileError(f"`{path.name}` has no tensor `{names[0]}`")


def layer_matrices(path: Path, layer: int) -> dict[str, Floats]:
    """The weights of one layer by name: `attn_q`, `ffn_down`, …"""
    prefix = f"blk.{layer}."
    found = ((name, tensor) for name, tensor in tensors(path).items() if name.startswith(prefix))
    return {name.removeprefix(prefix).removesuffix(".weight"): unpack(tensor) for name, tensor in found}


def tensors(path: Path) -> dict[str, Any]:
    """By name, still packed."""
    return {tensor.name: tensor for tensor in _reader(path).tensors}


def unpack(tensor: Any) -> Floats:
    """A tensor of a `GGUFReader` as float32, outputs × inputs."""
    import gguf

    shape = [int(n) for n in tensor.shape][::-1]
    flat = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return np.asarray(flat, np.float32).reshape(shape)


def write_fast_copy(source: Path, copy: Path) -> None:
    """The same weights, unpacked to BF16 once: batches decode 2.6 times faster on a CPU with AVX512-BF16.

    What it writes is the target's own text up to rounding, which is all that training data needs; heads
    are evaluated against the source file.
    """
    import gguf

    reader = _reader(source)
    kind = gguf.GGMLQuantizationType.BF16
    part = copy.with_name(copy.name + ".part")
    writer = gguf.GGUFWriter(part, str(reader.fields["general.architecture"].contents()))
    _copy_keys(reader, writer, "")
    for tensor in reader.tensors:
        rows = unpack(tensor)
        if rows.ndim == 1:
            writer.add_tensor(tensor.name, rows)
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(rows, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(copy)


def copy_tokenizer(source: Path, writer: Any) -> None:
    """Give a file being written the tokenizer of another."""
    _copy_keys(_reader(source), writer, "tokenizer.")


def _copy_keys(reader: Any, writer: Any, prefix: str) -> None:
    import gguf

    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue  # the writer adds its own
        if field.name.startswith(prefix):
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub_type)


def _reader(path: Path) -> Any:
    """
    Raises:
        ModelFileError: the file is missing or no GGUF.
    """
    import gguf

    try:
        return gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise ModelFileError(f"`{path}` cannot be read as a GGUF file: {error}") from error
