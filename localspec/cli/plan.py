"""`localspec plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from localspec.cli.face import face
from localspec.cli.options import PAIR, SLOTS, SPECULATION, Asked, SettingCommand, takes
from localspec.cli.planned import (
    MEMORY,
    budget_option,
    catalogue,
    context,
    fit,
    gain,
    license_of,
    machine,
    measurements,
    question_text,
)
from localspec.errors import UsageError
from localspec.output import Output, amount, table

if TYPE_CHECKING:
    from localspec.catalog import Pair
    from localspec.interfaces import PairFiles
    from localspec.planning import PairPlan

K = tuple(option for option in SPECULATION if option.fills == "speculation.k")
FILES = tuple(option for option in PAIR if option.fills in ("pair.target", "pair.draft"))


@click.command("plan", cls=SettingCommand)
@click.argument("pair", required=False, metavar="[PAIR]")
@budget_option
@click.option("--explain", is_flag=True, help="Print the arithmetic.")
@click.option("--offline", is_flag=True, help="Ask the hub for nothing.")
@takes(FILES, K, SLOTS, MEMORY)
@face("Print one JSON object.")
def command(
    pair: str | None, budget: str | None, explain: bool, offline: bool, asked: Asked, out: Output
) -> int:
    """Say whether a pair fits, item by item, and whether the draft belongs to the target.

    Headers of files that are not on this disk are read from the hub (a few megabytes, kept). Works before
    any download.
    """
    from localspec.planning import plan_pair

    with measurements() as kept:
        plan = plan_pair(
            _subject(pair, asked), budget=budget, load=asked.load(), machine=machine(budget, asked),
            models_dir=asked.config.models_dir, measurements=kept, online=not offline, dry_run=True,
        )  # fmt: skip
    for note in plan.notes:
        out.note(note)
    record = plan.to_record() | ({"explain": list(plan.explain)} if explain else {})
    out.report(record, "\n".join(plan.explain) if explain else human_plan(plan))
    if plan.compared_with and not explain:
        out.note(question_text([plan]))
    return 0


def _subject(name: str | None, asked: Asked) -> Pair | PairFiles:
    """A pair of the catalogue, downloaded or not, or files."""
    from localspec.pairs import resolve

    if asked.target is not None or asked.draft is not None:
        return resolve(name, asked.target, asked.draft, models_dir=asked.config.models_dir)
    name = name or asked.config.default_pair
    if name is None:
        raise UsageError("no pair was given", hint="give a name (`localspec models ls`) or `--target FILE`")
    return catalogue().pair(name)


def human_plan(plan: PairPlan) -> str:
    """One pair for people: the answer, what it consists of, and what would help."""
    draft = f" + {plan.draft}" if plan.draft else ""
    lines = [f"{plan.name}: {plan.target}{draft} ({plan.method})", ""]
    answer = f"{fit(plan)} · {plan.needed_text} · longest context {context(plan.largest_ctx)}"
    facts = [
        ("fit", answer + (" · SIM" if plan.simulated else "")),
        *([("why", plan.reason)] if plan.reason else []),
        (
            "draft",
            plan.verdict_text or WITHOUT.get(plan.method if not plan.draft else "", "not compared yet"),
        ),
        *(("", warning) for warning in (plan.verdict.warnings if plan.verdict else ())),
        *([("speed", plan.speed_text)] if plan.speed_text else [("speed-up", _published(plan))]),
        *([("auto", f"starts from {plan.tuned.text} by `localspec bench --tune`")] if plan.tuned else []),
        ("licence", license_of(plan)),
        ("files", f"{plan.state}, {amount(plan.download_bytes or 0, 'bytes')}"),
        ("figures", f"from {SOURCES[plan.source]}"),
        *(("try", suggestion.text) for suggestion in plan.suggestions),
    ]
    lines += [f"{name:<9} {text}" for name, text in facts]
    about = "~" if plan.estimated else ""
    host = {device.name for device in plan.devices if device.kind == "cpu"}
    items = sorted(plan.bytes, key=lambda item: item.device in host)
    rows = [(i.term, i.device, f"{about}{i.size_bytes / 2**20:,.0f} MiB") for i in items]
    return "\n".join([*lines, "", table(["what", "where", "memory"], rows, right=[2])])


def _published(plan: PairPlan) -> str:
    return gain(plan) + (" (published, on other hardware)" if plan.gain else "")


WITHOUT = {"ngram": "none: n-grams of the text", "mtp": "MTP layers of the target"}
"""Method -> what drafts when there is no second file."""
SOURCES = {
    "catalogue": "the catalogue (an estimate until the headers are read)",
    "header": "the files' headers",
    "dry-run": "a dry run of llama.cpp",
    "measured": "the last load on this machine",
}
