"""A llama.cpp context: batches in, logits out, cells dropped.

Everything llama.cpp would answer with a process abort (too many rows, too many outputs, ids outside the
vocabulary, gaps in positions) is checked here first.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ints
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from localspec.engine.backend.batch import Batch, Tokens, batch_call
from localspec.engine.backend.cancel import CancelFlag, strlen_address
from localspec.engine.backend.library import last_complaint, library, native
from localspec.engine.backend.model import Model
from localspec.engine.settings import FlashAttention, KvType
from localspec.errors import EngineError

if TYPE_CHECKING:
    from localspec.engine.backend.sequence import Sequence

_FLASH = {"auto": -1, "off": 0, "on": 1}
_KV_TYPES: dict[str, str] = {
    "f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "q5_1": "Q5_1",
    "q5_0": "Q5_0", "q4_1": "Q4_1", "q4_0": "Q4_0", "iq4_nl": "IQ4_NL",
}  # fmt: skip
_GGML_BF16 = 30
_KEPT_VIEWS = 64
"""Views of logits kept for reuse: one per row count, until llama.cpp moves its buffer."""

Ids = NDArray[np.int32]
Rows = NDArray[np.float32]


class DecodeAborted(Exception):
    """The cancel flag stopped a decode; finished micro-batches stay in the cache."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one sequence in a pass."""

    tokens: Ids
    """`[n]` ids at positions `start`…"""
    start: int
    seq_id: int
    outputs: int
    """Logits are wanted for the last so many of them."""


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """Sizes and types of one context."""

    n_ctx: int
    """Cells over all sequences; llama.cpp rounds it up to 256."""
    n_batch: int = 2048
    n_ubatch: int = 512
    n_outputs_max: int = 1
    """Most rows of one decode whose logits are wanted."""
    n_seq_max: int = 1
    n_rs_seq: int = 0
    """Snapshots of a recurrent state that a native rollback may go back to."""
    kv: tuple[KvType, KvType] = ("f16", "f16")
    flash_attn: FlashAttention = "auto"
    threads: int = 1
    swa_full: bool = False
    mtp: bool = False
    kv_unified: bool = True
    """One pool of cells for all sequences, so that any rows of any of them fit one pass. Divided evenly
    (False), llama.cpp needs a pass for each group of neighbours with equally many rows."""


