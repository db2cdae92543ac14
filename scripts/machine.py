"""What this machine can build llama.cpp for, and with which flags. Probes once, decides by pure functions."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BACKENDS = ("cuda", "vulkan", "metal", "rocm", "cpu")
WHEEL_INDEX = "https://abetlen.github.io/llama-cpp-python/whl"
VULKAN_TOOLS = "sudo apt install glslc libvulkan-dev"
ALWAYS = ("-DGGML_RPC=ON",)
"""RPC spreads a model over machines and stands in for a GPU in the tests."""


class SetupError(Exception):
    """What stops a set-up: one sentence, and the next step."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(f"error: {message}" + (f"\nhint: {hint}" if hint else ""))


@dataclass(frozen=True)
class Machine:
    """Facts of this machine that decide a build."""

    system: str
    arch: str
    cpu: str
    """Instruction sets of the CPU; llama.cpp is built for exactly these."""
    cxx: str | None
    nvidia: str | None
    """First GPU and driver as nvidia-smi names them, None without a working driver."""
    cuda: str | None
    """CUDA version the driver supports: `12.4`."""
    nvcc: str | None
    hipcc: str | None
    rocm_gpu: bool
    glslc: str | None
    vulkan_gpu: str | None
    """First discrete GPU that Vulkan lists."""


@dataclass(frozen=True)
class Choice:
    """A backend, the reason in words, and its CMake flags."""

    backend: str
    why: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Build:
    """One llama-cpp-python wheel to be had."""

    version: str
    backend: str
    flags: tuple[str, ...]
    machine: Machine
    prebuilt: str | None
    """Wheel index to take it from instead of building."""
    compiler_flags: tuple[str, ...]
    key: str
    """Folder of the wheel: another version, flag or CPU is another folder."""

    @property
    def duration(self) -> str:
        return "10 minutes and more" if self.backend in ("cuda", "rocm") else "about 3 minutes on 2 cores"


