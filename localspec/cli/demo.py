"""`localspec demo`."""

from __future__ import annotations

import click

from localspec.cli.face import face
from localspec.cli.options import METHOD, Asked, SettingCommand, takes
from localspec.output import Output


@click.command("demo", cls=SettingCommand)
@takes((METHOD,))
@click.option("--quick", is_flag=True, help="One repeat of shorter replies.")
@face("Print one JSON object.")
def command(asked: Asked, quick: bool, out: Output) -> int:
    """Race the embedded pair: the same prompts plain and speculative, interleaved.

    `auto` chooses and pauses by itself; then each drafter of the pair runs alone with drafts of 4 tokens,
    without pausing. With --method, only that one runs.
    """
    from localspec.cli.opening import opened
    from localspec.cli.planned import recorded
    from localspec.demo import PAIR, run_demo
    from localspec.pairs import resolve

    files = resolve(PAIR, None, None)
    with opened(files, asked, out) as session:
        method = asked.request().speculation.method
        return run_demo(recorded(files, session, out), out, method=method, quick=quick)
