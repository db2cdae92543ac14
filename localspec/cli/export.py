"""`localspec export`."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from localspec.cli.face import face
from localspec.cli.options import LOAD, Asked, SettingCommand, takes
from localspec.errors import UsageError, unknown
from localspec.output import Output

if TYPE_CHECKING:
    from localspec.catalog import Pair
    from localspec.export.launch import Launch, Wishes

ENGINES = ("vllm", "sglang", "llama-server", "docker-compose", "rpc")


@click.command("export", cls=SettingCommand)
@click.argument("engine", metavar="[" + "|".join(ENGINES) + "]")
@click.argument("pair")
@click.option("--k", metavar="N", type=click.IntRange(1, 64), help="Draft length instead of the pair's.")
@click.option("--parallel", metavar="N", type=click.IntRange(1), help="Requests at once.")
@click.option(
    "--gpus", metavar="N", type=click.IntRange(1), help="GPUs that share the target (vLLM, SGLang)."
)
@click.option("--gpu-memory", metavar="X", type=click.FloatRange(0.05, 1), help="Share of each GPU's memory.")
@click.option("--target-repo", metavar="OWNER/NAME", help="Unquantised target instead of the catalogue's.")
@click.option("--draft-repo", metavar="OWNER/NAME", help="Unquantised draft instead of the catalogue's.")
@click.option("--host", metavar="ADDRESS", help="Address the engine listens on.")
@click.option("--port", metavar="N", type=click.IntRange(1, 65535), help="Port the engine listens on.")
@takes(LOAD)
@face("Print one JSON object.")
def command(
    engine: str,
    pair: str,
    k: int | None,
    parallel: int | None,
    gpus: int | None,
    gpu_memory: float | None,
    target_repo: str | None,
    draft_repo: str | None,
    host: str | None,
    port: int | None,
    asked: Asked,
    out: Output,
) -> None:
    """Print the command that runs a pair on another engine, or on several machines.

    vLLM, SGLang and docker-compose load the unquantised repositories; llama-server and rpc the same GGUF
    files. The arguments were compared with each engine's own definitions; what an engine does not have is
    refused.
    """
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    from localspec.catalog import load_catalog
    from localspec.export.launch import Wishes

    found = load_catalog().pair(pair)
    wishes = Wishes(host, port, asked.load().n_ctx, k, gpus, gpu_memory, parallel, target_repo, draft_repo)
    if engine == "rpc":
        _refuse_wishes(engine, replace(wishes, n_ctx=None), set())
        _print_rpc(found, asked, out)
        return
    launch = _launch(engine, found, wishes, asked)
    for note in launch.notes:
        out.note(note)
    out.note(f"arguments compared with {launch.engine} {launch.version} on {launch.checked}")
    if engine == "docker-compose":
        from localspec.export.compose import compose

        text = compose(launch, gpus=gpus or 1, host=host, port=port)
        out.report(
            {"engine": engine, "version": launch.version, "checked": launch.checked, "file": text},
            text.rstrip(),
        )
        return
    out.report(launch, launch.command())


def _launch(engine: str, pair: Pair, wishes: Wishes, asked: Asked) -> Launch:
    if engine == "llama-server":
        from localspec.export.llamacpp import llama_server

        _refuse_wishes(engine, wishes, {"host", "port", "n_ctx", "k", "parallel"})
        return llama_server(pair, wishes, asked.load(), asked.config.models_dir)
    from localspec.export.engines import sglang, vllm

    for option in LOAD:
        if option.fills in asked.given and option.fills != "load.n_ctx":
            raise UsageError(f"`{option.flags[0]}` is a setting of llama.cpp and has no effect on {engine}")
    if engine == "docker-compose":
        return vllm(pair, replace(wishes, host=None, port=None))
    return (vllm if engine == "vllm" else sglang)(pair, wishes)


def _refuse_wishes(engine: str, wishes: Wishes, known: set[str]) -> None:
    for name, value in asdict(wishes).items():
        if value is not None and name not in known:
            raise UsageError(f"`--{name.replace('_', '-')}` has no effect on {engine}")


def _print_rpc(pair: Pair, asked: Asked, out: Output) -> None:
    from localspec.export.llamacpp import OPEN_NOTE, rpc

    steps = rpc(pair, asked.load().rpc)
    out.note(OPEN_NOTE)
    human = "\n".join(f"# {where}\n{line}" for where, line in steps)
    out.report([{"where": where, "command": line} for where, line in steps], human)
