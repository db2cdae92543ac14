"""Gemma 4 assistants: a small model that attends to the target's own cache and keeps none.

Each step reads a token and a hidden state and gives logits and the next step's hidden state. Nothing is
stored, so every step of a draft is at the same position, that of the newest token, and there is nothing to
catch up with or to roll back.

Protocol: llama.cpp `common/speculative.cpp` (draft-mtp with shared memory).
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from localspec.engine.drafters.base import Draft, DraftSampling, History, Ids, More, Tokens, choose
from localspec.engine.drafters.hidden import Features, Floats, LatestRows


class StepContext(Protocol):
    """A context on the target's cells."""

    def decode(self, tokens: Ids, rows: Floats, start: int, *, outputs: bool) -> None: ...

    def last(self, n: int) -> tuple[Floats, Floats]:
        """(logits row, hidden row) of the last of `n` output rows."""

    def close(self) -> None: ...


class AssistantDrafter:
    """Drafts from the hidden state of the position before the newest token."""

    samples = True
    free = False

    def __init__(self, name: str, context: StepContext, features: Features, n_vocab: int) -> None:
        self.name = name
        self._context = context
        self._latest = LatestRows(features)
        self._n_vocab = n_vocab

    def reusable(self, prompt: Ids, n: int) -> int:
        return n

    def rewind(self, n: int) -> None:
        self._latest.forget()

    def reset(self) -> None:
        self._latest.forget()

    def begin(self, history: History) -> None:
        """The last prompt chunk's hidden states, when there was one, serve the first draft."""

    def observe(self, tokens: Tokens, start: int) -> None:
        self._latest.observe(tokens, start)

    def commit(self, history: History, accepted: int) -> None:
        """Nothing was stored."""

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        """Empty until the target has read the position before the newest token in this reply."""
        draft = Draft([], [], [] if sampling else None)
        hidden = self._latest.before_newest(history)
        if hidden is None:
            return draft
        started = time.perf_counter()
        position, id = len(history) - 1, history.newest
        while len(draft) < k:
            self._context.decode(np.array([id], np.int32), hidden[None, :], position, outputs=True)
            row, hidden = self._context.last(1)
            chosen = choose(draft, row[: self._n_vocab], more, sampling)
            if chosen is None:
                break
            id = chosen
        draft.draft_s = time.perf_counter() - started
        return draft

    def close(self) -> None:
        self._context.close()
