"""One tiny GGUF being written: keys through `gguf`, tensors drawn from a fixed seed.

A tensor depends on the seed, its name and its shape only, so two files that share a seed share every
tensor they have in common: a padded vocabulary keeps its first rows, a target with a NextN layer keeps
its trunk. It knows no architecture.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gguf
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

Value = int | float | bool | str | Sequence[int]
"""What an architecture key can hold."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How the tensors of a file are drawn."""

    seed: int
    scale: float = 0.4
    """Standard deviation of the matrices. At 0.02 the argmax ignores all but the last token."""
    jitter: float = 0.0
    """Share of each matrix taken from `jitter_seed` instead: a model that resembles another."""
    jitter_seed: int = 0
    quantization: str | None = None
    """`Q8_0`, `Q4_0`, …: ggml type of the matrices; None = F32."""

    def normal(self, name: str, *shape: int) -> Array:
        """Standard normal values of the tensor `name`; a longer first axis keeps the shorter one's rows."""
        import numpy as np

        def of(seed: int) -> NDArray[np.float64]:
            return np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)

        values = of(self.seed)
        if self.jitter:
            values = np.sqrt(1 - self.jitter**2) * values + self.jitter * of(self.jitter_seed)
        return values.astype(np.float32)

    def vocabulary_table(self, name: str, n_vocab: int, width: int, live: Sequence[int]) -> Array:
        """A matrix `[n_vocab, width]` in which no row outside `live` ever wins an argmax.

        Each of those rows is a weighted mean of live ones, so its logit never exceeds the best of theirs.
        """
        import numpy as np

        ids = np.array(live)
        table = self.normal(name, n_vocab, width) * np.float32(self.scale)
        weights = np.abs(self.normal(f"{name}.mean", n_vocab, len(ids)))
        means: Array = weights / weights.sum(axis=1, keepdims=True) @ table[ids]
        means[ids] = table[ids]
        return means


class TinyFile:
    """An open GGUF; use it through `tiny_file`."""

    def __init__(self, writer: gguf.GGUFWriter, draw: Draw) -> None:
        self.writer = writer
        self.arch = writer.arch
        self.draw = draw

    def set(self, **keys: Value) -> None:
        """Add architecture keys, `a__b` standing for `<arch>.a.b`."""
        writer = self.writer
        for name, value in keys.items():
            key = f"{self.arch}.{name.replace('__', '.')}"
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif isinstance(value, str):
                writer.add_string(key, value)
            else:
                writer.add_array(key, value)

    def base_model(self, name: str) -> None:
        """Add the name of the model this file belongs to."""
        self.writer.add_base_model_count(1)
        self.writer.add_base_model_name(0, name)

    def matrix(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """Add `<name>.weight` of `shape` (outputs × inputs)."""
        self.add(f"{name}.weight", self.draw.normal(name, *shape) * (self.draw.scale * gain), quantize=True)

    def norm(self, name: str, size: int, *, gain: float = 1.0) -> None:
        """Add `<name>.weight` of a norm: around `gain`, so that a forgotten norm weight shows."""
        self.add(f"{name}.weight", gain + 0.1 * gain * self.draw.normal(name, size))

    def vector(self, name: str, *shape: int, scale: float = 0.1, shift: float = 0.0) -> None:
        """Add the tensor `name`, never quantised: a bias, a convolution, a rate."""
        self.add(name, scale * self.draw.normal(name, *shape) + shift)

    def add(self, name: str, values: NDArray[Any], *, quantize: bool = False) -> None:
        """Add an F32 or integer tensor as it is, or quantised like the file's matrices."""
        if values.dtype.kind == "f" and values.itemsize != 4:
            raise TypeError(f"{name} is {values.dtype}, and llama.cpp crashes on it")
        if not (quantize and self.draw.quantization):
            self.writer.add_tensor(name, values)
            return
        import gguf

        kind = gguf.GGMLQuantizationType[self.draw.quantization]
        self.writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


@contextmanager
def tiny_file(path: Path, arch: str, name: str, draw: Draw) -> Iterator[TinyFile]:
    """Write `path` from what the body adds; nothing is left when the body raises."""
    import gguf

    part = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(part, arch)
    try:
        writer.add_name(name)
        quantized = draw.quantization
        writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{quantized}" if quantized else "ALL_F32"])
        yield TinyFile(writer, draw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        part.replace(path)
    finally:
        writer.close()
        part.unlink(missing_ok=True)
