"""`localspec pick-models`."""

from __future__ import annotations

import click

from localspec.cli.face import face
from localspec.cli.options import Asked, SettingCommand, takes
from localspec.cli.planned import (
    CONTEXT,
    budget_option,
    catalogue,
    machine,
    measurements,
    plans_table,
    question_text,
)
from localspec.output import Output


@click.command("pick-models", cls=SettingCommand)
@click.option("--list", "listing", is_flag=True, help="Print the table instead of opening the screen.")
@budget_option
@takes(CONTEXT)
@face("Print one JSON object with `pairs`.")
def command(listing: bool, budget: str | None, asked: Asked, out: Output) -> int:
    """Browse the pairs: what fits, what they gain, what is downloaded.

    On a terminal this is a screen on which pairs are downloaded and one is made the default. With --list or
    --json, and where there is no terminal, it prints the same as a table. It asks the network for nothing.
    `~` marks an estimate, SIM a simulated card.
    """
    from localspec.tui import why_no_screen

    if not listing and not out.json and why_no_screen() is None:
        from localspec.tui import run_picker

        return run_picker(catalog=catalogue(), config=asked.effective(), budget=budget)
    from localspec.planning import plan_pairs

    with measurements() as kept:
        plans = plan_pairs(
            catalogue(), budget=budget, load=asked.load(), machine=machine(budget, asked),
            models_dir=asked.config.models_dir, measurements=kept,
        )  # fmt: skip
    out.report({"pairs": [plan.to_record() for plan in plans]}, plans_table(plans))
    if plans[0].compared_with:
        out.note(question_text(plans))
    elif plans[0].reason:
        out.warn(f"{plans[0].reason}; `--budget 24GB-card` compares with a simulated card")
    if not any(plan.state == "installed" and plan.name != "demo" for plan in plans):
        out.note("none is downloaded yet: `localspec pull NAME` fetches one, `localspec demo` needs none")
    return 0
