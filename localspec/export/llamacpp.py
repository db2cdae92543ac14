"""A pair for llama.cpp's own programs: the same GGUF files in `llama-server`, or spread over RPC servers."""

from __future__ import annotations

import shlex
from pathlib import Path

from localspec.catalog import ModelFile, Pair
from localspec.engine.settings import LoadSettings
from localspec.errors import UsageError
from localspec.export.facts import LLAMA_SERVER, RPC_SERVER_FLAGS
from localspec.export.launch import Builder, Launch, Wishes, method_of

OPEN_NOTE = "the RPC protocol has no password and no encryption: private networks only"


def llama_server(pair: Pair, wishes: Wishes, load: LoadSettings, models_dir: Path) -> Launch:
    """`llama-server` with today's `--spec-*` flags; files on this disk by path, others by repository.

    Args:
        load: Settings that llama-server has too; those at their default are left to it.

    Raises:
        UsageError: llama.cpp has no such method.
    """
    drafter = pair.drafters[0]
    build = Builder(LLAMA_SERVER, ["llama-server"])
    for flag, value in _file(pair.target, models_dir, "--model", "--hf-repo", "--hf-file"):
        build.add(flag, value)
    build.add("--spec-type", method_of(LLAMA_SERVER, pair, drafter))
    if drafter.model is not None:
        # With --spec-draft-hf, --spec-draft-model is the file in that repository.
        for flag, value in _file(
            drafter.model, models_dir, "--spec-draft-model", "--spec-draft-hf", "--spec-draft-model"
        ):
            build.add(flag, value)
    length = "--spec-ngram-simple-size-m" if drafter.kind == "ngram" else "--spec-draft-n-max"
    build.add(length, wishes.k or drafter.k)
    _loading(build, load, has_draft=drafter.model is not None)
    build.add("--parallel", wishes.parallel)
    build.add("--alias", pair.name)
    build.add("--host", wishes.host)
    build.add("--port", wishes.port)
    return build.launch()


def _file(
    model: ModelFile, models_dir: Path, path_flag: str, repo_flag: str, file_flag: str
) -> list[tuple[str, str]]:
    path = model.location(models_dir)
    if path is not None and (model.repo is None or path.is_file()):
        return [(path_flag, str(path))]
    if model.repo is None:
        raise UsageError(f"`{model.file}` is not on this disk and in no repository")
    return [(repo_flag, model.repo), (file_flag, model.file)]


def _loading(build: Builder, load: LoadSettings, *, has_draft: bool) -> None:
    """The load settings that differ from ours; llama-server's defaults are the same where both have one."""
    usual = LoadSettings()
    build.add("--ctx-size", load.n_ctx)
    build.add("--gpu-layers", "all" if load.gpu_layers is None else load.gpu_layers)
    build.add("--cache-type-k", load.kv[0] if load.kv != usual.kv else None)
    build.add("--cache-type-v", load.kv[1] if load.kv != usual.kv else None)
    build.add("--flash-attn", load.flash_attn if load.flash_attn != usual.flash_attn else None)
    build.add("--load-mode", _load_mode(load))
    build.add("--threads", load.threads)
    build.add("--batch-size", load.n_batch if load.n_batch != usual.n_batch else None)
    build.add("--ubatch-size", load.n_ubatch if load.n_ubatch != usual.n_ubatch else None)
    build.add("--device", load.device)
    build.add("--tensor-split", ",".join(f"{share:g}" for share in load.tensor_split) or None)
    build.add("--n-cpu-moe", load.n_cpu_moe or None)
    build.add("--rpc", ",".join(load.rpc) or None)
    if has_draft:
        build.add("--spec-draft-ngl", "all" if load.draft_gpu_layers is None else load.draft_gpu_layers)
        build.add("--spec-draft-type-k", load.draft_kv[0] if load.draft_kv != usual.draft_kv else None)
        build.add("--spec-draft-type-v", load.draft_kv[1] if load.draft_kv != usual.draft_kv else None)
        build.add("--spec-draft-device", load.draft_device)


def _load_mode(load: LoadSettings) -> str | None:
    if load.mlock:
        return "mmap+mlock" if load.mmap else "mlock"
    return None if load.mmap else "none"


def rpc(pair: Pair, servers: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The commands that spread a pair over machines: (what it is for, command), in the order to run them.

    Raises:
        UsageError: no server was named.
    """
    if not servers:
        raise UsageError(
            "no RPC server was named", hint="give --rpc HOST:PORT,… , one for each machine that helps"
        )
    steps: list[tuple[str, str]] = []
    for server in servers:
        host, _, port = server.rpartition(":")
        argv = ["ggml-rpc-server", "--host", host.strip("[]"), "--port", port, "--cache"]
        assert RPC_SERVER_FLAGS.issuperset(word for word in argv if word.startswith("--"))
        steps.append((f"on {host}, from a llama.cpp built with GGML_RPC=ON", shlex.join(argv)))
    steps.append(
        (
            "here, with llama-cpp-python built with GGML_RPC=ON",
            shlex.join(["localspec", "serve", pair.name, "--rpc", ",".join(servers)]),
        )
    )
    return tuple(steps)