class Context:
    """Owns a `llama_context` and the batch that every decode reuses.

    Args:
        other: the target's context, for draft models that use the target's tensors.
        cb_eval: called by llama.cpp for graph nodes (tensor address, asking) → bool.

    Raises:
        EngineError: llama.cpp cannot create the context (usually memory).
    """

    def __init__(
        self,
        model: Model,
        settings: ContextSettings,
        *,
        cancel: CancelFlag | None = None,
        other: Context | None = None,
        cb_eval: Callable[[Any, bool], bool] | None = None,
    ) -> None:
        api = library()
        self.model = model
        self.settings = settings
        self.lock = threading.RLock()
        self._other = other  # freed after us
        self._cancel = cancel or CancelFlag()
        params, self._keep = _params(api, settings, self._cancel, other, cb_eval)
        self.handle: int | None = api.llama_init_from_model(model.handle, params)
        if not self.handle:
            reason = last_complaint() or "llama.cpp gave no reason"
            raise EngineError(
                f"no context of {settings.n_ctx} tokens for `{model.path.name}`: {reason}",
                hint="try a smaller `--ctx`, `--kv q8_0` or fewer `--gpu-layers`",
            )
        self.memory: Any = api.llama_get_memory(self.handle)
        self.n_vocab = model.n_vocab
        self.n_cells: int = api.llama_n_ctx(self.handle)
        self.n_batch: int = api.llama_n_batch(self.handle)
        self.n_ubatch: int = api.llama_n_ubatch(self.handle)
        self.n_rs_seq: int = api.llama_n_rs_seq(self.handle)
        self.most_outputs = max(settings.n_outputs_max, settings.n_seq_max)
        """Rows of one pass whose logits can be had."""
        self.in_order = settings.kv_unified and not model.recurrent
        """Whether up to `n_ubatch` rows of any sequences are computed in the order of the batch."""
        self.hidden_rows = False
        """Also return hidden states after the final norm, for decodes in which every row is an output."""
        self.hidden_on = False
        self.caller: Callable[..., int] | None = None
        """Runs decodes in its own thread: `caller(function, argument)`; None = in whichever asks."""
        self._batch = Batch(self.n_batch, self.n_cells, n_seq_max=settings.n_seq_max)
        self._decode = batch_call("llama_decode")
        self._views: dict[tuple[int, int], Rows] = {}
        self._no_rows: Rows = np.empty((0, self.n_vocab), np.float32)
        self._logits = native("llama_get_logits", ctypes.c_void_p, ctypes.c_void_p)
        self._seq_rm = native(
            "llama_memory_seq_rm",
            ctypes.c_bool,
            ctypes.c_void_p,
            ctypes.c_int32,
            ctypes.c_int32,
            ctypes.c_int32,
        )

    def sequence(self, seq_id: int = 0, n_ctx: int | None = None) -> Sequence:
        """The cells of conversation `seq_id`, limited to `n_ctx` tokens."""
        from localspec.engine.backend.rewind import rewinder_for
        from localspec.engine.backend.sequence import Sequence

        if not 0 <= seq_id < self.settings.n_seq_max:
            raise EngineError(f"sequence {seq_id} of {self.settings.n_seq_max}")
        return Sequence(self, seq_id, n_ctx or self.settings.n_ctx, rewinder_for(self))

    def run(self, tokens: Tokens, start: int, seq_id: int, outputs: int) -> Rows:
        """Decode `tokens` at positions `start`… of one sequence.

        Args:
            tokens: `[n]` ids, n ≤ n_batch.
            outputs: logits are wanted for the last `outputs` of them.

        Returns:
            `[outputs, n_vocab]` view into llama.cpp's buffer, valid until the next decode.

        Raises:
            DecodeAborted: the cancel flag was set.
            EngineError: anything else llama.cpp refuses.
        """
        ids = self._check(tokens, outputs)
        n, batch = len(ids), self._batch
        batch.tokens[:n] = ids
        batch.follow(n, start, outputs, seq_id)
        if self.hidden_rows:
            self._switch_hidden(outputs == n)
        self.call(batch)
        return self.logits(outputs) if outputs else self._no_rows

    def run_parts(self, parts: Ints[Part]) -> Rows:
        """Decode rows of several sequences in one pass.

        Returns:
            `[sum of outputs, n_vocab]` view, part by part, as of `run`, which also lists the errors.
        """
        if len(parts) == 1:
            part = parts[0]
            return self.run(part.tokens, part.start, part.seq_id, part.outputs)
        tokens = np.concatenate([part.tokens for part in parts])
        outputs = sum(part.outputs for part in parts)
        ids = self._check(tokens, outputs)
        lengths = [len(part.tokens) for part in parts]
        self._batch.tokens[: len(ids)] = ids
        self._batch.spread(
            np.concatenate([np.arange(part.start, part.start + len(part.tokens)) for part in parts]),
            np.repeat([part.seq_id for part in parts], lengths),
            np.concatenate([np.arange(-len(part.tokens), 0) >= -part.outputs for part in parts]),
        )
        if self.hidden_rows:
            self._switch_hidden(outputs == len(ids))
        self.call(self._batch)
        return self.logits(outputs)

    def run_side_by_side(self, tokens: Ids, positions: Ids, seq_ids: Ids) -> Rows:
        """Decode row i as position `positions[i]` of sequence `seq_ids[i]`; every row is an output.

        Returns:
            `[n, n_vocab]` view, as of `run`, which also lists the errors.
        """
        n = len(tokens)
        self._batch.tokens[:n] = self._check(tokens, n)
        self._batch.spread(positions, seq_ids, np.ones(n, np.bool))
        if self.hidden_rows:
            self._switch_hidden(True)
        self.call(self._batch)
        return self.logits(n)

    def logits(self, count: int) -> Rows:
        """The first `count` flagged rows of the last decode, `[count, n_vocab]`; waits for the device."""
        if count == 0:
            return self._no_rows
        address = self._logits(self.handle)
        rows = self._views.get((address, count))
        return self._view(address, count) if rows is None else rows

    def _view(self, address: int | None, count: int) -> Rows:
        if not address:
            raise EngineError("llama.cpp returned no logits")
        if len(self._views) >= _KEPT_VIEWS:
            self._views.clear()
        flat = (ctypes.c_float * (count * self.n_vocab)).from_address(address)
        rows: Rows = np.frombuffer(memoryview(flat), np.float32).reshape(count, self.n_vocab)
        self._views[address, count] = rows
        return rows

    def remove(self, seq_id: int, start: int) -> bool:
        """Drop the cells from position `start` on; False when this kind of memory cannot."""
        with self.lock:
            self._check_open()
            return bool(self._seq_rm(self.memory, seq_id, start, -1))

    def last_position(self, seq_id: int) -> int:
        with self.opened():
            return int(library().llama_memory_seq_pos_max(self.memory, seq_id))

    def first_position(self, seq_id: int) -> int:
        with self.opened():
            return int(library().llama_memory_seq_pos_min(self.memory, seq_id))

    def _switch_hidden(self, on: bool) -> None:
        # With embeddings on, llama.cpp makes every row an output, so they are off while a prompt is read.
        if on != self.hidden_on:
            library().llama_set_embeddings(self.handle, on)
            self.hidden_on = on

    def call(self, batch: Batch) -> None:
        """Run a batch that was checked and filled; see `run` for the errors."""
        if self.caller is not None:
            code = self.caller(self._execute, self._decode, batch.native)
        else:
            with self.lock:
                if self.handle is None:
                    self._check_open()
                code = self._decode(self.handle, batch.native)
        if code:
            self._fail(code)

    def _fail(self, code: int) -> None:
        if code == 2:
            raise DecodeAborted
        if code == 1:
            raise EngineError(f"the KV cache of {self.n_cells} cells is full")
        reason = last_complaint() or "no reason given"
        raise EngineError(f"llama.cpp could not decode (code {code}): {reason}")

    def execute(self, function: Callable[[Any, Any], int], argument: Any) -> int:
        """Return `function(handle, argument)`, a call that computes; nobody else touches the context then."""
        if self.caller is not None:
            return self.caller(self._execute, function, argument)
        return self._execute(function, argument)

    def _execute(self, function: Callable[[Any, Any], int], argument: Any) -> int:
        with self.lock:
            self._check_open()
            return function(self.handle, argument)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Nobody else touches the context meanwhile.

        Raises:
            EngineError: it was closed.
        """
        with self.lock:
            self._check_open()
            yield

    def _check_open(self) -> None:
        if self.handle is None:
            raise EngineError("the context is closed")

    def _check(self, tokens: Tokens, outputs: int) -> list[int]:
        """The rows' ids, unless llama.cpp would abort over them."""
        ids = tokens if isinstance(tokens, list) else tokens.tolist()
        n = len(ids)
        if not (
            0 < n <= self.n_batch
            and 0 <= outputs <= min(n, self.most_outputs)
            and min(ids) >= 0
            and max(ids) < self.n_vocab
        ):
            self._refuse(ids, outputs)
        return ids

    def _refuse(self, ids: list[int], outputs: int) -> None:
        n = len(ids)
        if not 0 < n <= self.n_batch:
            raise EngineError(f"{n} rows in a batch of {self.n_batch}")
        if not 0 <= outputs <= min(n, self.most_outputs):
            raise EngineError(f"{outputs} output rows, but at most {self.most_outputs} are reserved")
        bad = next(id for id in ids if not 0 <= id < self.n_vocab)
        raise EngineError(f"token id {bad} is outside the vocabulary of {self.n_vocab}")

    def clear(self) -> None:
        """Forget all sequences."""
        library().llama_memory_clear(self.memory, True)

    def close(self) -> None:
        """Free the context; idempotent. Drafts that share tensors must be closed before their target."""
        with self.lock:
            if self.handle is not None:
                library().llama_free(self.handle)
                self.handle = None


