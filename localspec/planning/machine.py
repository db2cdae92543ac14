"""The memory of this machine as the budget sees it, read in a short child process.

The child is the only one to load llama.cpp: it may abort, hang on a driver or take a second, and the
process that asks goes on with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from localspec.budget import Device, host_device
from localspec.interfaces import DeviceMemory

TIMEOUT_S = 30.0
RPC_ALIGNMENT = 32
NVIDIA, AMD = Path("/proc/driver/nvidia"), Path("/dev/kfd")


@dataclass(frozen=True, slots=True)
class Machine:
    """What a plan is compared with when no budget is simulated."""

    devices: tuple[Device, ...] = ()
    """Accelerators and the host; none when they could not be read."""
    build: str = ""
    reason: str | None = None
    """Why there are no devices, in one sentence."""

    @property
    def has_gpu(self) -> bool:
        return any(device.kind != "cpu" for device in self.devices)


def read_machine(
    *, rpc: Sequence[str] = (), own: Mapping[str, int] | None = None, timeout_s: float = TIMEOUT_S
) -> Machine:
    """Devices and their free memory now; never raises, the reason is in the answer.

    Args:
        rpc: `host:port` of ggml RPC servers whose devices join.
        own: device name -> bytes our own worker holds there, counted as available.
        timeout_s: after which the child is ended.
    """
    answer = ask_child({"ask": "devices", "rpc": list(rpc)}, timeout_s)
    if isinstance(answer, str):
        return Machine(reason=f"the devices could not be read: {answer}")
    found = [DeviceMemory(**row) for row in answer["devices"]]
    return Machine(budget_devices(found, own or {}), str(answer["build"]))


def ask_child(question: Mapping[str, Any], timeout_s: float) -> dict[str, Any] | str:
    """The probe's answer, or why there is none, in words."""
    command = [sys.executable, "-P", "-m", "localspec.planning.probe", json.dumps(question)]
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s,
            env=os.environ | {"PYTHONPATH": path},
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"llama.cpp did not answer within {timeout_s:g} s"
    except OSError as error:
        return f"the probe could not be started ({error.strerror})"
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return f"the probe ended with code {done.returncode}" + (f" ({last[0][:200]})" if last else "")
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return "the probe's answer could not be read"
    return str(answer["error"]) if "error" in answer else answer


def budget_devices(found: Sequence[DeviceMemory], own: Mapping[str, int]) -> tuple[Device, ...]:
    """llama.cpp's devices as the budget wants them: integrated GPUs only where there is no other."""
    gpus = [device for device in found if device.kind == "gpu"]
    gpus = gpus or [device for device in found if device.kind == "igpu"]
    devices = [_accelerator(device, own.get(device.name, 0)) for device in gpus]
    for device in found:
        if device.kind == "cpu":
            free = min(device.free_bytes + own.get(device.name, 0), device.total_bytes)
            devices.append(host_device(free, device.total_bytes))
            break
    return tuple(devices)


def _accelerator(device: DeviceMemory, own: int) -> Device:
    free = min(device.free_bytes + own, device.total_bytes)
    if device.name.startswith("RPC"):
        return Device(
            device.name, "gpu", free, device.total_bytes,
            overhead_bytes=0, alignment=RPC_ALIGNMENT, op_offload=False,
        )  # fmt: skip
    return Device(device.name, "igpu" if device.kind == "igpu" else "gpu", free, device.total_bytes)


def may_have_gpu() -> bool:
    """Whether a driver's traces are here; False saves asking llama.cpp."""
    return sys.platform != "linux" or NVIDIA.exists() or AMD.exists() or Path("/dev/dri").exists()


def available_ram() -> int | None:
    """Bytes of RAM that can be had without swapping, container limits included; None where nobody says."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)
    limits = (_left_of_limit(*files) for files in _LIMITS)
    return min((value for value in (free, *limits) if value is not None), default=None)


_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


def _left_of_limit(limit: Path, used: Path) -> int | None:
    try:
        return max(int(limit.read_text()) - int(used.read_text()), 0)
    except (OSError, ValueError):  # no such limit, or `max`
        return None


def host_machine() -> Machine | None:
    """This machine's RAM, read without llama.cpp; None where a GPU may be, or nobody says."""
    free = available_ram()
    if free is None or may_have_gpu():
        return None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine((host_device(free, total),), _release())


def _release() -> str:
    """What a session's build begins with, so that another release's measurements do not count."""
    try:
        return f"llama-cpp-python {version('llama-cpp-python')}"
    except PackageNotFoundError:
        return ""
