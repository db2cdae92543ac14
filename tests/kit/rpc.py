"""A ggml RPC server on loopback, from the installed library: the accelerator of a machine without one."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SERVER = """
import ctypes, pathlib, sys
import llama_cpp
folder = pathlib.Path(llama_cpp.__file__).parent / "lib"
load = lambda name: ctypes.CDLL(str(folder / f"libggml{name}.so"))
base, ggml, rpc = load("-base"), load(""), load("-rpc")
ggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
devices = (ctypes.c_void_p * 1)(ggml.ggml_backend_dev_by_type(0))
start = rpc.ggml_backend_rpc_start_server
start.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
start(sys.argv[1].encode(), None, 1, 1, devices)
"""


@contextmanager
def serving() -> Iterator[str]:
    """`host:port` of a server of its own; skips the test where llama.cpp has none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(200):
            if server.poll() is not None:
                pytest.skip("no GPU on this machine, and llama.cpp has no RPC server to stand in for one")
            try:
                socket.create_connection(("127.0.0.1", int(address.split(":")[1])), 0.1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield address
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serving() as address:
        yield address


@pytest.fixture(scope="module")
def endpoints() -> Iterator[tuple[str, str]]:
    """Two devices."""
    with serving() as first, serving() as second:
        yield first, second