def _params(
    api: Any, settings: ContextSettings, cancel: CancelFlag, other: Context | None, cb_eval: Any
) -> tuple[Any, list[Any]]:
    params = api.llama_context_default_params()
    keep: list[Any] = [cancel]
    params.n_ctx = settings.n_ctx
    params.n_batch = settings.n_batch
    params.n_ubatch = min(settings.n_ubatch, settings.n_batch)
    params.n_seq_max = settings.n_seq_max
    params.n_rs_seq = settings.n_rs_seq
    params.n_outputs_max = max(settings.n_outputs_max, settings.n_seq_max)
    params.n_threads = params.n_threads_batch = settings.threads
    params.flash_attn_type = _FLASH[settings.flash_attn]
    params.type_k, params.type_v = (_ggml_type(api, kind) for kind in settings.kv)
    params.swa_full = settings.swa_full
    params.kv_unified = settings.kv_unified and settings.n_seq_max > 1
    if settings.mtp:
        params.ctx_type = api.LLAMA_CONTEXT_TYPE_MTP
    if other is not None:
        params.ctx_other = other.handle
    address = strlen_address()
    if address is not None:
        params.abort_callback = ctypes.cast(address, api.ggml_abort_callback)
        params.abort_callback_data = ctypes.cast(cancel.buffer, ctypes.c_void_p)
    if cb_eval is not None:
        callback = api.ggml_backend_sched_eval_callback(lambda tensor, ask, _: cb_eval(tensor, ask))
        params.cb_eval = callback
        keep.append(callback)
    return params, keep


def _ggml_type(api: Any, kind: KvType) -> int:
    return int(getattr(api, f"GGML_TYPE_{_KV_TYPES[kind]}", _GGML_BF16))
