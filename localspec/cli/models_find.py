"""`localspec models add`, `scan` and `suggest`: pairs from what is on this disk or anywhere on the hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from localspec.cli.face import face
from localspec.cli.options import Asked, takes
from localspec.cli.planned import catalogue
from localspec.output import Output, amount, table

if TYPE_CHECKING:
    from localspec.planning.scan import Found
    from localspec.planning.suggest import Candidate

SOURCE = "A GGUF file, owner/repo:file (or owner/repo:QUANT), or a model name of the catalogue."


@click.command("add")
@click.argument("name")
@click.option("--target", required=True, metavar="SOURCE", help=SOURCE)
@click.option("--draft", metavar="SOURCE", help="What drafts for it, named the same way.")
@click.option(
    "--draft-length", "k", metavar="N", type=click.IntRange(1, 64), help="Draft length to start from."
)
@click.option("--note", metavar="TEXT", help="A remark to keep with it.")
@takes()
@face("Print one JSON object.")
def add(
    name: str, target: str, draft: str | None, k: int | None, note: str | None, asked: Asked, out: Output
) -> int:
    """Save a pair of your own under NAME, after checking that its files belong together.

    Without --draft the target drafts with its own MTP layers, or with n-grams. Nothing is downloaded.
    """
    from localspec.locations import locations
    from localspec.planning import adding

    catalog, models_dir = catalogue(), asked.config.models_dir
    found = [adding.locate(text, catalog, models_dir) for text in (target, draft) if text is not None]
    pair, verdict = adding.add(
        name, found[0], found[1] if draft is not None else None, catalog, k=k, note=note
    )
    told = verdict.text if verdict else f"drafts by {pair.method}"
    for warning in verdict.warnings if verdict else ():
        out.warn(warning)
    file = locations().user_models_file
    out.report(
        {"name": name, "kind": pair.kind, "verdict": told, "file": file},
        f"added `{name}` ({told}) to {file}",
    )
    if any(model.repo for model in pair.files):
        out.note(f"`localspec pull {name}` downloads it")
    return 0


@click.command("scan")
@takes()
@face("Print one JSON object with `files`.")
def scan(asked: Asked, out: Output) -> int:
    """List GGUF files that are already on this disk; nothing is changed.

    Looks in the models folder, in Hugging Face's cache, and in the folders of LM Studio and llama.cpp.
    """
    from localspec.planning.scan import foreign_folders
    from localspec.planning.scan import scan as find

    files = find(asked.config.models_dir)
    rows = [
        (file.name or file.path.name, _kind(file), file.quant or "–", amount(file.size_bytes, "bytes"),
         file.where, file.path)
        for file in files
    ]  # fmt: skip
    human = table(["model", "kind", "quant", "size", "where", "path"], rows, right=[3])
    out.report({"files": files}, human if files else "no GGUF file was found")
    if not files:
        places = [str(folder) for folders in foreign_folders().values() for folder in folders]
        out.note(f"looked in {asked.config.models_dir}, Hugging Face's cache, {', '.join(places)}")
    else:
        out.note("`localspec models add NAME --target PATH` makes a pair, `models suggest PATH` finds drafts")
    return 0


def _kind(file: Found) -> str:
    return f"unreadable: {file.error}" if file.error else str(file.kind)


@click.command("suggest")
@click.argument("target")
@click.option("--offline", is_flag=True, help="Ask the hub for nothing.")
@takes()
@face("Print one JSON object with `candidates`.")
def suggest(target: str, offline: bool, asked: Asked, out: Output) -> int:
    """Rank drafts for TARGET: a pair, a model, a file, or owner/repo:file.

    Vocabularies are compared token by token. Candidates on this disk come before those on the hub, whose
    headers are read unless --offline is given.
    """
    from localspec.planning import adding
    from localspec.planning.facts import PairFacts
    from localspec.planning.suggest import suggest as candidates_for

    catalog, look = catalogue(), PairFacts(asked.config.models_dir)
    found = adding.locate(target, catalog, look.models_dir)
    row = next((m for m in catalog.models.values() if m.name == found.model.name), found.model)
    candidates = candidates_for(found.header, row, catalog, look, online=not offline)
    out.report({"target": found.model.name, "candidates": candidates}, _table(candidates))
    if not candidates:
        out.note("without a draft, n-grams still speed up text that repeats its prompt (`--method ngram`)")
    return 0


def _table(candidates: list[Candidate]) -> str:
    if not candidates:
        return "no draft is known for it"
    rows = [
        (
            c.name, c.kind, amount(c.size_bytes, "bytes") if c.size_bytes else "?",
            "this disk" if c.local else "hub", c.status or "not compared", _gain(c), c.reason,
        )
        for c in candidates
    ]  # fmt: skip
    return table(["draft", "method", "size", "where", "verdict", "speed-up", "why"], rows, right=[2])


def _gain(candidate: Candidate) -> str:
    if candidate.gain is None:
        return "–"
    low, high = candidate.gain
    return f"~{low:.1f}–{high:.1f}×"
