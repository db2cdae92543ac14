"""What learned drafters read from the target and feed to their own contexts: hidden states, embedding rows.

All of it is staging API of llama.cpp, resolved late; a build without it raises one clear error and every
other drafter keeps working.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from collections.abc import Sequence as Ints
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.engine.backend.batch import Batch, batch_call
from localspec.engine.backend.context import Context, DecodeAborted, Ids
from localspec.engine.backend.library import last_complaint, library, native, staging
from localspec.errors import EngineError

Floats = NDArray[np.float32]

LAYER_INPUT_ARCHITECTURES = frozenset([
    "llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "qwen4exp", "gpt-oss", "gemma4",
    "minimax-m2", "minimax-01", "muse-glimmer", "nanbeige", "mimo2", "nemotron_h", "nemotron_h_moe",
    "hunyuan_vl", "hunyuan-dense", "lfm2", "lfm2moe", "bailingmoe3", "deepseek4",
])  # fmt: skip
"""Architectures whose graph exposes layer inputs; asking another one aborts the process."""
NEXTN_ARCHITECTURES = frozenset([
    "gpt-oss", "gemma4", "qwen35", "qwen35moe", "qwen3next", "step35", "mimo2", "glm4moe", "deepseek2",
    "deepseek32", "deepseek4", "glm-dsa", "glm5-next", "hy-v3", "cohere2moe", "nemotron_h",
    "nemotron_h_moe", "bailingmoe3",
])  # fmt: skip
"""Architectures that emit the hidden state before the final norm; others would silently give zeros."""


class FeatureSource(Protocol):
    """Rows of hidden states of the target's last decode."""

    width: int

    def read(self, n: int) -> Floats:
        """`[n, width]`, one row per token of the last decode; a copy."""


class LayerInputs:
    """Inputs of chosen target layers, concatenated per token in the given order.

    Args:
        layers: layer indices; the layer count itself means the hidden state before the final norm.
    """

    def __init__(self, target: Context, layers: Ints[int]) -> None:
        self._target = target
        self._layers = tuple(layers)
        self._n_embd = target.model.n_embd
        self.width = self._n_embd * len(self._layers)
        architecture = target.model.architecture
        if architecture not in LAYER_INPUT_ARCHITECTURES:
            raise EngineError(f"targets of architecture `{architecture}` do not expose their layer inputs")
        for layer in self._layers:
            if layer < target.model.n_layer:
                staging("set_embeddings_layer_inp")(target.handle, layer, True)
            elif layer == target.model.n_layer and architecture in NEXTN_ARCHITECTURES:
                emit_nextn(target, masked=False)
            else:
                n_layer = target.model.n_layer
                raise EngineError(f"layer {layer} of {n_layer} of a `{architecture}` target cannot be read")
        self._read = staging("get_embeddings_layer_inp")

    def read(self, n: int) -> Floats:
        out = np.empty((n, self.width), np.float32)
        for i, layer in enumerate(self._layers):
            columns = out[:, i * self._n_embd : (i + 1) * self._n_embd]
            if layer == self._target.model.n_layer:
                columns[:] = nextn_rows(self._target, n, self._n_embd)
            else:
                columns[:] = _floats(self._read(self._target.handle, layer), n, self._n_embd)
        return out


class LayerCapture:
    """The same through the graph-evaluation callback, for architectures that do not expose layer inputs.

    Pass `self` as `cb_eval` when the target's context is created. Layer input `i` is the output of layer
    i - 1, that of layer 0 the embeddings; a decode of several micro-batches is joined.

    Args:
        most_rows: rows of the longest decode; older ones are forgotten, for nobody may be reading.
    """

    def __init__(self, layers: Ints[int], n_embd: int, most_rows: int = 2048) -> None:
        self.layers = tuple(layers)
        self.taken = False
        """Whether a drafter reads it: rows are gone once read."""
        self._most_rows = most_rows
        self._names = {
            f"l_out-{layer - 1}".encode() if layer else b"embd": i for i, layer in enumerate(layers)
        }
        self._n_embd = n_embd
        self.width = n_embd * len(self._names)
        self._rows: list[list[Floats]] = [[] for _ in self._names]

    def __call__(self, tensor: int, asking: bool) -> bool:
        index = self._names.get(_tensor_name(tensor))
        if index is None:
            return not asking
        if asking:
            return True
        n = native("ggml_nelements", ctypes.c_int64, ctypes.c_void_p)(tensor) // self._n_embd
        rows = np.empty((n, self._n_embd), np.float32)
        get = native(
            "ggml_backend_tensor_get",
            None,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_size_t,
        )
        get(tensor, rows.ctypes.data, 0, rows.nbytes)
        kept = self._rows[index]
        kept.append(rows)
        while sum(map(len, kept)) - len(kept[0]) >= self._most_rows:
            del kept[0]
        return True

    def read(self, n: int) -> Floats:
        joined = [
            np.concatenate(rows) if rows else np.empty((0, self._n_embd), np.float32) for rows in self._rows
        ]
        for rows in self._rows:
            rows.clear()
        if any(len(rows) < n for rows in joined):
            raise EngineError("the target's layer outputs were not captured for every token")
        return np.concatenate([rows[-n:] for rows in joined], axis=1)


def _tensor_name(tensor: int) -> bytes:
    name: bytes = native("ggml_get_name", ctypes.c_char_p, ctypes.c_void_p)(tensor) or b""
    return name


class NextnRows:
    """Hidden states before the final norm (MTP); enables them on the target."""

    def __init__(self, target: Context) -> None:
        architecture = target.model.architecture
        if architecture not in NEXTN_ARCHITECTURES:
            raise EngineError(f"targets of architecture `{architecture}` emit no hidden state for MTP layers")
        emit_nextn(target, masked=False)
        self._target = target
        self.width = target.model.n_embd_out

    def read(self, n: int) -> Floats:
        return nextn_rows(self._target, n, self.width).copy()


