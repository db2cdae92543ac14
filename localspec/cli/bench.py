"""`localspec bench`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from localspec.cli.face import face
from localspec.cli.options import LOAD, PAIR, SAMPLING, SPECULATION, Asked, SettingCommand, takes
from localspec.errors import UsageError
from localspec.output import Output
from localspec.workloads import WORKLOADS

NAMES = [workload.name for workload in WORKLOADS]


@click.command("bench", cls=SettingCommand)
@click.argument("pair", required=False, metavar="[PAIR]")
@click.option("--repeats", type=int, default=3, show_default=True, help="Interleaved repeats, at least 3.")
@click.option(
    "--max-tokens", type=click.IntRange(min=16), default=128, show_default=True, help="Tokens of one answer."
)
@click.option(
    "--workload",
    "workloads",
    type=click.Choice(NAMES),
    multiple=True,
    help="Only this kind of work; may be given again.",
)
@click.option(
    "--reference",
    metavar="CMD|URL",
    help="Also time this command (with {prompt} and {max_tokens} "
    "in it) or OpenAI-compatible server on the same prompts.",
)
@click.option("--tune", is_flag=True, help="Search the best method, k and p_min here, and store them.")
@click.option("--forget", is_flag=True, help="Drop what --tune stored for the pair, and measure nothing.")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Also write a chart.")
@takes(PAIR, SPECULATION, LOAD, SAMPLING)
@face("Print one JSON object.")
def command(
    pair: str | None, repeats: int, max_tokens: int, workloads: tuple[str, ...], reference: str | None,
    tune: bool, forget: bool, svg: Path | None, asked: Asked, out: Output,
) -> int:  # fmt: skip
    """Measure plain decoding against every method of a pair, interleaved, with empty caches.

    Five kinds of work: code, edit, chat, JSON, creative. Greedy unless a sampling option is given.
    """
    from localspec.bench import Plan, run_bench, run_forget
    from localspec.cli.opening import opened
    from localspec.cli.planned import recorded
    from localspec.pairs import resolve

    files = resolve(pair, asked.target, asked.draft, default=asked.config.default_pair)
    if forget and tune:
        raise UsageError("`--forget` and `--tune` exclude each other", hint="give one of them")
    if tune and reference is not None:
        raise UsageError("`--tune` compares no reference", hint="tune first, then give `--reference` alone")
    if forget:
        return run_forget(files, out)
    request = asked.request()
    if not any(key.startswith("sampling.") for key in asked.given):
        request = replace(request, sampling=replace(request.sampling, temperature=0.0))
    request = replace(request, max_tokens=None, stop=(), messages=())
    plan = Plan(request, repeats, max_tokens, workloads, reference, tune, svg)
    with opened(files, asked, out) as session:
        return run_bench(recorded(files, session, out), files, plan, out)
