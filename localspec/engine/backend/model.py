"""One GGUF model in memory: its weights, vocabulary and the facts the engine decides by."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.engine.backend.cancel import CancelFlag
from localspec.engine.backend.library import clear_log_tail, last_complaint, library
from localspec.errors import EngineError, ModelFileError


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How to place a model's weights; `gpu_layers` counts the output layer, -1 = all."""

    gpu_layers: int = -1
    mmap: bool = True
    mlock: bool = False
    device: str | None = None
    tensor_split: tuple[float, ...] = ()
    n_cpu_moe: int = 0
    load_mtp: bool = False
    no_alloc: bool = False
    """Metadata and buffer sizes only; such a model must never decode."""


class Model:
    """Owns a `llama_model`; contexts made from it must be closed first."""

    def __init__(self, handle: int, path: Path, keep_alive: tuple[Any, ...] = ()) -> None:
        api = library()
        self.handle: int | None = handle
        self.path = path
        self._keep_alive = keep_alive
        self.n_vocab: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(handle))
        self.n_embd: int = api.llama_model_n_embd(handle)
        self.n_embd_out: int = api.llama_model_n_embd_out(handle)
        self.n_embd_inp: int = api.llama_model_n_embd_inp(handle)
        self.n_layer: int = api.llama_model_n_layer(handle)
        self.n_layer_nextn: int = api.llama_model_n_layer_nextn(handle)
        self.n_ctx_train: int = api.llama_model_n_ctx_train(handle)
        self.n_swa: int = api.llama_model_n_swa(handle)
        self.recurrent = bool(api.llama_model_is_recurrent(handle) or api.llama_model_is_hybrid(handle))
        self.size_bytes: int = api.llama_model_size(handle)
        self.mrope = api.llama_model_rope_type(handle) in (
            api.LLAMA_ROPE_TYPE_MROPE,
            api.LLAMA_ROPE_TYPE_IMROPE,
        )

    @property
    def architecture(self) -> str:
        return self.meta("general.architecture") or "unknown"

    @property
    def name(self) -> str:
        return self.meta("general.name") or self.path.stem

    def meta(self, key: str) -> str | None:
        """A scalar metadata value as text, or None; arrays are not readable this way."""
        buffer = ctypes.create_string_buffer(1 << 16)
        got = library().llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", errors="replace") if got >= 0 else None

    @functools.cached_property
    def vocabulary(self) -> ModelVocabulary:
        return ModelVocabulary(self)

    def close(self) -> None:
        """Free the weights; idempotent."""
        if self.handle is not None:
            library().llama_model_free(self.handle)
            self.handle = None


class ModelVocabulary:
    """Text ↔ ids through llama.cpp's tokenizer of one model."""

    def __init__(self, model: Model) -> None:
        api = library()
        self._model = model
        self._handle: Any = api.llama_model_get_vocab(model.handle)
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self.n_vocab = model.n_vocab
        vocab = self._handle
        self.bos = _id_or_none(api.llama_vocab_bos(vocab))
        self.eos = _id_or_none(api.llama_vocab_eos(vocab))
        self.eot = _id_or_none(api.llama_vocab_eot(vocab))
        self.mask = _id_or_none(api.llama_vocab_mask(vocab))
        self.add_bos = bool(api.llama_vocab_get_add_bos(vocab))
        self.add_eos = bool(api.llama_vocab_get_add_eos(vocab))
        self.has_text = api.llama_vocab_type(vocab) != api.LLAMA_VOCAB_TYPE_NONE
        is_eog = api.llama_vocab_is_eog
        self.eog: frozenset[int] = (
            frozenset(i for i in range(self.n_vocab) if is_eog(vocab, i)) if self.has_text else frozenset()
        )

    @functools.cached_property
    def chat_template(self) -> str | None:
        raw = library().llama_model_chat_template(self._model.handle, None)
        return raw.decode("utf-8", errors="replace") if raw else None

    def piece(self, id: int, special: bool = False) -> bytes:
        """Bytes a token stands for; control tokens are empty unless `special`."""
        key = (id, special)
        if key not in self._pieces:
            self._pieces[key] = self._piece(id, special)
        return self._pieces[key]

    def _piece(self, id: int, special: bool) -> bytes:
        self._check(id)
        api, size = library(), 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            got = api.llama_token_to_piece(self._handle, id, buffer, size, 0, special)
            if got >= 0:
                return buffer.raw[:got]
            size = -got

    def tokenize(self, text: str, *, special: bool, add_special: bool) -> list[int]:
        """Ids of `text`; `special` reads control-token text as control tokens."""
        api, data = library(), text.encode("utf-8")
        size = len(data) + 16
        while True:
            buffer = (api.llama_token * size)()
            got = api.llama_tokenize(self._handle, data, len(data), buffer, size, add_special, special)
            if got >= 0:
                return list(buffer[:got])
            size = -got

    def token_text(self, id: int) -> str:
        self._check(id)
        raw = library().llama_vocab_get_text(self._handle, id)
        return raw.decode("utf-8", errors="replace") if raw else ""

    def is_control(self, id: int) -> bool:
        self._check(id)
        api = library()
        attributes = api.llama_vocab_get_attr(self._handle, id)
        return bool(attributes & (api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_UNKNOWN))

    @functools.cached_property
    def suppressed(self) -> tuple[int, ...]:
        """Ids the model's metadata says must never be sampled."""
        api, count = library(), ctypes.c_size_t(0)
        try:
            pointer = api.llama_vocab_get_suppress_tokens(self._handle, ctypes.byref(count))
        except (TypeError, ctypes.ArgumentError):
            return ()
        return tuple(int(pointer[i]) for i in range(count.value)) if pointer else ()

    def _check(self, id: int) -> None:
        if not 0 <= id < self.n_vocab:
            raise EngineError(f"token id {id} is outside the vocabulary of {self.n_vocab}")