class HeldRows:
    """Hidden states of one reply's newest decode, where other replies decode on the same context.

    llama.cpp keeps those of the last pass only, so they are read inside the pass that made them.

    Args:
        source: reads the newest `n` rows; None where a decode has none.
    """

    def __init__(self, source: Callable[[int], Floats | None], width: int = 0) -> None:
        self._source = source
        self.width = width
        self._rows: Floats | None = None

    def grab(self, total: int, first: int, n: int) -> None:
        """Keep `n` rows from row `first` on of the pass of `total` rows that was just made."""
        rows = self._source(total)
        self._rows = None if rows is None else rows[first : first + n]

    def read(self, n: int) -> Floats:
        """`[n, width]` rows of the newest decode; None where its source had none."""
        if self._rows is not None and len(self._rows) != n:
            raise EngineError(f"{len(self._rows)} hidden states were kept of a decode of {n} rows")
        return self._rows  # type: ignore[return-value]


def emit_nextn(context: Context, *, masked: bool) -> None:
    """Make a draft context return the hidden states that its next step needs.

    Args:
        masked: only those of output rows.
    """
    staging("get_embeddings_nextn")  # missing later would be missing too late
    staging("set_embeddings_nextn")(context.handle, True, masked)


def select_nextn_layer(context: Context, index: int) -> None:
    """Which of several MTP layers the next decodes of an MTP context run; an index too high would abort."""
    if not 0 <= index < context.model.n_layer_nextn:
        raise EngineError(f"MTP layer {index} of {context.model.n_layer_nextn}")
    staging("set_nextn_layer_offset")(context.handle, index)


def set_causal(context: Context, causal: bool) -> None:
    """Whether a row sees only the rows before it; without, a batch must fit one micro-batch."""
    library().llama_set_causal_attn(context.handle, causal)


def nextn_rows(context: Context, n: int, width: int) -> Floats:
    """`[n, width]` view of the last decode's (or encode's) hidden rows."""
    return _floats(staging("get_embeddings_nextn")(context.handle), n, width)


def post_norm_rows(context: Context, n: int) -> Floats:
    """`[n, n_embd_out]` view of the hidden states after the final norm; needs `context.hidden_rows`."""
    address = native("llama_get_embeddings", ctypes.c_void_p, ctypes.c_void_p)(context.handle)
    return _floats(address, n, context.model.n_embd_out)


def target_layers(draft: Context) -> tuple[int, ...]:
    """Target layers that a draft model reads, from its file."""
    n = staging("model_target_layer_ids_n")(draft.model.handle)
    address = staging("model_target_layer_ids")(draft.model.handle)
    if not n or not address:
        raise EngineError(f"`{draft.model.path.name}` does not say which target layers it reads")
    return tuple((ctypes.c_int32 * n).from_address(address))


def _floats(address: int | None, n: int, width: int) -> Floats:
    if not address:
        raise EngineError("llama.cpp returned no hidden states")
    flat = (ctypes.c_float * (n * width)).from_address(address)
    rows: Floats = np.frombuffer(memoryview(flat), np.float32).reshape(n, width)
    return rows


class EmbeddingRunner:
    """Decodes or encodes rows of embeddings, with tokens beside them or alone, on a draft context.

    Args:
        width: floats per row that this kind of call reads; a wrong one would be read out of bounds, so it
            is fixed here from the model's own figures.
        tokens: whether each row also has a token.
    """

    def __init__(self, context: Context, width: int, *, tokens: bool) -> None:
        self._context = context
        self.width = width
        # Embedding-only rows of M-RoPE models carry four positions each: p, p, p, 0, section by section.
        self._sections = 4 if context.model.mrope and not tokens else 1
        self._batch = Batch(
            context.n_batch, context.n_cells, width=width, tokens=tokens, sections=self._sections
        )
        self._encode = batch_call("llama_encode")

    def decode(self, rows: Floats, start: int, *, outputs: bool, tokens: Ids | None = None) -> None:
        """Append rows at positions `start`…; all of them are outputs, or none."""
        self._fill(rows, start, outputs, tokens)
        self._context.call(self._batch)

    def encode(self, rows: Floats, position: int) -> None:
        """Run the encoder over at most n_ubatch rows; its result is read with `nextn_rows`.

        Nothing is stored, but llama.cpp checks `position` against the newest cell all the same.
        """
        if len(rows) > self._context.n_ubatch:
            raise EngineError(f"{len(rows)} rows to encode in a micro-batch of {self._context.n_ubatch}")
        self._fill(rows, position, True, None)
        code = self._context.execute(self._encode, self._batch.native)
        if code == 2:
            raise DecodeAborted
        if code != 0:
            raise EngineError(
                f"llama.cpp could not encode (code {code}): {last_complaint() or 'no reason given'}"
            )

    def _fill(self, rows: Floats, start: int, outputs: bool, tokens: Ids | None) -> None:
        n = len(rows)
        if not 0 < n <= self._context.n_batch or rows.shape[1] != self.width:
            raise EngineError(
                f"{rows.shape} embedding rows where at most {self._context.n_batch} of {self.width} fit"
            )
        if outputs and n > self._context.most_outputs:
            raise EngineError(f"{n} output rows, but at most {self._context.most_outputs} are reserved")
        self._batch.rows[:n] = rows
        if tokens is not None:
            self._batch.tokens[:n] = tokens.tolist()
        self._batch.follow(n, start, n if outputs else 0)
        if self._sections == 4:
            self._batch.in_sections(n, start)
