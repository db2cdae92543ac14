"""The command line of `scripts/train_draft`: which files, how long, in which order."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import click

from localspec.errors import LocalspecError, UsageError
from localspec.interfaces import DraftKind
from localspec.output import Output

KINDS = ("eagle3", "medusa", "draft")
HELP = """Train small drafts for one target model on this machine; a CPU is enough.

Typical run: `data` (leave it for an hour; it may be stopped and started), then `eagle3`, `medusa` or
`draft`, then `eval`. All read and write one folder.
"""


@dataclass(frozen=True, slots=True)
class Work:
    """What every sub-command needs."""

    target: Path
    folder: Path
    threads: int
    out: Output

    @property
    def data(self) -> Path:
        return self.folder / "data"


@click.group(help=HELP, invoke_without_command=True, context_settings={"max_content_width": 100})
@click.option("--target", type=click.Path(path_type=Path), help="Target GGUF; default: the demo weights.")
@click.option(
    "--folder", type=click.Path(path_type=Path), default=Path("build/training"), show_default=True,
    help="Where data and checkpoints are kept.",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True)
@click.option("--smoke", is_flag=True, help="Train everything on a tiny synthetic target, in a minute.")
@click.pass_context
def cli(context: click.Context, target: Path | None, folder: Path, threads: int, smoke: bool) -> None:
    out = Output.decide(sys.stdout, sys.stderr, os.environ)
    if smoke:
        from training.smoke import run_smoke

        with tempfile.TemporaryDirectory() as scratch:
            run_smoke(Path(scratch), out)
        context.exit()
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(2)
    context.obj = Work(target or _demo_target(), folder, threads, out)


def _demo_target() -> Path:
    from localspec.catalog import demo_target_path

    found = demo_target_path()
    if found is None:
        raise UsageError("the demo weights are not installed", hint="run scripts/setup, or give --target")
    return found


@cli.command()
@click.option("--tokens", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option(
    "--side-by-side", type=click.IntRange(1), default=64, show_default=True, help="Replies at once."
)
@click.option("--max-new", type=click.IntRange(1), default=256, show_default=True, help="Tokens of a reply.")
@click.option("--seed", default=1, show_default=True)
@click.option("--exact", is_flag=True, help="Write with the file itself instead of a faster BF16 copy.")
@click.pass_obj
def data(work: Work, tokens: int, side_by_side: int, max_new: int, seed: int, exact: bool) -> None:
    """Let the target answer the training and the held-out prompts; go on from what is there."""
    from training.dictation import write_held_out, write_training

    write_held_out(work.target, work.data, work.threads, max_new, work.out)
    write_training(
        work.target, work.data, work.threads, work.out,
        tokens=tokens, size=side_by_side, max_new=max_new, seed=seed, exact=exact,
    )  # fmt: skip


@cli.command()
@click.argument("texts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.pass_obj
def features(work: Work, texts: Sequence[Path]) -> None:
    """Read TEXTS of your own through the target and add its states to the training data."""
    from training.dictation import read_texts

    read_texts(work.target, work.data, work.threads, texts, work.out)


def _trainer(kind: str) -> None:
    """Add the sub-command that trains `kind`."""

    @click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True)
    @click.option("--batch", type=click.IntRange(1), default=8, show_default=True, help="Replies per step.")
    @click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=1e-3, show_default=True)
    @click.option(
        "--keep", type=click.IntRange(1), default=16384, show_default=True, help="Ids an EAGLE-3 head knows."
    )
    @click.option("--seed", default=1, show_default=True)
    @click.option(
        "--start", type=click.Path(path_type=Path),
        help=f"Go on from this {kind} file, unless the folder holds a run to go on with.",
    )  # fmt: skip
    @click.option("-o", "--output", type=click.Path(path_type=Path), help="File; default: in the folder.")
    @click.pass_obj
    def train(
        work: Work, minutes: float, batch: int, rate: float, keep: int, seed: int, start: Path | None,
        output: Path | None,
    ) -> None:  # fmt: skip
        import torch

        from training.fitting import Plan
        from training.trainers import STATES_READ, TRAINERS, read_lesson

        torch.set_num_threads(work.threads)
        lesson = read_lesson(work.target, work.data, keep, work.out, states=STATES_READ[kind], start=start)
        plan = Plan(minutes, batch=batch, rate=rate, seed=seed)
        path = output or work.folder / f"{kind}.gguf"
        run = TRAINERS[kind](lesson, plan, work.folder / kind, path)
        work.out.line(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {run.tokens} tokens seen")

    help = {"eagle3": "an EAGLE-3 head", "medusa": "Medusa heads", "draft": "a small draft model"}[kind]
    cli.command(kind, help=f"Train {help}; stopped with Ctrl+C, it keeps its best.")(train)


for _kind in KINDS:
    _trainer(_kind)


@cli.command("eval")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("-k", type=click.IntRange(1), default=4, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option("--json", "as_json", is_flag=True)
@click.pass_obj
def evaluate(work: Work, kind: str, file: Path | None, k: int, max_tokens: int, as_json: bool) -> None:
    """Count accepted drafts on the held-out prompts, greedy, in the product's own loop."""
    from training import evaluate as module

    results = module.evaluate(
        work.target, cast(DraftKind, kind), file or work.folder / f"{kind}.gguf", work.out,
        k=k, max_tokens=max_tokens, threads=work.threads,
    )  # fmt: skip
    work.out.line(json.dumps(module.as_data(results)) if as_json else module.as_table(results))


def main() -> int:
    """Run the command; returns its exit code."""
    try:
        cli(standalone_mode=False)
    except LocalspecError as error:
        Output.decide(sys.stdout, sys.stderr, os.environ).error(error.message, error.hint)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    return 0
