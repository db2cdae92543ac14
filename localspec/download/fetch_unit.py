"""Bring every file of one unit onto this disk, verified, and say where it is.

In order: what was verified before; what is on this disk already and proves right; the rest from the hub.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from localspec import hub
from localspec.download.control import Backoff, Control, Policy, call
from localspec.download.digest import has_magic, is_gguf_name, verifying
from localspec.download.disk import check_space, disk_errors
from localspec.download.events import (
    Event,
    Finished,
    Notice,
    Owner,
    Progress,
    Started,
    Verified,
    Waiting,
)
from localspec.download.library import Library
from localspec.download.lock import FileLock, lock_path
from localspec.download.part import Part, kept_bytes
from localspec.download.transfer import Grown, Meter, fetch
from localspec.download.units import RemoteFile, Unit
from localspec.errors import LocalspecError, ModelFileError
from localspec.hub import FileMetadata
from localspec.transport import Unavailable

T = TypeVar("T")
LOCK_POLL_S = 0.3
PROGRESS_S = 0.1
ASK_ATTEMPTS = 3
"""A hub that does not answer at the start is no network rather than a hiccup: say so soon."""
Parts = tuple[FileMetadata, ...]


def fetch_unit(
    unit: Unit, library: Library, policy: Policy, control: Control, *, wait: bool
) -> Iterator[Event]:
    """Complete a unit; the last event is `Finished`.

    Args:
        wait: wait for another process that downloads a file of the unit; else raise.

    Raises:
        LocalspecError: see `pull`.
        StopRequested: asked for through `control`.
    """
    yield Started(unit)
    found: dict[RemoteFile, Path] = {}
    wanted: dict[RemoteFile, Parts] = {}
    files = tuple(dict.fromkeys(unit.files))
    for file in files:
        paths = library.find(file) or (yield from _adopt(file, _self_named(file, library), library, control))
        if paths:
            found[file] = paths[0]
            yield Verified(file, paths[0])
    for file in [file for file in files if file not in found]:
        parts = yield from _ask_hub(file, policy, control)
        paths = yield from _adopt(file, _listed(file, parts, library), library, control)
        if paths:
            found[file] = paths[0]
            yield Verified(file, paths[0])
        else:
            wanted[file] = parts
    _check_space(wanted, library)
    for file, parts in wanted.items():
        found[file] = yield from _download(file, parts, library, policy, control, wait=wait)
        yield Verified(file, found[file])
    yield Finished(unit, tuple(found[file] for file in unit.files))


@dataclass(frozen=True, slots=True)
class _Copy:
    """Files on this disk that are the parts of one remote file if their digests are right."""

    paths: tuple[Path, ...]
    digests: tuple[str, ...]
    commit: str


def _self_named(file: RemoteFile, library: Library) -> Iterator[_Copy]:
    """Copies whose digests are known without a request: pinned, or in the names of the cache's blobs."""
    if file.sha256 and len(file.parts) == 1:
        for paths in library.copies(file):
            yield _Copy(paths, (file.sha256,), file.revision)
        return
    snapshot = hub.cached_snapshot(file.repo, file.revision)
    if snapshot is None:
        return
    paths = tuple(snapshot / part.path for part in file.parts)
    digests = [hub.blob_sha256(path) for path in paths if path.is_file()]
    named = tuple(digest for digest in digests if digest)
    if len(named) == len(paths) and file.sha256 in (None, named[0]):
        yield _Copy(paths, named, snapshot.name)


def _listed(file: RemoteFile, parts: Parts, library: Library) -> Iterator[_Copy]:
    """Copies of the right sizes, with the digests from the hub's list."""
    digests = tuple(part.sha256 for part in parts if part.sha256)
    for paths in library.copies(file) if len(digests) == len(parts) else ():
        if [path.stat().st_size for path in paths] == [part.size for part in parts]:
            yield _Copy(paths, digests, parts[0].commit)


def _adopt(
    file: RemoteFile, copies: Iterator[_Copy], library: Library, control: Control
) -> Generator[Event, None, tuple[Path, ...] | None]:
    """The first copy that proves right, used where it is."""
    for copy in copies:
        try:
            stats = [path.stat() for path in copy.paths]  # before: a change while hashing must show
            for path, digest in zip(copy.paths, copy.digests, strict=True):
                for event in verifying(path, digest):
                    control.check()
                    yield event
        except (ModelFileError, OSError) as error:
            yield Notice("info", f"{error}: not used")
            continue
        for path, part, digest, stat in zip(copy.paths, file.parts, copy.digests, stats, strict=True):
            library.record(path, part, digest, copy.commit, stat)
        return copy.paths
    return None


