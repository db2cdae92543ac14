"""A pair of the user's own: find its files, see that they belong together, and keep it in the models file."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from localspec import hub
from localspec.catalog import Catalog, ModelFile, Pair, PairKind, add_user_pair, quant_label
from localspec.catalog.entries import Role
from localspec.errors import PairingError, UsageError, unknown
from localspec.header import FileKind, Header, draft_kind, facts_from_header, read_header, shard_paths
from localspec.pairing import Verdict, verdict
from localspec.planning.facts import FactsCache, remote_key
from localspec.planning.remote import as_listed, remote_header

_REMOTE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+):(?P<file>.+)")
_ROLES: dict[FileKind, tuple[PairKind, Role]] = {
    "model": ("draft", "model"),
    "model with nextn": ("draft", "model"),
    "eagle3": ("eagle3", "eagle3"),
    "dflash": ("dflash", "dflash"),
    "dspark": ("dflash", "dflash"),
    "dflash2": ("dflash2", "dflash2"),
    "mtp": ("mtp", "mtp"),
    "gemma4-assistant": ("mtp", "mtp"),
    "medusa": ("medusa", "medusa"),
}


@dataclass(frozen=True, slots=True)
class Located:
    """A file somebody named, with its complete header."""

    model: ModelFile
    header: Header


def locate(text: str, catalog: Catalog, look_in: Path) -> Located:
    """The file that a path, an `owner/repo:file`, or a name of the catalogue means.

    Args:
        look_in: the models folder.

    Raises:
        UsageError: nothing is called so.
        ModelFileError: a path that is missing or no GGUF.
        PermissionDeniedError, OutsideError: the hub.
    """
    path = Path(text).expanduser()
    remote = _REMOTE.fullmatch(text)
    if path.is_file() or (not remote and text.lower().endswith(".gguf")):
        header = read_header(path)
        return Located(_local_row(path.absolute(), header), header)
    if remote:
        model = _remote_row(remote["repo"], remote["file"])
        header = remote_header(model)
        model = replace(model, role=_roles(header)[1], license=_license(header))
        FactsCache().put(remote_key(model), facts_from_header(header))
        return Located(model, header)
    if text in catalog.pairs:
        text = catalog.pairs[text].target.name
    if text not in catalog.models:
        raise unknown("model", text, [*catalog.models, *catalog.pairs])
    model = catalog.models[text]
    place = model.location(look_in)
    here = place is not None and place.is_file()
    return Located(model, read_header(place) if here and place else remote_header(model))


def _local_row(path: Path, header: Header) -> ModelFile:
    first = shard_paths(path)[0]
    return ModelFile(
        _slug(path.stem), path.name, path=first, quant=quant_label(path.name), size_bytes=header.size_bytes,
        size_exact=True, role=_roles(header)[1], license=_license(header),
    )  # fmt: skip


def _license(header: Header) -> str | None:
    told = header.get("general.license")
    return told if isinstance(told, str) and told.isprintable() and len(told) <= 60 else None


def _remote_row(repo: str, file: str) -> ModelFile:
    """The row of a hub file, pinned to its commit now; `file` may be a label that one file has."""
    listing = hub.list_files(repo)
    labelled = [entry.path for entry in listing.files if quant_label(entry.path) == file.upper()]
    file = labelled[0] if len(labelled) == 1 else file
    return as_listed(ModelFile(_slug(Path(file).stem), file, repo=repo, quant=quant_label(file)), listing)


def _roles(header: Header) -> tuple[PairKind, Role]:
    return _ROLES.get(draft_kind(header), ("draft", "model"))


def _slug(stem: str) -> str:
    """A catalogue name made of a file name."""
    return re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._") or "model"


def add(
    name: str, target: Located, draft: Located | None, catalog: Catalog, *, k: int | None, note: str | None
) -> tuple[Pair, Verdict | None]:
    """Check a pair and save it in the user's models file.

    Raises:
        UsageError: the name is taken or bad, or the combination is known to be bad.
        PairingError: the draft does not belong to the target, or the target cannot be one.
    """
    if name in catalog.pairs:
        raise UsageError(f"there is a pair `{name}` already", hint="choose another name")
    answer = None
    if draft is not None:
        answer = verdict(target.header, draft.header)
        answer.raise_if_refused()
        kind = _roles(draft.header)[0]
    else:
        told = draft_kind(target.header)
        if told not in ("model", "model with nextn"):
            raise PairingError(
                f"`{target.model.file}` cannot be a target: it is a GGUF of another purpose ({told})"
            )
        kind = "mtp-inside" if told == "model with nextn" else "ngram"
    rows = [_row(found, catalog) for found in (target, draft) if found]
    pair = add_user_pair(
        name, target=rows[0], kind=kind, draft=rows[1] if draft is not None else None, k=k, note=note
    )
    return pair, answer


def _row(found: Located, catalog: Catalog) -> ModelFile | str:
    """The row to be written, or the name of one that says the same."""
    model = found.model
    known = catalog.models.get(model.name)
    if known is None:
        return model
    if known is model or known.source == model.source:
        return known.name
    number = 2
    while f"{model.name}-{number}" in catalog.models:
        number += 1
    return replace(model, name=f"{model.name}-{number}")
