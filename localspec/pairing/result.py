"""The answer of a pairing check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from localspec.errors import PairingError
from localspec.header.kind import FileKind

Status = Literal["compatible", "compatible with mask", "refused"]
SHOWN = 3
"""Differing ids that messages spell out."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An id that means different texts."""

    id: int
    target: str
    draft: str

    def __str__(self) -> str:
        return f"id {self.id}: target `{self.target}`, draft `{self.draft}`"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What may be done with the pair, and why."""

    status: Status
    kind: FileKind
    """What the draft file is."""
    reasons: tuple[str, ...]
    """Sentences; for a refusal, what stands against it."""
    warnings: tuple[str, ...] = ()
    """What will probably cost acceptance or speed, without forbidding the pair."""
    masked_ids: tuple[int, ...] = ()
    """Ids the drafter must never propose: their texts differ. Ids ≥ `n_shared` are out by themselves."""
    n_shared: int = 0
    """Ids below this exist on both sides; 0 for heads without a vocabulary of their own."""
    differences: tuple[Difference, ...] = ()
    """The first differing ids."""
    native: bool = True
    """False when the target's graph does not expose what the head needs and a slower callback must."""

    @property
    def refused(self) -> bool:
        return self.status == "refused"

    @property
    def text(self) -> str:
        """The status with the ids it masks."""
        if self.status != "compatible with mask":
            return self.status
        shown = ", ".join(map(str, self.masked_ids[:SHOWN]))
        return f"{self.status} (ids {shown}{', …' if len(self.masked_ids) > SHOWN else ''})"

    def raise_if_refused(self) -> None:
        """Raise with the first reason.

        Raises:
            PairingError: the pair is refused.
        """
        if self.refused:
            raise PairingError(
                self.reasons[0], hint="`localspec models suggest` lists drafts that match a target"
            )


def refuse(kind: FileKind, *reasons: str, differences: tuple[Difference, ...] = ()) -> Verdict:
    """A refusal; the first reason is the message of the error."""
    return Verdict("refused", kind, reasons, differences=differences)
