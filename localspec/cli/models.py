"""`localspec models`: what is on this disk, what belongs together, and what may go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localspec.cli.face import face
from localspec.cli.models_find import add, scan, suggest
from localspec.cli.options import Asked, takes
from localspec.cli.planned import catalogue
from localspec.errors import LocalspecError, UsageError, unknown
from localspec.output import Output, amount, table

if TYPE_CHECKING:
    from localspec.catalog import Pair
    from localspec.download import Record
    from localspec.planning.facts import PairFacts


class _Group(click.Group):
    """Names the nearest subcommand."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown("command", f"models {args[0]}", [f"models {name}" for name in self.commands])
        return super().resolve_command(ctx, args)


@click.group("models", cls=_Group)
def command() -> None:
    """Manage model files and pairs."""


@command.command("ls")
@click.option("--installed", is_flag=True, help="Only what is on this disk.")
@takes()
@face("Print one JSON object with `pairs`.")
def ls(installed: bool, asked: Asked, out: Output) -> int:
    """List the pairs and where their files are."""
    from localspec.planning.facts import PairFacts

    look = PairFacts(asked.config.models_dir)
    rows = [_listed(pair, look, asked) for pair in catalogue().pairs.values()]
    rows = [row for row in rows if not installed or row["state"] == "installed"]
    rows.sort(key=lambda row: ("installed", "partial download", "not downloaded").index(row["state"]))
    shown = [
        (
            f"{row['name']} ★" if row["default"] else row["name"], row["state"],
            amount(row["size_bytes"], "bytes") if row["size_bytes"] else "?", row["method"],
            row["target"], row["draft"] or "–",
        )
        for row in rows
    ]  # fmt: skip
    human = table(["pair", "state", "size", "method", "target", "draft"], shown, right=[2])
    out.report({"pairs": rows}, human if rows else "nothing is downloaded")
    _tell_unfinished(asked.config.models_dir, out)
    if not any(row["state"] == "installed" for row in rows):
        out.note("`localspec pull NAME` downloads a pair, `localspec pick-models` helps to choose")
    return 0


def _listed(pair: Pair, look: PairFacts, asked: Asked) -> dict[str, Any]:
    sizes = [model.size_bytes for model in pair.files]
    return {
        "name": pair.name,
        "state": look.state(pair),
        "size_bytes": sum(size or 0 for size in sizes) if all(sizes) else None,
        "method": pair.method,
        "target": pair.target.name,
        "draft": pair.draft.name if pair.draft else None,
        "sources": [model.source for model in pair.files],
        "files": [str(path) for path in map(look.path, pair.files) if path],
        "default": pair.name == asked.config.default_pair,
        "origin": pair.origin,
    }


def _tell_unfinished(models_dir: Path, out: Output) -> None:
    from localspec.download import Queue

    queue = Queue(models_dir)
    for entry in queue.entries():
        got = amount(queue.fetched_bytes(entry.unit), "bytes")
        why = f": {entry.error}" if entry.error else ""
        out.note(f"unfinished: {entry.unit.name}, {entry.state}, {got} here{why}")


@command.command("rm")
@click.argument("pairs", nargs=-1, required=True, metavar="PAIR...")
@click.option("--keep-row", is_flag=True, help="Leave pairs of your own in your models file.")
@takes()
@face("Print one JSON object.")
def rm(pairs: tuple[str, ...], keep_row: bool, asked: Asked, out: Output) -> int:
    """Delete the downloaded files of pairs, unfinished ones included, and the rows of pairs of your own.

    Files that another downloaded pair needs stay, and so do files outside the models folder.
    """
    from localspec.planning.removing import remove_pair

    catalog, models_dir = catalogue(), asked.config.models_dir
    wanted = [catalog.pair(name) for name in dict.fromkeys(pairs)]
    removed: list[Path] = []
    rows: list[str] = []
    for pair in wanted:
        done = remove_pair(pair, catalog, models_dir, [other.name for other in wanted], keep_row=keep_row)
        removed += done.removed
        rows += done.rows
        for file in done.kept:
            out.note(f"kept `{file.path}`: another downloaded pair needs it")
        if done.rows:
            out.note(f"took {', '.join(f'[{row}]' for row in done.rows)} out of `{pair.origin}`")
        if done.rows and pair.name == asked.config.default_pair:
            out.warn(f"`{pair.name}` was the default pair; choose another with `localspec pick-models`")
    out.report({"removed": removed, "rows": rows}, "\n".join(map(str, removed)) or "no file was deleted")
    return 0


@command.command("verify")
@click.argument("pairs", nargs=-1, metavar="[PAIR]...")
@takes()
@face("Print one JSON object.")
def verify(pairs: tuple[str, ...], asked: Asked, out: Output) -> int:
    """Hash downloaded files again and compare with their SHA-256; without a name all of them.

    Exits with 1 when a file is damaged, and names the command that mends it.
    """
    from localspec.download import Library
    from localspec.planning import unit_of

    library = Library(asked.config.models_dir)
    records = list(library.records())
    if pairs:
        units = [unit_of(catalogue().pair(name)) for name in pairs]
        parts = {(p.repo, p.path) for unit in units if unit for file in unit.files for p in file.parts}
        records = [record for record in records if (record.repo, record.path) in parts]
        if not records:
            raise UsageError(
                "none of these pairs has a downloaded file", hint="`localspec pull PAIR` fetches one"
            )
    rows = [_verified(record, library.models_dir / record.location, out) for record in records]
    human = table(["file", "result"], [(row["file"], row["error"] or "right") for row in rows])
    out.report({"files": rows}, human if rows else "nothing is downloaded")
    return 1 if any(row["error"] for row in rows) else 0


def _verified(record: Record, path: Path, out: Output) -> dict[str, str | None]:
    from localspec.download import verifying

    try:
        with out.progress(f"checking {path.name}", record.size, "bytes") as progress:
            for event in verifying(path, record.sha256):
                progress.update(event.done)
    except LocalspecError as error:
        return {"file": str(path), "error": error.message}
    return {"file": str(path), "error": None}


command.add_command(add)
command.add_command(scan)
command.add_command(suggest)
