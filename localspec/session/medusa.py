"""Reads Medusa head files and puts their output matrices on the engine.

llama.cpp has no Medusa. The residual blocks are small and run in numpy; an output matrix is not, so each
distinct one becomes a one-layer model of its own that does nothing but multiply (format: `selftest.medusa`,
writer: `unembedding`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from localspec.engine.backend.context import Context, ContextSettings
from localspec.engine.backend.features import EmbeddingRunner, post_norm_rows
from localspec.engine.backend.model import Model, ModelSettings, load_model
from localspec.engine.drafters.medusa import Head, MedusaDrafter
from localspec.errors import ModelFileError, PairingError
from localspec.session.reach import draft_device
from localspec.unembedding import EPS, write_unembedding

if TYPE_CHECKING:
    from localspec.session.loading import LoadedPair

Floats = NDArray[np.float32]
FORMAT_VERSION = 1


class PostNorm:
    """Hidden states after the target's final norm, of decodes whose rows are all outputs."""

    def __init__(self, target: Context) -> None:
        target.hidden_rows = True
        self._target = target

    def read(self, n: int) -> Floats | None:
        if not self._target.hidden_on or n > self._target.settings.n_outputs_max:
            return None
        return post_norm_rows(self._target, n).copy()


class EngineUnembedding:
    """An output matrix as a model: returns matrix · x / rms(x), scaled back here."""

    def __init__(self, model: Model, context: Context) -> None:
        self._model = model
        self._context = context
        self._runner = EmbeddingRunner(context, model.n_embd_inp, tokens=False)

    def logits(self, rows: Floats) -> Floats:
        self._context.remove(0, 0)
        self._runner.decode(rows, 0, outputs=True)
        scale = np.sqrt((rows.astype(np.float64) ** 2).mean(axis=1) + EPS).astype(np.float32)
        logits: Floats = self._context.logits(len(rows)) * scale[:, None]
        return logits

    def close(self) -> None:
        self._context.close()
        self._model.close()


def load_medusa(pair: LoadedPair, path: Path) -> tuple[MedusaDrafter, str]:
    """The drafter of a head file for a loaded target.

    Raises:
        ModelFileError: the file is damaged or of a newer format.
        PairingError: the target's output matrix cannot be used.
    """
    from gguf import GGUFReader

    reader = GGUFReader(path)
    version = _number(reader, "medusa.format_version", path)
    if version != FORMAT_VERSION:
        raise ModelFileError(f"`{path}` is of Medusa format {version}, this version reads {FORMAT_VERSION}")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    count = _number(reader, "medusa.block_count", path)
    depth = _number(reader, "medusa.residual_block_count", path)
    width = pair.model.n_embd_out
    unembeddings: list[EngineUnembedding] = []
    heads: list[Head] = []
    shared: int | None = None
    try:
        for i in range(count):
            own = tensors.get(f"head.{i}.lm_head.weight")
            if own is not None:
                _check_shape(own, (width, pair.model.n_vocab), path)
                unembeddings.append(_on_engine(pair, own, count))
                index = len(unembeddings) - 1
            else:
                if shared is None:
                    unembeddings.append(_on_engine(pair, _output_matrix(pair.files.target), count))
                    shared = len(unembeddings) - 1
                index = shared
            heads.append(Head(_blocks(tensors, i, depth, width, path), index))
    except BaseException:
        for each in unembeddings:
            each.close()
        raise

    def close() -> None:
        for each in unembeddings:
            each.close()

    pair.draft_contexts.extend(each._context for each in unembeddings)
    pair.draft_host_bytes += sum(head.size_bytes for head in heads)
    states = PostNorm(pair.context)
    hidden = pair.hold("medusa", states.read) or states
    drafter = MedusaDrafter(heads, list(unembeddings), hidden, pair.model.n_vocab, close)
    return drafter, path.stem


def _number(reader: Any, key: str, path: Path) -> int:
    field = reader.get_field(key)
    if field is None:
        raise ModelFileError(f"`{path}` lacks the key `{key}`")
    return int(field.contents())


def _check_shape(tensor: Any, shape: tuple[int, ...], path: Path) -> None:
    """`shape` as the file stores it, innermost first."""
    found = tuple(int(size) for size in tensor.shape)
    if found != shape:
        raise PairingError(f"`{path.name}` has `{tensor.name}` of shape {found}, this target needs {shape}")


def _blocks(
    tensors: dict[str, Any], head: int, depth: int, width: int, path: Path
) -> list[tuple[Floats, Floats]]:
    from gguf.quants import dequantize

    blocks = []
    for j in range(depth):
        weight, bias = tensors.get(f"head.{head}.{j}.weight"), tensors.get(f"head.{head}.{j}.bias")
        if weight is None or bias is None:
            raise ModelFileError(f"`{path}` lacks the tensors of head {head}, block {j}")
        _check_shape(weight, (width, width), path)
        _check_shape(bias, (width,), path)
        blocks.append(
            (dequantize(weight.data, weight.tensor_type), dequantize(bias.data, bias.tensor_type).reshape(-1))
        )
    return blocks


def _output_matrix(target: Path) -> Any:
    """The target's output matrix, or its embeddings where they are tied."""
    from gguf import GGUFReader

    tensors = {tensor.name: tensor for tensor in GGUFReader(target).tensors}
    matrix = tensors.get("output.weight") or tensors.get("token_embd.weight")
    if matrix is None:
        raise PairingError(
            f"`{target.name}` has no output matrix in its first file that Medusa heads could use"
        )
    return matrix


def _on_engine(pair: LoadedPair, matrix: Any, rows: int) -> EngineUnembedding:
    """Write the matrix as a model, load it, and forget the file."""
    width = int(matrix.shape[0])
    settings = pair.settings
    with tempfile.TemporaryDirectory(prefix="localspec-medusa-") as folder:
        path = Path(folder) / "unembedding.gguf"
        write_unembedding(path, matrix.data, kind=int(matrix.tensor_type), width=width)
        # Not mapped: the file is gone when this block ends.
        placement = ModelSettings(
            gpu_layers=-1 if settings.draft_gpu_layers is None else settings.draft_gpu_layers,
            mmap=False,
            device=draft_device(settings),
            no_alloc=pair.dry,
        )
        model = load_model(path, placement, cancel=pair.cancel)
    batch = max(rows, 1)
    context = Context(
        model,
        ContextSettings(n_ctx=256, n_batch=batch, n_ubatch=batch, n_outputs_max=batch, flash_attn="off",
                        threads=settings.threads or 1),
        cancel=pair.cancel,
    )  # fmt: skip
    if pair.passes is not None:
        context.caller = pair.passes.call
    return EngineUnembedding(model, context)
