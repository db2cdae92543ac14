"""Which drafts go with a target? Files on this disk, and what the catalogue pairs with the same model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec.catalog import Catalog, Drafter, ModelFile
from localspec.errors import LocalspecError
from localspec.header import Header, draft_kind, read_header
from localspec.pairing import Status, Verdict, verdict
from localspec.pairs import DRAFT_KINDS
from localspec.planning.facts import PairFacts
from localspec.planning.remote import remote_header
from localspec.planning.scan import Found, scan

RANK: dict[Status | None, int] = {"compatible": 0, "compatible with mask": 1, None: 2, "refused": 3}
MODELS = ("model", "model with nextn")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that may draft for the target."""

    name: str
    """Catalogue name, or file name."""
    place: str
    """Path on this disk, or `owner/repo/file`."""
    kind: str
    """How it would draft."""
    local: bool
    size_bytes: int | None
    status: Status | None
    """None = not compared: no header was at hand."""
    reason: str
    gain: tuple[float, float] | None = None
    """Published speed-up of this combination."""


def suggest(
    target: Header, model: ModelFile | None, catalog: Catalog, look: PairFacts, *, online: bool
) -> list[Candidate]:
    """Candidates for a target, the best first: compatible ones, local ones, published gains, small ones.

    Args:
        target: complete header.
        model: the target's row in the catalogue, when it has one.
        online: read headers of candidates that are not on this disk.
    """
    found = {candidate.place: candidate for candidate in _catalogued(target, model, catalog, look, online)}
    for file in scan(look.models_dir):
        if str(file.path) not in found and file.kind in DRAFT_KINDS and not _too_large(file, target):
            found[str(file.path)] = _local(target, file)
    return sorted(found.values(), key=_rank)


def _rank(candidate: Candidate) -> tuple[int, bool, float, int]:
    gain = candidate.gain[1] if candidate.gain else 0.0
    return RANK[candidate.status], not candidate.local, -gain, candidate.size_bytes or 1 << 62


def _too_large(file: Found, target: Header) -> bool:
    """A model as large as the target, or the target itself, cannot draft faster."""
    return file.kind in MODELS and file.size_bytes >= target.size_bytes


def _local(target: Header, file: Found) -> Candidate:
    status, reason, kind = _judged(target, file.path)
    return Candidate(file.path.name, str(file.path), kind, True, file.size_bytes, status, reason)


def _judged(target: Header, path: Path) -> tuple[Status | None, str, str]:
    try:
        header = read_header(path)
    except LocalspecError as error:
        return None, error.message, "?"
    return *_told(verdict(target, header)), DRAFT_KINDS.get(draft_kind(header), "draft")


def _told(answer: Verdict) -> tuple[Status, str]:
    return answer.status, "; ".join((*answer.reasons[:1], *answer.warnings[:1])) or answer.text


def _catalogued(
    target: Header, model: ModelFile | None, catalog: Catalog, look: PairFacts, online: bool
) -> Iterator[Candidate]:
    """Companions of catalogue pairs whose target is the same model, whatever its quantisation."""
    for pair in catalog.pairs.values():
        if model is None or not _same_model(pair.target, model):
            continue
        gains = [evidence.gain for evidence in pair.evidence if evidence.gain]
        gain = (min(low for low, _ in gains), max(high for _, high in gains)) if gains else None
        for drafter in pair.drafters:
            if drafter.model is not None:
                yield _candidate(target, pair.target, drafter, catalog, look, online, gain)


def _same_model(one: ModelFile, other: ModelFile) -> bool:
    return one.name == other.name or bool(one.base_repo and one.base_repo == other.base_repo)


def _candidate(
    target: Header,
    row: ModelFile,
    drafter: Drafter,
    catalog: Catalog,
    look: PairFacts,
    online: bool,
    gain: tuple[float, float] | None,
) -> Candidate:
    model = drafter.model
    assert model is not None
    path = look.path(model)
    denied = catalog.denied_files(row, drafter)
    status: Status | None
    if denied:
        status, reason = "refused" if denied.effect == "refuse" else None, denied.reason
    elif path is not None:
        status, reason, _ = _judged(target, path)
    elif online:
        status, reason = _judge_remote(target, model)
    else:
        status, reason = None, "not compared yet: it is not on this disk"
    place = str(path) if path else model.source
    return Candidate(
        model.name, place, drafter.method, path is not None, model.size_bytes, status, reason, gain
    )


def _judge_remote(target: Header, model: ModelFile) -> tuple[Status | None, str]:
    try:
        return _told(verdict(target, remote_header(model)))
    except LocalspecError as error:
        return None, f"not compared: {error.message}"
