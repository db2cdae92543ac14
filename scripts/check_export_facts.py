"""Compares `localspec.export.facts` with packages of the engines, which are read and never installed.

    pip download --no-deps vllm==0.33.0 sglang==0.5.23
    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    scripts/check_export_facts vllm-*.whl sglang-*.whl llama_cpp_python-*.tar.gz

Exits with 1 and names what an engine does not have, or when a package is of another version than the facts.
"""

from __future__ import annotations

import fnmatch
import re
import sys
import tarfile
import zipfile
from pathlib import Path

from localspec.export.facts import LLAMA_SERVER, RPC_SERVER_FLAGS, SGLANG, VLLM, VLLM_SPECULATIVE_KEYS, Engine


def texts(package: Path, pattern: str) -> str:
    """The members of a wheel or source package whose path matches, as one text."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            names = fnmatch.filter(wheel.namelist(), pattern)
            found = [wheel.read(name).decode() for name in names]
    else:
        with tarfile.open(package) as archive:
            members = [m for m in archive.getmembers() if fnmatch.fnmatch(m.name, pattern)]
            streams = [archive.extractfile(member) for member in members]
            found = [stream.read().decode() for stream in streams if stream is not None]
    if not found:
        raise SystemExit(f"{package.name} has no {pattern}")
    return "\n".join(found)


def fields(source: str) -> set[str]:
    """Names of the annotated fields of the classes in these sources."""
    return set(re.findall(r"^    (\w+): ", source, re.MULTILINE))


def flags_of(names: set[str]) -> set[str]:
    return {"--" + name.replace("_", "-") for name in names}


def literals(source: str) -> set[str]:
    return set(re.findall(r'"([a-z0-9_.+-]+)"', source, re.IGNORECASE))


def vllm(package: Path) -> list[str]:
    arguments = texts(package, "vllm/engine/arg_utils.py")
    frontend = texts(package, "vllm/entrypoints/common/cli_args.py")
    speculative = texts(package, "vllm/config/speculative.py")
    flags = set(re.findall(r'"(--[a-z-]+)"', arguments)) | flags_of(fields(frontend))
    methods = literals(speculative.partition("\nRejectionSampleMethod")[0])
    missing = missing_in(VLLM, flags, methods)
    return missing + sorted(VLLM_SPECULATIVE_KEYS - fields(speculative))


def sglang(package: Path) -> list[str]:
    source = texts(package, "sglang/srt/arg_groups/fields/*.py")
    info = texts(package, "sglang/srt/speculative/spec_info.py")
    registry = texts(package, "sglang/srt/speculative/spec_registry.py")
    algorithms = set(re.findall(r"^    ([A-Z0-9_]+) = auto\(\)", info, re.MULTILINE)) | literals(registry)
    return missing_in(SGLANG, flags_of(fields(source)), algorithms)


def llama_cpp(package: Path) -> list[str]:
    arguments = texts(package, "*/vendor/llama.cpp/common/arg.cpp")
    speculative = texts(package, "*/vendor/llama.cpp/common/speculative.cpp")
    server = texts(package, "*/vendor/llama.cpp/tools/rpc/rpc-server.cpp")
    flags = set(re.findall(r'"(--[a-z0-9-]+)"', arguments))
    missing = missing_in(LLAMA_SERVER, flags, literals(speculative))
    return missing + sorted(RPC_SERVER_FLAGS - set(re.findall(r'"(--[a-z-]+)"', server)))


def missing_in(engine: Engine, flags: set[str], methods: set[str]) -> list[str]:
    return sorted(engine.flags - flags) + sorted(set(engine.methods.values()) - methods)


CHECKS = {
    "vllm": (vllm, VLLM.version),
    "sglang": (sglang, SGLANG.version),
    "llama_cpp_python": (llama_cpp, "0.3.36"),
}


def main(packages: list[str]) -> int:
    if not packages:
        print(__doc__)
        return 2
    failed = False
    for path in map(Path, packages):
        name, version = re.match(r"([a-z_]+)-([0-9.]+\d)", path.name).groups()  # type: ignore[union-attr]
        check, known = CHECKS[name]
        missing = check(path)
        stale = "" if version == known else f", but the facts are those of {known}"
        failed = failed or bool(missing) or bool(stale)
        verdict = "lacks " + ", ".join(missing) if missing else "has every flag and method"
        print(f"{name} {version}: {verdict}{stale}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