def probe(env: Mapping[str, str]) -> Machine:
    """Look at PATH and ask the drivers' own tools; never fails, absent things are None."""

    def which(*names: str) -> str | None:
        hits = (shutil.which(name, path=env.get("PATH")) for name in names if name)
        return next((hit for hit in hits if hit), None)

    def ask(*command: str) -> str:
        tool = which(command[0])
        if not tool:
            return ""
        try:
            done = subprocess.run([tool, *command[1:]], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout if done.returncode == 0 else ""

    gpu = ask("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").strip().splitlines()
    cuda = re.search(r"CUDA Version:\s*([\d.]+)", ask("nvidia-smi")) if gpu else None
    toolkits = [env.get("CUDA_HOME", ""), env.get("CUDA_PATH", ""), "/usr/local/cuda"]
    return Machine(
        system=platform.system(), arch=platform.machine(), cpu=cpu_flags(),
        cxx=which(env.get("CXX", ""), "c++", "g++", "clang++"),
        nvidia=gpu[0] if gpu else None, cuda=cuda[1] if cuda else None,
        nvcc=which(env.get("CUDACXX", ""), "nvcc", *(f"{t}/bin/nvcc" for t in toolkits if t)),
        hipcc=which("hipcc", "/opt/rocm/bin/hipcc"), rocm_gpu=Path("/dev/kfd").exists(),
        glslc=which("glslc"), vulkan_gpu=discrete_gpu(ask("vulkaninfo", "--summary")),
    )  # fmt: skip


def cpu_flags() -> str:
    """The CPU's instruction sets, or the best description the system gives."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return " ".join(sorted(value.split()))
    except OSError:
        pass
    return platform.processor() or platform.machine()


def discrete_gpu(vulkan_summary: str) -> str | None:
    """Name of the first discrete GPU in `vulkaninfo --summary`.

    An integrated one is left out: it shares the CPU's memory and seldom decodes faster than the CPU.
    """
    for block in re.split(r"^GPU\d+:", vulkan_summary, flags=re.M)[1:]:
        if "DISCRETE_GPU" in block:
            name = re.search(r"deviceName\s*=\s*(.+)", block)
            return name[1].strip() if name else "a discrete GPU"
    return None


def choose_backend(machine: Machine, asked: str | None, *, prebuilt: bool = False) -> Choice:
    """The asked backend, or the best one this machine can build.

    Raises:
        SetupError: an NVIDIA GPU without its compiler (a silent CPU build would hide it), or a backend
            that this system cannot have.
    """
    if asked:
        backend, why = asked, "as asked"
    elif machine.nvidia:
        backend, why = "cuda", machine.nvidia
    elif machine.system == "Darwin" and machine.arch == "arm64":
        backend, why = "metal", "Apple silicon"
    elif machine.rocm_gpu and machine.hipcc:
        backend, why = "rocm", "an AMD GPU and hipcc are here"
    elif machine.vulkan_gpu and machine.glslc:
        backend, why = "vulkan", machine.vulkan_gpu
    else:
        backend, why = "cpu", cpu_reason(machine)
    if backend == "metal" and machine.system != "Darwin":
        raise SetupError(f"Metal exists on macOS only, this is {machine.system}", "use --backend cpu")
    if backend == "cuda" and not machine.nvcc and not prebuilt:
        raise SetupError(no_nvcc(machine))
    return Choice(backend, why, backend_flags(backend, machine))


def cpu_reason(machine: Machine) -> str:
    if machine.rocm_gpu:
        return "an AMD GPU is here but no hipcc; install ROCm, or try --backend vulkan"
    if machine.vulkan_gpu:
        return f"{machine.vulkan_gpu} is here but no glslc; {VULKAN_TOOLS}, then --backend vulkan"
    return "no GPU with a usable driver found"


def no_nvcc(machine: Machine) -> str:
    """The choices of the usual case: a driver, but no toolkit."""
    tag = "cu" + machine.cuda.replace(".", "") if machine.cuda else "cu124"
    who = f"an NVIDIA GPU is here ({machine.nvidia})" if machine.nvidia else "--backend cuda was asked for"
    return f"""{who} but its compiler `nvcc` is not; choose one:
  sudo apt install nvidia-cuda-toolkit      then run this again; builds for exactly this GPU
  scripts/setup --backend cuda --prebuilt {WHEEL_INDEX}/{tag}
                                            no compiler needed; an older CUDA tag works too; without RPC
  scripts/setup --backend vulkan            needs glslc and libvulkan-dev; close to CUDA's speed
  scripts/setup --backend cpu               leaves the GPU idle"""


def backend_flags(backend: str, machine: Machine) -> tuple[str, ...]:
    """CMake flags of a backend; a compiler that is not on PATH is named."""
    flags = {
        "cuda": ("-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native"),
        "vulkan": ("-DGGML_VULKAN=ON",),
        "metal": ("-DGGML_METAL=ON",),
        "rocm": ("-DGGML_HIP=ON",),
        "cpu": ("-DGGML_METAL=OFF",) if machine.system == "Darwin" else (),
    }[backend]
    if backend == "cuda" and machine.nvcc:
        flags += (f"-DCMAKE_CUDA_COMPILER={machine.nvcc}",)
    return ALWAYS + flags


def compiler_flags(machine: Machine) -> tuple[str, ...]:
    """For C and C++, besides what CMake chooses.

    llama.cpp's AMX kernels die of SIGSEGV when GCC 12 built them: its header declares 8 of the 64 bytes that
    `_tile_loadconfig` reads, so the optimizer drops the stores to the others. With the macro gone they are
    not compiled. That is safe and slow: with a corrected header SmolLM2 decoded twice as fast.
    """
    return ("-U__AMX_INT8__",) if "amx_int8" in machine.cpu.split() else ()


def wheel_key(version: str, backend: str, flags: tuple[str, ...], cpu: str, prebuilt: str | None) -> str:
    """Folder name of a wheel. Flags count in any order; the CPU counts, since the build is native."""
    recipe = prebuilt or "\n".join([*sorted(flags), cpu, platform.system(), platform.machine()])
    return f"{version}-{backend}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def check_tools(build: Build) -> None:
    """Everything a build needs besides Python. CMake and Ninja come from PyPI when they are missing.

    Raises:
        SetupError: names what is missing and how to get it.
    """
    machine = build.machine
    if machine.cxx is None and machine.system != "Windows":  # there CMake finds MSVC, which is not on PATH
        raise SetupError(
            "no C++ compiler found (looked for c++, g++ and clang++)",
            "Debian/Ubuntu: sudo apt install build-essential; Fedora: sudo dnf install gcc-c++; "
            "macOS: xcode-select --install",
        )
    if build.backend == "vulkan" and machine.glslc is None:
        raise SetupError(
            "a Vulkan build needs `glslc`, which is not on PATH",
            f"Debian/Ubuntu: {VULKAN_TOOLS}",
        )
    if build.backend == "rocm" and machine.hipcc is None:
        raise SetupError("a ROCm build needs `hipcc`, which was not found", "or use --backend vulkan")
