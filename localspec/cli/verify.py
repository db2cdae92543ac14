"""`localspec verify`."""

from __future__ import annotations

import click

from localspec.cli.face import face
from localspec.cli.options import LOAD, METHOD, PAIR, SPECULATION, Asked, SettingCommand, takes
from localspec.output import Output

K_OPTION = tuple(option for option in SPECULATION if option.fills == "speculation.k")


@click.command("verify", cls=SettingCommand)
@click.argument("pair", required=False, metavar="[PAIR]")
@click.option("--quick", is_flag=True, help="A look with few tokens, not a proof.")
@takes(PAIR, (METHOD,), K_OPTION, LOAD)
@face("Print one JSON object.")
def command(pair: str | None, quick: bool, asked: Asked, out: Output) -> int:
    """Prove on this machine that speculation emits the target's own text.

    Every method drafts with a fixed length and never pauses. Its replies are then scored token by token
    by the target alone, in a fresh context that decodes one row at a time. Exits with 1 when a method
    emits what the target would not have, or when too few of its drafts were judged to know.
    """
    from localspec import verify
    from localspec.cli.opening import opened
    from localspec.pairs import resolve

    files = resolve(
        pair, asked.target, asked.draft, default=asked.config.default_pair, models_dir=asked.config.models_dir
    )
    amount = verify.QUICK if quick else verify.FULL
    speculation = asked.request().speculation
    with opened(files, asked, out) as session:
        info = session.info
        methods = verify.methods_of(info, speculation.method)
        collected = verify.collect(session, methods, speculation.k or verify.K, amount, out)
    verdicts = verify.examine(collected, files.target, info.effective, amount, out)
    report = verify.report_of(info, verdicts, quick=quick)
    out.report(report, verify.human_report(report, verdicts))
    return 0 if report["passed"] else 1
