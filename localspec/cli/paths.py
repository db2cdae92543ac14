"""`localspec paths`."""

from __future__ import annotations

from dataclasses import asdict

import click

from localspec.cli.face import face
from localspec.locations import locations
from localspec.output import Output, table


@click.command("paths")
@face("Print one JSON object.")
def command(out: Output) -> None:
    """Print where localspec keeps things.

    LOCALSPEC_HOME moves everything, LOCALSPEC_MODELS_DIR the models.
    """
    places = {name: str(path) for name, path in asdict(locations()).items()}
    out.report(places, table(["what", "where"], [(k.replace("_", " "), v) for k, v in places.items()]))
