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

    With --method, that drafter also runs at a fixed draft length of 4, without pausing.
    """
    from localspec.cli.opening import opened
    from localspec.demo import PAIR, run_demo
    from localspec.pairs import resolve

    with opened(resolve(PAIR, None, None), asked, out) as session:
        return run_demo(session, out, method=asked.request().speculation.method, quick=quick)
