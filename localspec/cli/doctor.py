"""`localspec doctor`."""

from __future__ import annotations

import click

from localspec.cli.face import face
from localspec.output import Output


@click.command("doctor")
@face("Print one JSON object.")
def command(out: Output) -> int:
    """Say what this machine and build can do, and what is missing.

    Lists the llama.cpp build, its devices with their free memory, and whether the embedded pair is there.
    Exits with 1 when something is missing, and names the command that fixes it.
    """
    from localspec.doctor import examine, human_report

    report = examine()
    out.report(report, human_report(report))
    return 1 if report.problems else 0
