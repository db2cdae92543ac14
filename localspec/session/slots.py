"""Which cached conversation a request goes on with.

Each slot is a sequence of the target's context with a context length of its own. An agent's growing prompt
finds its slot again by the request's key, or by continuing what is cached; a new conversation takes the one
that was used longest ago.
"""

from __future__ import annotations

from localspec.engine.backend.context import Sequence
from localspec.engine.drafters.base import Ids, common_prefix


class Slots:
    """The sequences of one context."""

    def __init__(self, sequences: list[Sequence]) -> None:
        self._keys: dict[int, str | None] = {}
        self._by_use = list(sequences)

    @property
    def n_ctx(self) -> int:
        return self._by_use[0].n_ctx

    def take(self, key: str | None, prompt: Ids) -> Sequence:
        """The slot for a prompt of conversation `key`; it becomes the most recently used one."""
        chosen = self._of_key(key) or self._continued(prompt) or self._by_use[0]
        self._by_use.remove(chosen)
        self._by_use.append(chosen)
        self._keys[chosen.seq_id] = key
        return chosen

    def _of_key(self, key: str | None) -> Sequence | None:
        if key is None:
            return None
        return next((slot for slot in self._by_use if self._keys.get(slot.seq_id) == key), None)

    def _continued(self, prompt: Ids) -> Sequence | None:
        """The slot whose whole cache the prompt begins with; of several the fullest."""
        fitting = [
            slot
            for slot in self._by_use
            if slot.n_past and common_prefix(slot.ids[: slot.n_past], prompt) == slot.n_past
        ]
        return max(fitting, key=lambda slot: slot.n_past, default=None)
