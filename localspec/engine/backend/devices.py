"""Devices as llama.cpp sees them, what a context allocated on them, and overrides that place tensors."""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from localspec.engine.backend.library import library, native
from localspec.errors import EngineError, unknown
from localspec.interfaces import DeviceMemory

if TYPE_CHECKING:
    from localspec.engine.backend.context import Context

_KINDS: dict[int, Literal["cpu", "gpu", "igpu", "accel"]] = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel"}


@dataclass(frozen=True, slots=True)
class BufferUse:
    """Bytes one context uses on one buffer type: weights, cache (KV and state), compute."""

    buffer: str
    device: str
    is_host: bool
    model_bytes: int
    context_bytes: int
    compute_bytes: int


def _handles() -> list[int]:
    count = native("ggml_backend_dev_count", ctypes.c_size_t)()
    get = native("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    return [get(i) for i in range(count)]


def _text(function: str, handle: int) -> str:
    raw = native(function, ctypes.c_char_p, ctypes.c_void_p)(handle)
    return raw.decode("utf-8", errors="replace") if raw else ""


def devices() -> tuple[DeviceMemory, ...]:
    """Every device with its free and total memory now."""
    library()
    kind = native("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    size_out = ctypes.POINTER(ctypes.c_size_t)
    memory = native("ggml_backend_dev_memory", None, ctypes.c_void_p, size_out, size_out)
    found = []
    for handle in _handles():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(handle, ctypes.byref(free), ctypes.byref(total))
        what = _KINDS.get(kind(handle), "accel")
        found.append(
            DeviceMemory(
                name=_text("ggml_backend_dev_name", handle),
                description=_text("ggml_backend_dev_description", handle),
                kind=what,
                free_bytes=_host_available(free.value) if what == "cpu" else free.value,
                total_bytes=total.value,
            )
        )
    return tuple(found)


def _host_available(otherwise: int) -> int:
    """Memory the system can give without swapping; llama.cpp reports all of it as free."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return otherwise
    values = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min(values[0], otherwise) if values else otherwise


def device_array(name: str) -> Any:
    """A NULL-terminated `ggml_backend_dev_t[]` with the device called `name` (`none` = CPU only)."""
    by_name = {_text("ggml_backend_dev_name", handle): handle for handle in _handles()}
    if name == "none":
        return (ctypes.c_void_p * 1)(None)
    if name not in by_name:
        raise unknown("device", name, [*by_name, "none"])
    return (ctypes.c_void_p * 2)(by_name[name], None)


class _Override(ctypes.Structure):
    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


def expert_overrides(n_blocks: int) -> Any:
    """Overrides that keep the expert tensors of the first `n_blocks` blocks in host memory."""
    cpu = native("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
    rows = [
        _Override(rf"blk\.{i}\.ffn_(up|down|gate|gate_up)_(ch|)exps".encode(), cpu) for i in range(n_blocks)
    ]
    return (_Override * (n_blocks + 1))(*rows, _Override(None, None))


@functools.cache
def add_rpc_server(endpoint: str) -> None:
    """Make the devices of a ggml RPC server at `host:port` visible, once per process.

    Raises:
        EngineError: this build has no RPC backend, or the server does not answer.
    """
    library()
    try:
        add = native("ggml_backend_rpc_add_server", ctypes.c_void_p, ctypes.c_char_p)
    except AttributeError as error:
        raise EngineError(
            "this llama.cpp build has no RPC backend",
            hint="rebuild with `scripts/setup` (it sets GGML_RPC=ON)",
        ) from error
    registry = add(endpoint.encode())
    if not registry:
        raise EngineError(f"no ggml RPC server answers at `{endpoint}`")
    native("ggml_backend_register", None, ctypes.c_void_p)(registry)


def supports_gpu() -> bool:
    return bool(library().llama_supports_gpu_offload())


def supports_rpc() -> bool:
    return bool(library().llama_supports_rpc())


class _BreakdownMap(ctypes.Structure):
    """`std::map` of libstdc++ as returned by value: header node at word 1, leftmost at 3, count at 5."""

    _fields_ = [("words", ctypes.c_uint64 * 6)]


def memory_breakdown(context: Context) -> tuple[BufferUse, ...] | None:
    """What llama.cpp allocated (or would, for a dry run) per buffer type; None where it cannot be read.

    Walks the returned tree exactly `count` nodes: the root's parent points at a header that has moved.
    """
    if not sys.platform.startswith("linux"):
        return None  # another C++ library lays the map out differently
    try:
        function = native("_Z26llama_get_memory_breakdownPK13llama_context", _BreakdownMap, ctypes.c_void_p)
        reserve = native("_ZN13llama_context13sched_reserveEv", None, ctypes.c_void_p)
    except AttributeError:
        return None
    # What was switched on since the last decode (layers a drafter reads) takes its space at the next one,
    # and a dry run has none. Nothing happens where nothing changed.
    reserve(context.handle)
    words = function(context.handle).words
    count, node = int(words[5]), int(words[3])
    uses = []
    for left in range(count, 0, -1):
        key, model, cache, compute = (
            ctypes.c_uint64.from_address(node + offset).value for offset in (32, 40, 48, 56)
        )
        uses.append(_use(key, model, cache, compute))
        if left > 1:
            node = _successor(node)
    return tuple(uses)


def _use(buffer_type: int, model: int, cache: int, compute: int) -> BufferUse:
    device = native("ggml_backend_buft_get_device", ctypes.c_void_p, ctypes.c_void_p)(buffer_type)
    is_host = native("ggml_backend_buft_is_host", ctypes.c_bool, ctypes.c_void_p)(buffer_type)
    return BufferUse(
        buffer=_text("ggml_backend_buft_name", buffer_type),
        device=_text("ggml_backend_dev_name", device) if device else "CPU",
        is_host=bool(is_host),
        model_bytes=model,
        context_bytes=cache,
        compute_bytes=compute,
    )


def _successor(node: int) -> int:
    """Next node in order of a red-black tree node (parent +8, left +16, right +24)."""

    def at(address: int, offset: int) -> int:
        return int(ctypes.c_uint64.from_address(address + offset).value)

    if right := at(node, 24):
        while left := at(right, 16):
            right = left
        return right
    parent = at(node, 8)
    while at(parent, 24) == node:
        node, parent = parent, at(parent, 8)
    return parent
