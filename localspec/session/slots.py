"""Which cached conversation a request goes on with.

Each slot is a sequence of the target's context with a context length of its own, and serves one reply at a
time. An agent's growing prompt finds its slot again by the request's key, or by continuing what is cached; a
new conversation takes the free one that was used longest ago.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many

from localspec.engine.backend.sequence import Sequence
from localspec.engine.drafters.base import Ids, common_prefix


class Slots:
    """The sequences of one context. Not thread-safe: the owner holds a lock."""

    def __init__(self, sequences: Many[Sequence]) -> None:
        self._keys: dict[int, str | None] = {}
        self._free = list(sequences)
        """The least recently used one first."""
        self._all = tuple(sequences)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._all)

    @property
    def all_taken(self) -> bool:
        return not self._free

    @property
    def n_ctx(self) -> int:
        return self._all[0].n_ctx

    def choose(self, key: str | None, prompt: Ids) -> Sequence:
        """The free slot for a prompt of conversation `key`; one must be free."""
        return self._of_key(key) or self._continued(prompt) or self._free[0]

    def take(self, slot: Sequence, key: str | None) -> None:
        """The slot is conversation `key`'s and nobody else's until `release`."""
        self._free.remove(slot)
        self._keys[slot.seq_id] = key

    def release(self, slot: Sequence) -> None:
        """The slot's reply is over; it becomes the most recently used one."""
        self._free.append(slot)

    def _of_key(self, key: str | None) -> Sequence | None:
        if key is None:
            return None
        return next((slot for slot in self._free if self._keys.get(slot.seq_id) == key), None)

    def _continued(self, prompt: Ids) -> Sequence | None:
        """The slot whose whole cache the prompt begins with; of several the fullest."""
        fitting = [
            slot
            for slot in self._free
            if slot.n_past and common_prefix(slot.ids[: slot.n_past], prompt) == slot.n_past
        ]
        return max(fitting, key=lambda slot: slot.n_past, default=None)
