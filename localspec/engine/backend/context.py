"""A llama.cpp context and the sequences that live in it.

Everything llama.cpp would answer with a process abort (too many rows, too many outputs, ids outside the
vocabulary, gaps in positions) is checked here first. Token ids of every cell are remembered, so that a
sequence that cannot drop its last cells can be replayed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.engine.backend.cancel import CancelFlag, strlen_address
from localspec.engine.backend.library import last_complaint, library, native
from localspec.engine.backend.model import Model
from localspec.engine.settings import FlashAttention, KvType
from localspec.errors import EngineError

_FLASH = {"auto": -1, "off": 0, "on": 1}
_KV_TYPES: dict[str, str] = {
    "f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "q5_1": "Q5_1",
    "q5_0": "Q5_0", "q4_1": "Q4_1", "q4_0": "Q4_0", "iq4_nl": "IQ4_NL",
}  # fmt: skip
_GGML_BF16 = 30

Ids = NDArray[np.int32]
Rows = NDArray[np.float32]


class DecodeAborted(Exception):
    """The cancel flag stopped a decode; finished micro-batches stay in the cache."""


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
    """One pool of cells for all sequences; False divides them evenly, which costs less attention."""


class Context:
    """Owns a `llama_context` and the batch arrays every decode reuses.

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
        self.hidden_rows = False
        """Also return hidden states after the final norm, for decodes in which every row is an output."""
        self.hidden_on = False
        self._arrays = _BatchArrays(api, self.n_batch, settings.n_seq_max, model.n_embd_inp)
        self._decode = native("llama_decode", ctypes.c_int32, ctypes.c_void_p, api.llama_batch)
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

        if not 0 <= seq_id < self.settings.n_seq_max:
            raise EngineError(f"sequence {seq_id} of {self.settings.n_seq_max}")
        return Sequence(self, seq_id, n_ctx or self.settings.n_ctx, rewinder_for(self))

    def run(self, tokens: Ids, start: int, seq_id: int, outputs: int) -> Rows:
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
        n = len(tokens)
        self._check(tokens, n, outputs)
        arrays = self._arrays
        arrays.tokens[:n] = tokens
        arrays.positions[:n] = arrays.ramp[:n]
        arrays.positions[:n] += start
        arrays.outputs[:n] = 0
        arrays.outputs[n - outputs : n] = 1
        arrays.seq_rows[:n] = arrays.seq_address[seq_id]
        arrays.batch.n_tokens = n
        if self.hidden_rows:
            self._switch_hidden(outputs == n)
        self.call(arrays.batch)
        return self.logits(outputs)

    def run_side_by_side(self, tokens: Ids, positions: Ids, seq_ids: Ids) -> Rows:
        """Decode row i as position `positions[i]` of sequence `seq_ids[i]`; every row is an output.

        Returns:
            `[n, n_vocab]` view, as of `run`, which also lists the errors.
        """
        n = len(tokens)
        self._check(tokens, n, n)
        arrays = self._arrays
        arrays.tokens[:n] = tokens
        arrays.positions[:n] = positions
        arrays.outputs[:n] = 1
        arrays.seq_rows[:n] = arrays.seq_address[seq_ids]
        arrays.batch.n_tokens = n
        if self.hidden_rows:
            self._switch_hidden(True)
        self.call(arrays.batch)
        return self.logits(n)

    def logits(self, count: int) -> Rows:
        """The first `count` flagged rows of the last decode, `[count, n_vocab]`; waits for the device."""
        if count == 0:
            return np.empty((0, self.n_vocab), np.float32)
        address = self._logits(self.handle)
        if not address:
            raise EngineError("llama.cpp returned no logits")
        flat = (ctypes.c_float * (count * self.n_vocab)).from_address(address)
        rows: Rows = np.frombuffer(memoryview(flat), np.float32).reshape(count, self.n_vocab)
        return rows

    def remove(self, seq_id: int, start: int) -> bool:
        """Drop the cells from position `start` on; False when this kind of memory cannot."""
        return bool(self._seq_rm(self.memory, seq_id, start, -1))

    def last_position(self, seq_id: int) -> int:
        return int(library().llama_memory_seq_pos_max(self.memory, seq_id))

    def first_position(self, seq_id: int) -> int:
        return int(library().llama_memory_seq_pos_min(self.memory, seq_id))

    def _switch_hidden(self, on: bool) -> None:
        # With embeddings on, llama.cpp makes every row an output, so they are off while a prompt is read.
        if on != self.hidden_on:
            library().llama_set_embeddings(self.handle, on)
            self.hidden_on = on

    def call(self, batch: Any) -> None:
        """Run a batch that was checked and filled; see `run` for the errors."""
        with self.lock:
            code = self._decode(self.handle, batch)
        if code == 2:
            raise DecodeAborted
        if code == 1:
            raise EngineError(f"the KV cache of {self.n_cells} cells is full")
        if code != 0:
            raise EngineError(
                f"llama.cpp could not decode (code {code}): {last_complaint() or 'no reason given'}"
            )

    def _check(self, tokens: Ids, n: int, outputs: int) -> None:
        if self.handle is None:
            raise EngineError("the context is closed")
        if not 0 < n <= self.n_batch:
            raise EngineError(f"{n} rows in a batch of {self.n_batch}")
        if not 0 <= outputs <= min(n, self.settings.n_outputs_max):
            raise EngineError(
                f"{outputs} output rows, but at most {self.settings.n_outputs_max} are reserved"
            )
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.n_vocab:
            bad = low if low < 0 else high
            raise EngineError(f"token id {bad} is outside the vocabulary of {self.n_vocab}")

    def clear(self) -> None:
        """Forget all sequences."""
        library().llama_memory_clear(self.memory, True)

    def close(self) -> None:
        """Free the context; idempotent. Drafts that share tensors must be closed before their target."""
        if self.handle is not None:
            library().llama_free(self.handle)
            self.handle = None


