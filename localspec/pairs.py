"""From a pair's name, or from files, to the files a session loads. Looks at this disk only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from localspec.catalog import Catalog, ModelFile, Pair, load_catalog, read_pins
from localspec.download import Library, RemoteFile
from localspec.errors import ModelFileError, PairingError, UsageError
from localspec.header import Header, draft_kind, read_header, shard_paths
from localspec.interfaces import Companion, DraftKind, PairFiles
from localspec.locations import locations

DEMO = "demo"
"""Name of the embedded pair, known everywhere."""

DRAFT_KINDS: dict[str, DraftKind] = {
    "model": "draft",
    "model with nextn": "draft",
    "eagle3": "eagle3",
    "dflash": "dflash",
    "dflash2": "dflash",
    "dspark": "dflash",
    "mtp": "mtp",
    "gemma4-assistant": "mtp",
    "medusa": "medusa",
}
"""What a file of each kind (`header.FileKind`) drafts as; other kinds cannot draft."""


def resolve(
    name: str | None,
    target: Path | None = None,
    draft: Path | None = None,
    *,
    default: str | None = None,
    catalog: Catalog | None = None,
    models_dir: Path | None = None,
) -> PairFiles:
    """The files of a pair.

    Args:
        name: of a pair in `models.toml`; exclusive with `target`.
        target: a GGUF file instead.
        draft: a GGUF file that drafts, instead of the pair's own.
        default: pair to use when neither is given.
        models_dir: where models are kept, instead of `locations().models_dir`.

    Raises:
        UsageError: an unknown pair, or a name and a target at once.
        ModelFileError: a file is missing or is no GGUF.
        PairingError: the draft is no drafter.
    """
    if name is not None and target is not None:
        raise UsageError(f"both a pair (`{name}`) and `--target` were given", hint="give one of them")
    if target is not None:
        files = PairFiles(target.stem, target, tuple(inside(read_header(target), target)))
    else:
        wanted = name or default
        if wanted is None:
            raise UsageError(
                "no pair was given and there is no default one", hint="try `localspec chat demo`"
            )
        catalog = catalog or load_catalog().with_pins(read_pins())
        files = pair_files(catalog.pair(wanted), models_dir)
    if draft is None:
        return files
    return PairFiles(files.name, files.target, (companion(draft),))


def pair_files(pair: Pair, models_dir: Path | None = None) -> PairFiles:
    """The files of a catalogue pair.

    Raises:
        ModelFileError: one is not on this disk.
    """
    target = on_disk(pair.target, pair, models_dir)
    companions = [
        Companion(_kind(d.kind), on_disk(d.model, pair, models_dir)) for d in pair.drafters if d.model
    ]
    if any(d.kind == "mtp-inside" for d in pair.drafters):
        companions.append(Companion("mtp", target))
    return PairFiles(pair.name, target, tuple(companions))


def _kind(kind: str) -> DraftKind:
    return DRAFT_KINDS.get(kind, "draft") if kind != "draft" else "draft"


def find_file(model: ModelFile, library: Library) -> Path | None:
    """Where a model's file lies whole: in its place, or where another tool keeps it; None = not here."""
    path = model.location(library.models_dir)
    if path is not None and all(part.is_file() for part in shard_paths(path)):
        return path
    found = library.find(remote_file(model)) if model.repo else None
    return found[0] if found else None


def remote_file(model: ModelFile) -> RemoteFile:
    """A hub file of the catalogue as the downloader names it."""
    assert model.repo is not None
    return RemoteFile(model.repo, model.file, model.revision or "main", model.sha256)


def on_disk(model: ModelFile, pair: Pair, models_dir: Path | None = None) -> Path:
    """Where a model's file lies.

    Raises:
        ModelFileError: it is not there.
    """
    path = find_file(model, Library(models_dir or locations().models_dir))
    if path is None:
        hint = "run `scripts/setup`" if pair.name == DEMO else f"run `localspec pull {pair.name}`"
        raise ModelFileError(f"`{model.file}` of the pair `{pair.name}` is not on this disk", hint=hint)
    return path


def inside(header: Header, path: Path) -> Iterable[Companion]:
    """Drafters that the target's own file carries."""
    if draft_kind(header) == "model with nextn":
        yield Companion("mtp", path)


def companion(path: Path) -> Companion:
    """A drafter file, classified by its contents.

    Raises:
        ModelFileError: missing or not GGUF.
        PairingError: it generates no text.
    """
    kind = draft_kind(read_header(path))
    if kind not in DRAFT_KINDS:
        raise PairingError(f"`{path}` cannot draft: it is a GGUF of another purpose (`{kind}`)")
    return Companion(DRAFT_KINDS[kind], path)
