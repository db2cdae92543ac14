"""`localspec config`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from localspec.cli.face import face
from localspec.cli.options import DEFAULTS, Asked, takes
from localspec.output import Output, table


@click.group("config")
def command() -> None:
    """Show and check the settings."""


@command.command("show")
@click.option("--changed", is_flag=True, help="Only what somebody set.")
@takes()
@face("Print one JSON object with `settings`.")
def show(changed: bool, asked: Asked, out: Output) -> int:
    """Print every setting with its value and where it came from.

    A flag beats LOCALSPEC_<KEY> in the environment, that the settings file, that the default.
    """
    rows = [row for row in asked.config.rows(DEFAULTS) if not changed or row.source != "default"]
    shown = [(row.key, _value(row.value), row.source, row.help) for row in rows]
    human = table(["key", "value", "from", "what"], shown) if rows else "everything is at its default"
    out.report({"file": asked.config.file, "settings": rows}, human)
    for warning in asked.config.warnings:
        out.warn(warning)
    return 0


def _value(value: object) -> str:
    """As the settings file would hold it; `auto` for what the engine decides."""
    if value is None:
        return "auto"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(repr(item)[1:-1] if isinstance(item, str) else str(item) for item in value) or "–"
    return str(value)


@command.command("check")
@click.option(
    "--config", "file", metavar="FILE", type=click.Path(path_type=Path), help="Another settings file."
)
@face("Print one JSON object with `problems`.")
def check(file: Path | None, out: Output) -> int:
    """Check the settings file, the environment and the models file; exits with 2 when something is wrong."""
    from localspec.catalog import load_catalog
    from localspec.config import check_config
    from localspec.errors import LocalspecError
    from localspec.locations import locations

    problems: list[LocalspecError] = list(check_config(os.environ, file))
    try:
        load_catalog()
    except LocalspecError as error:
        problems.append(error)
    files = [file or locations().config_file, locations().user_models_file]
    human = "\n".join(f"{p.message}" + (f"\n    {p.hint}" if p.hint else "") for p in problems)
    record = [{"message": problem.message, "hint": problem.hint} for problem in problems]
    out.report(
        {"files": files, "problems": record}, human or "no problem found in " + ", ".join(map(str, files))
    )
    return 2 if problems else 0
