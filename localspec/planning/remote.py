"""What a catalogue row is on the hub now: the file under its present name, its commit, and its header.

Asks the network; everything else in planning does without.
"""

from __future__ import annotations

from dataclasses import replace

from localspec import hub
from localspec.catalog import ModelFile, Pin, match_file
from localspec.download import RemoteFile
from localspec.errors import OutsideError, UsageError, unknown
from localspec.header import Header, read_sources
from localspec.pairs import remote_file


def current(model: ModelFile) -> ModelFile:
    """The row with name, commit, digest, size and gating as the hub lists them; as it is when pinned.

    A file that was renamed is found by its quantisation label.

    Raises:
        UsageError: nothing in the repository is this file.
        PermissionDeniedError, OutsideError: as `hub.list_files`.
    """
    if model.repo is None or (model.revision and model.sha256):
        return model
    return as_listed(model, hub.list_files(model.repo, model.revision or "main"))


def as_listed(model: ModelFile, listing: hub.Listing) -> ModelFile:
    """The row as a listing of its repository has it; raises UsageError when nothing there is this file."""
    paths = [file.path for file in listing.files]
    found = match_file(model.file, paths, model.quant)
    if found is None:
        raise unknown(f"file of `{listing.repo}`:", model.file, [p for p in paths if p.endswith(".gguf")])
    parts = [listing.file(part.path) for part in RemoteFile(listing.repo, found).parts]
    return replace(
        model,
        file=found,
        revision=listing.commit,
        sha256=parts[0].sha256,
        size_bytes=sum(part.size for part in parts),
        size_exact=True,
        gated=listing.gated,
    )


def pin_of(model: ModelFile) -> Pin | None:
    """What is to be remembered of a row that `current` returned."""
    if model.revision is None or model.sha256 is None or model.size_bytes is None:
        return None
    return Pin(model.file, model.revision, model.sha256, model.size_bytes)


def remote_header(model: ModelFile) -> Header:
    """The complete header of a hub file: 2 to 16 MB the first time, nothing once kept.

    Raises:
        UsageError, PermissionDeniedError, OutsideError: as `current`; without a connection the header that
            was read last is used when there is one.
        ModelFileError: what is there is no GGUF.
    """
    try:
        found = current(model)
    except OutsideError:
        found = model  # the range source knows the commit it saw last
    if found.repo is None:
        raise UsageError(f"`{model.name}` comes from no repository")
    sources = [hub.HttpRangeSource(part.repo, part.path, part.revision) for part in remote_file(found).parts]
    return read_sources(sources, found.file.rsplit("/", 1)[-1])