def _id_or_none(id: int) -> int | None:
    return id if id >= 0 else None


def check_gguf(path: Path) -> None:
    """Refuse what llama.cpp would fail on with a less helpful message.

    Raises:
        ModelFileError: the file is missing, unreadable or not GGUF.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError as error:
        raise ModelFileError(
            f"model file `{path}` does not exist", hint="check the path, or `localspec models ls`"
        ) from error
    except OSError as error:
        raise ModelFileError(f"model file `{path}` cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelFileError(f"`{path}` is not a GGUF file", hint="localspec reads GGUF models only")


def load_model(
    path: Path,
    settings: ModelSettings = ModelSettings(),
    *,
    progress: Callable[[float], None] | None = None,
    cancel: CancelFlag | None = None,
) -> Model:
    """Read a model into memory.

    Args:
        progress: called with 0…1 while weights are read.
        cancel: when set during the load, the load ends early.

    Raises:
        ModelFileError: missing, unreadable, not GGUF, truncated, or llama.cpp refuses it.
        EngineError: cancelled.
    """
    from localspec.engine.backend.devices import device_array, expert_overrides

    check_gguf(path)
    api = library()
    params = api.llama_model_default_params()
    params.n_gpu_layers = settings.gpu_layers
    params.load_mtp = settings.load_mtp
    params.no_alloc = settings.no_alloc
    params.load_mode = _load_mode(api, settings)
    keep: list[Any] = []
    if settings.device is not None:
        array = device_array(settings.device)
        params.devices = ctypes.cast(array, ctypes.c_void_p)
        keep.append(array)
    if settings.tensor_split:
        split = (ctypes.c_float * api.LLAMA_MAX_DEVICES)(*settings.tensor_split)
        params.tensor_split = split
        keep.append(split)
    if settings.n_cpu_moe:
        overrides = expert_overrides(settings.n_cpu_moe)
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
        keep.append(overrides)

    def on_progress(fraction: float, _: Any) -> bool:
        if progress is not None:
            progress(float(fraction))
        return cancel is None or not cancel.is_set

    callback = api.llama_progress_callback(on_progress)
    params.progress_callback = callback
    clear_log_tail()
    handle = api.llama_model_load_from_file(str(path).encode(), params)
    if not handle:
        if cancel is not None and cancel.is_set:
            raise EngineError(f"loading `{path.name}` was cancelled")
        raise ModelFileError(f"`{path}` cannot be loaded: {last_complaint() or 'llama.cpp gave no reason'}")
    return Model(handle, path, tuple(keep))


def _load_mode(api: Any, settings: ModelSettings) -> int:
    if settings.no_alloc or not (settings.mmap or settings.mlock):
        return int(api.LLAMA_LOAD_MODE_NONE)
    if settings.mmap and settings.mlock:
        return int(api.LLAMA_LOAD_MODE_MMAP_MLOCK)
    return int(api.LLAMA_LOAD_MODE_MMAP if settings.mmap else api.LLAMA_LOAD_MODE_MLOCK)