class Sequence:
    """One conversation's cells: an append-only cache with a rollback.

    `n_past` cells are filled; `ids[:n_past]` are their tokens.
    """

    def __init__(self, context: Context, seq_id: int, n_ctx: int, rewinder: Any) -> None:
        self.context = context
        self.seq_id = seq_id
        self.n_ctx = n_ctx
        self.n_vocab = context.n_vocab
        self.n_batch = context.n_batch
        self.n_past = 0
        self.ids: Ids = np.zeros(context.n_cells + 1, np.int32)
        self.last_rows = 0
        """Rows of the newest decode, for rollbacks that are bounded by it."""
        self._rewinder = rewinder

    def decode(self, tokens: Ids, outputs: int) -> Rows:
        """Append `tokens` and return logits `[outputs, n_vocab]` of the last ones; see `Context.run`."""
        n, start = len(tokens), self.n_past
        if start + n > self.n_ctx:
            raise EngineError(f"{start + n} tokens in a context of {self.n_ctx}")
        self.ids[start : start + n] = tokens
        try:
            rows = self.context.run(tokens, start, self.seq_id, outputs)
        except DecodeAborted:
            self.n_past = self.context.last_position(self.seq_id) + 1
            self._rewinder.decoded(self, max(self.n_past - start, 0))
            raise
        self.n_past = start + n
        self.last_rows = n
        self._rewinder.decoded(self, n)
        return rows

    def prefill(self, tokens: Ids) -> None:
        """Append any number of tokens in chunks, without logits."""
        for start in range(0, len(tokens), self.n_batch):
            self.decode(tokens[start : start + self.n_batch], 0)

    @property
    def rewinds_freely(self) -> bool:
        """Whether any number of newest cells can be dropped without a saved state."""
        return not self.context.model.recurrent

    @property
    def undo_limit(self) -> int | None:
        """Most rows of one decode that can be dropped again, or None for any number."""
        limit: int | None = self._rewinder.limit
        return limit

    def guard(self) -> None:
        """Before a verification: make sure its rows can be dropped (a checkpoint where needed)."""
        self._rewinder.guard(self)

    def mark_reusable(self) -> None:
        """Remember this point as one a later turn may return to."""
        self._rewinder.mark(self)

    def reusable_prefix(self, n: int) -> int:
        """The longest prefix of at most `n` cells that `truncate` reaches without decoding again."""
        return int(self._rewinder.reachable(self, n))

    def truncate(self, n: int) -> int:
        """Keep the first `n` cells; returns the number of tokens that had to be decoded again.

        Raises:
            EngineError: the cells could not be dropped.
        """
        if not 0 <= n <= self.n_past:
            raise EngineError(f"cannot keep {n} of {self.n_past} cells")
        if n == self.n_past:
            return 0
        return int(self._rewinder.truncate(self, n))


class _BatchArrays:
    """A `llama_batch` over numpy memory, filled by slices."""

    def __init__(self, api: Any, n_batch: int, n_seq_max: int, n_embd: int) -> None:
        self.tokens: Ids = np.zeros(n_batch, np.int32)
        self.positions: Ids = np.zeros(n_batch, np.int32)
        self.ramp: Ids = np.arange(n_batch, dtype=np.int32)
        self.outputs = np.zeros(n_batch, np.int8)
        self._seq_ids: Ids = np.arange(n_seq_max, dtype=np.int32)
        self._seq_count: Ids = np.ones(n_batch, np.int32)
        base = self._seq_ids.ctypes.data
        self.seq_address = np.array([base + 4 * i for i in range(n_seq_max)], np.uintp)
        self.seq_rows = np.full(n_batch, base, np.uintp)
        self.batch = api.llama_batch()
        fields = {name: kind for name, kind in api.llama_batch._fields_}
        for name, array in (
            ("token", self.tokens), ("pos", self.positions), ("n_seq_id", self._seq_count),
            ("seq_id", self.seq_rows), ("logits", self.outputs),
        ):  # fmt: skip
            setattr(self.batch, name, ctypes.cast(array.ctypes.data, fields[name]))


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
