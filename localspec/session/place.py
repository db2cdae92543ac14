"""What the replies of one slot work with and have learned; those of different slots share none of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.engine.adapt import AdaptivePolicy
from localspec.engine.alarms import Alarms
from localspec.engine.backend.passes import SharedSequence
from localspec.engine.backend.samplers import Candidates
from localspec.engine.backend.sequence import Sequence
from localspec.engine.control import Control
from localspec.engine.costs import VerifyCosts
from localspec.engine.recovery import Health
from localspec.engine.rule import RuleChoice
from localspec.engine.shared_costs import SharedCosts

if TYPE_CHECKING:
    from localspec.session.loading import LoadedPair


@dataclass(slots=True)
class Place:
    """A slot with its own scratch memory, policies and alarms."""

    slot: Sequence
    costs: VerifyCosts
    candidates: Candidates
    draft_candidates: Candidates
    alarms: Alarms
    policies: dict[tuple[object, ...], AdaptivePolicy] = field(default_factory=dict)
    rules: dict[tuple[object, ...], RuleChoice] = field(default_factory=dict)
    health: Health = field(default_factory=Health)
    control: Control | None = None
    """Of the reply that runs here."""


def places_of(pair: LoadedPair) -> dict[int, Place]:
    """A place for each slot, by sequence id."""
    own = frozenset(c.kind for c in pair.files.companions if c.path == pair.files.target)
    lock, n_vocab = threading.Lock(), pair.model.n_vocab

    def costs(slot: Sequence) -> VerifyCosts:
        return SharedCosts(pair.verify, lock, slot) if isinstance(slot, SharedSequence) else pair.verify

    return {
        slot.seq_id: Place(slot, costs(slot), Candidates(n_vocab), Candidates(n_vocab), Alarms(own))
        for slot in pair.slots
    }
