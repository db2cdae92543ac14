"""`localspec doctor`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from localspec.cli.face import face
from localspec.cli.options import LOAD, PAIR, Asked, SettingCommand, takes
from localspec.output import Output

if TYPE_CHECKING:
    from localspec.doctor import Preflight
    from localspec.selftest.proof import Finding


@click.command("doctor", cls=SettingCommand)
@click.argument("pair", required=False, metavar="[PAIR]")
@click.option("--selftest", is_flag=True, help="Speculate with tiny models and compare with plain decoding.")
@takes(PAIR, LOAD)
@face("Print one JSON object.")
def command(pair: str | None, selftest: bool, asked: Asked, out: Output) -> int:
    """Say what this machine and build can do, and what is missing.

    Lists the llama.cpp build, its devices with their free memory, and whether the embedded pair is there.
    With a pair it is loaded in a child process and 16 tokens are drafted and verified by each of its methods.
    Exits with 1 when something is missing or wrong, and names the command that fixes it.
    """
    from localspec.doctor import examine, human_report

    report = examine(asked.config.models_dir, asked.config.default_pair)
    if pair is not None or asked.target is not None:
        report = replace(report, pair=_preflight(pair, asked, out))
    if selftest:
        report = replace(report, selftest=_selftest(asked, out))
    out.report(report, human_report(report))
    return 0 if report.healthy else 1


def _preflight(pair: str | None, asked: Asked, out: Output) -> Preflight:
    from localspec.cli.working import start_worker
    from localspec.doctor import preflight
    from localspec.pairs import resolve

    files = resolve(pair, asked.target, asked.draft, models_dir=asked.config.models_dir)
    with start_worker(files, asked, out) as session:
        return preflight(session, files.name)


def _selftest(asked: Asked, out: Output) -> tuple[Finding, ...]:
    import tempfile
    from pathlib import Path

    from localspec.selftest.proof import prove
    from localspec.worker import WorkerSession

    with (
        tempfile.TemporaryDirectory(prefix="localspec-selftest-") as folder,
        out.progress("self-test") as shown,
    ):
        found = []
        for finding in prove(WorkerSession, Path(folder), asked.load()):
            found.append(finding)
            shown.update(label=f"self-test: {finding.check} {'passed' if finding.passed else 'FAILED'}")
        return tuple(found)
