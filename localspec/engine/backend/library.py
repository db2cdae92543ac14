"""Loads llama.cpp once, routes its log into `logging`, and resolves symbols its bindings leave out.

The package `llama_cpp` installs a callback that prints everything to stderr as soon as it is imported;
ours replaces it and must stay referenced while the process lives.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import os
import sys
from collections import deque
from typing import Any

from localspec.errors import EngineError

log = logging.getLogger("localspec.llama")

_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_callbacks: list[Any] = []
"""Native code holds these; freeing one while it logs would crash."""
_tail: deque[str] = deque(maxlen=200)
"""Last complete log lines, so that a failed load can say why."""


class _LineLog:
    """Joins the fragments llama.cpp logs into lines and remembers the last ones."""

    def __init__(self) -> None:
        self.level = logging.INFO
        self.pending = ""

    def __call__(self, level: int, text: bytes, _: Any) -> None:
        if level in _LEVELS:  # 5 continues the previous line
            self.level = _LEVELS[level]
        self.pending += text.decode("utf-8", errors="replace") if text else ""
        *lines, self.pending = self.pending.split("\n")
        for line in lines:
            if line.strip():
                _tail.append(line)
                log.log(self.level, "%s", line)


@functools.cache
def library() -> Any:
    """The module `llama_cpp.llama_cpp`, initialised; cached for the process.

    Raises:
        EngineError: llama-cpp-python is not installed or its shared library does not load.
    """
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # an abort would otherwise start gdb
    try:
        import llama_cpp.llama_cpp as api
    except (ImportError, OSError, RuntimeError) as error:
        raise EngineError(
            f"llama-cpp-python cannot be loaded: {error}", hint="run `scripts/setup` or reinstall localspec"
        ) from error
    callback = api.llama_log_callback(_LineLog())
    api.llama_log_set(callback, ctypes.c_void_p(0))
    _callbacks.append(callback)
    # The interpreter frees the callback before the library stops logging.
    atexit.register(api.llama_log_set, api.llama_log_callback(0), ctypes.c_void_p(0))
    api.llama_backend_init()
    return api


def log_tail(lines: int = 200) -> list[str]:
    """The most recent llama.cpp log lines, oldest first."""
    return list(_tail)[-lines:]


def last_complaint() -> str | None:
    """The most telling recent error line of llama.cpp, without its function prefix."""
    bad = [line for line in _tail if "error" in line.lower() or "fail" in line.lower()]
    return bad[-1].strip() if bad else None


def clear_log_tail() -> None:
    _tail.clear()


@functools.cache
def native(name: str, restype: Any, *argtypes: Any) -> Any:
    """A C function with our own prototype, independent of the one the bindings gave it."""
    function = library()._lib[name]
    function.restype = restype
    function.argtypes = list(argtypes)
    return function


_STAGING: dict[str, tuple[str, str, Any, tuple[Any, ...]]] = {
    # name: (Itanium symbol, MSVC symbol, restype, argtypes) of llama.cpp's C++-linkage staging API
    "set_embeddings_nextn": (
        "_Z26llama_set_embeddings_nextnP13llama_contextbb",
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
        None,
        (ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool),
    ),
    "get_embeddings_nextn": (
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
        ctypes.c_void_p,
        (ctypes.c_void_p,),
    ),
    "set_nextn_layer_offset": (
        "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
        "?llama_set_nextn_layer_offset@@YAXPEAUllama_context@@H@Z",
        None,
        (ctypes.c_void_p, ctypes.c_int32),
    ),
    "get_ctx_other": (
        "_Z19llama_get_ctx_otherP13llama_context",
        "?llama_get_ctx_other@@YAPEAUllama_context@@PEAU1@@Z",
        ctypes.c_void_p,
        (ctypes.c_void_p,),
    ),
    "set_embeddings_layer_inp": (
        "_Z30llama_set_embeddings_layer_inpP13llama_contextjb",
        "?llama_set_embeddings_layer_inp@@YAXPEAUllama_context@@I_N@Z",
        None,
        (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool),
    ),
    "get_embeddings_layer_inp": (
        "_Z30llama_get_embeddings_layer_inpP13llama_contextj",
        "?llama_get_embeddings_layer_inp@@YAPEAMPEAUllama_context@@I@Z",
        ctypes.c_void_p,
        (ctypes.c_void_p, ctypes.c_uint32),
    ),
    "model_target_layer_ids": (
        "_Z28llama_model_target_layer_idsPK11llama_model",
        "?llama_model_target_layer_ids@@YAPEBHPEBUllama_model@@@Z",
        ctypes.c_void_p,
        (ctypes.c_void_p,),
    ),
    "model_target_layer_ids_n": (
        "_Z30llama_model_target_layer_ids_nPK11llama_model",
        "?llama_model_target_layer_ids_n@@YAIPEBUllama_model@@@Z",
        ctypes.c_uint32,
        (ctypes.c_void_p,),
    ),
    "model_dflash_selector_top_k": (
        "_Z33llama_model_dflash_selector_top_kPK11llama_model",
        "?llama_model_dflash_selector_top_k@@YAHPEBUllama_model@@@Z",
        ctypes.c_int32,
        (ctypes.c_void_p,),
    ),
    "model_get_tok_embd": (
        "_Z24llama_model_get_tok_embdPK11llama_modelPf",
        "?llama_model_get_tok_embd@@YAIPEBUllama_model@@PEAM@Z",
        ctypes.c_uint32,
        (ctypes.c_void_p, ctypes.c_void_p),
    ),
}


@functools.cache
def staging(name: str) -> Any:
    """A staging function of llama.cpp that the Python bindings do not cover.

    Raises:
        EngineError: this build of llama.cpp does not export it.
    """
    itanium, msvc, restype, argtypes = _STAGING[name]
    handle = library()._lib
    for symbol in (f"llama_{name}", msvc if sys.platform == "win32" else itanium):
        try:
            function = handle[symbol]
        except AttributeError:
            continue
        function.restype, function.argtypes = restype, list(argtypes)
        return function
    raise EngineError(
        f"this llama.cpp build does not export `llama_{name}`, which this drafter needs",
        hint="use `--method draft` or `--method ngram`, or install the pinned llama-cpp-python",
    )


def build_description() -> str:
    """llama.cpp and binding versions with the compiled-in features, in one line."""
    import llama_cpp

    api = library()
    version = api.llama_version()
    text = version.decode() if isinstance(version, bytes) else str(version)
    return f"llama-cpp-python {llama_cpp.__version__} · llama.cpp {text}"


def system_info() -> str:
    """llama.cpp's own list of CPU and backend features."""
    return str(library().llama_print_system_info().decode(errors="replace"))