def _ask_hub(file: RemoteFile, policy: Policy, control: Control) -> Generator[Event, None, Parts]:
    """Size, digest and commit of every part, all of one commit."""
    listing = yield from _patiently(partial(hub.list_files, file.repo, file.revision), policy, control)
    parts = tuple(listing.file(part.path) for part in file.parts)
    if file.sha256 and parts[0].sha256 != file.sha256:
        raise LocalspecError(
            f"`{file}` at `{file.revision}` is not the pinned file any more "
            f"(SHA-256 {parts[0].sha256 or 'unknown'!s:.12}… instead of {file.sha256[:12]}…)",
            hint="pin its new digest, or the commit it was pinned from",
        )
    if any(part.sha256 is None for part in parts):
        yield Notice("info", f"the hub lists no SHA-256 for `{file}`: only size and format are checked")
    return parts


def _patiently(ask: Callable[[], T], policy: Policy, control: Control) -> Generator[Event, None, T]:
    backoff = Backoff(replace(policy, attempts=min(policy.attempts, ASK_ATTEMPTS)))
    while True:
        try:
            return call(ask, control)
        except Unavailable as error:
            retrying = backoff.failed(error)
            yield retrying
            control.sleep(retrying.in_s)


def _check_space(wanted: dict[RemoteFile, Parts], library: Library) -> None:
    missing = [part for parts in wanted.values() for part in parts if not _is_named(part, library)]
    kept = sum(kept_bytes(_final(part, library), part)[0] for part in missing)
    check_space(library.models_dir, sum(part.size for part in missing) - kept)


def _is_named(part: FileMetadata, library: Library) -> bool:
    """Whether a part of a set is here already: a kill while the parts got their names, or a lost part."""
    record = library.recorded(_final(part, library))
    return record is not None and record.sha256 == part.sha256


def _final(part: FileMetadata, library: Library) -> Path:
    return RemoteFile(part.repo, part.path).local(library.models_dir)


def _download(
    file: RemoteFile, parts: Parts, library: Library, policy: Policy, control: Control, *, wait: bool
) -> Generator[Event, None, Path]:
    """Fetch all parts of a file under its lock and give them their names; the first part last of all."""
    first = file.parts[0].local(library.models_dir)
    lock = yield from _locked(file, lock_path(file, library.models_dir), control, wait=wait)
    control.lock = lock
    try:
        if ready := library.find(file):  # the process we waited for was after the same file
            return ready[0]
        with contextlib.ExitStack() as open_parts:
            opened: list[Part] = []
            for part in parts:
                if not _is_named(part, library):
                    opened.append(Part(_final(part, library), part))
                    open_parts.callback(opened[-1].close)
            total = sum(part.size for part in parts)
            yield from _with_progress(file, total, opened, policy, control)
            _name(opened, library)
        return first
    finally:
        control.lock = None
        lock.release()


def _locked(
    file: RemoteFile, path: Path, control: Control, *, wait: bool
) -> Generator[Event, None, FileLock]:
    lock, told = FileLock(path), None
    while True:
        with disk_errors(path):
            owner = lock.try_acquire()
        if owner is None:
            return lock
        if not wait:
            raise LocalspecError(
                f"`{file}` is being downloaded by {describe(owner)}", hint="wait for it, or stop that process"
            )
        if owner != told:
            yield Waiting(file, owner)
            told = owner
        control.sleep(LOCK_POLL_S)


def describe(owner: Owner) -> str:
    """A process in words: `process 4711 on desk, since 12:30:05`."""
    return (
        f"process {owner.pid} on {owner.host}, since {time.strftime('%H:%M:%S', time.localtime(owner.since))}"
    )


def _with_progress(
    file: RemoteFile, total: int, parts: list[Part], policy: Policy, control: Control
) -> Iterator[Event]:
    meter, shown_at = Meter(), 0.0

    def progress() -> Progress:
        done = total - sum(part.metadata.size - part.done for part in parts)
        rate = meter.rate(done)
        return Progress(file, done, total, rate, (total - done) / rate if rate else None)

    yield progress()
    for part in parts:
        for event in fetch(part, policy, control):
            if not isinstance(event, Grown):
                yield event
            elif time.monotonic() - shown_at >= PROGRESS_S:
                shown_at = time.monotonic()
                yield progress()
        yield progress()


def _name(parts: list[Part], library: Library) -> None:
    """Check what the bytes are once more, record them, and rename: the name that gets loaded comes last."""
    for part in parts:
        if is_gguf_name(part.final.name) and not has_magic(part.path):
            part.discard()
            raise ModelFileError(f"`{part.metadata.repo}/{part.metadata.path}` is not a GGUF file")
    for part in reversed(parts):
        facts = part.metadata
        remote = RemoteFile(facts.repo, facts.path)
        # Before the rename, which keeps size and time: a named file always has its record.
        library.record(part.final, remote, part.digest.hexdigest(), facts.commit, part.path.stat())
        part.finish()
