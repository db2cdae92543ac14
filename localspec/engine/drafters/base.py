"""The drafter protocol, the reply's token history, and what a draft is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.engine.leaders import best, best_guess
from localspec.engine.sampling import Distribution
from localspec.errors import EngineError

Ids = NDArray[np.int32]
Tokens = Ids | list[int]


class History:
    """All token ids of prompt and reply, growing in place; the newest is not in the target's cache yet."""

    def __init__(self, ids: Ids, capacity: int) -> None:
        self._memory: Ids = np.zeros(max(capacity, len(ids)), np.int32)
        self._memory[: len(ids)] = ids
        self._length = len(ids)

    def __len__(self) -> int:
        return self._length

    def append(self, id: int) -> None:
        if self._length == len(self._memory):
            self._memory = np.concatenate([self._memory, np.zeros_like(self._memory)])
        self._memory[self._length] = id
        self._length += 1

    @property
    def newest(self) -> int:
        return int(self._memory[self._length - 1])

    @property
    def ids(self) -> Ids:
        """`[n]` view; valid until the next append."""
        return self._memory[: self._length]


@dataclass(slots=True)
class Draft:
    """Proposed tokens with what the policy and the verdict need.

    `q[i]` is the distribution token i was drawn from, or None for deterministic proposals.
    """

    tokens: list[int]
    confidences: list[float]
    """The drafter's own estimate of each token, 0…1; the policy learns what it is worth."""
    q: list[Distribution] | None = None
    catchup_rows: int = 0
    """Committed tokens the drafter had to read first."""
    catchup_s: float = 0.0
    draft_s: float = 0.0

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, k: int) -> None:
        """Keep the first `k` tokens of a deterministic proposal; dropping a drawn one biases the output."""
        if self.q is not None and k < len(self.tokens):
            raise ValueError("a sampled draft token cannot be discarded after its draw")
        del self.tokens[k:], self.confidences[k:]

    def check(self, limit: int, n_vocab: int) -> None:
        """Refuse what the target could not decode or would judge wrongly: at most `limit` ids of `n_vocab`.

        Raises:
            EngineError: the drafter that made this is broken.
        """
        n = len(self.tokens)
        if n > limit:
            raise EngineError(f"the drafter proposed {n} tokens where {limit} were allowed")
        if len(self.confidences) != n or (self.q is not None and len(self.q) != n):
            raise EngineError("the drafter did not say of each token how likely it is")
        if self.tokens and (min(self.tokens) < 0 or max(self.tokens) >= n_vocab):
            bad = next(id for id in self.tokens if not 0 <= id < n_vocab)
            raise EngineError(f"the drafter proposed token id {bad} outside the vocabulary of {n_vocab}")


More = Callable[[int, float], bool]
"""(position, confidence) → whether the next token is worth drafting; asked before it is drawn."""


def always(position: int, confidence: float) -> bool:
    """The `More` that never stops early; nobody then works out how sure a token is, and all of them say 1."""
    return True


@dataclass(frozen=True, slots=True)
class DraftSampling:
    """How a drafter that has a real distribution should draw: rejection mode only."""

    distribution: Callable[[NDArray[np.float32]], Distribution]
    """Draft logits row → q, by the request's own truncation."""
    uniform: Callable[[], float]


def choose(draft: Draft, row: NDArray[np.float32], more: More, sampling: DraftSampling | None) -> int | None:
    """Add the token that a logits row `[n_vocab]` gives, unless `more` finds it not worth it.

    The rule sees q, never the draw: a drawn token that is dropped biases the output.
    """
    confidence = 1.0
    if sampling is not None and draft.q is not None:
        q = sampling.distribution(row)
        if more is not always:
            _, confidence = q.best
            if not more(len(draft.tokens), confidence):
                return None
        id = q.draw(sampling.uniform())
        draft.q.append(q)
    elif more is always:
        id = best(row)
    else:
        id, confidence = best_guess(row)
        if not more(len(draft.tokens), confidence):
            return None
    draft.tokens.append(id)
    draft.confidences.append(confidence)
    return id


class Drafter(Protocol):
    """Proposes tokens for the target to judge.

    The loop calls, per reply: `begin`, then rounds of `propose` (when the policy wants a draft) and
    `commit` (after every round, also plain ones). Drafters that read the target's hidden states also get
    `observe` after every target decode, prefill chunks included.
    """

    name: str
    samples: bool
    """Whether it can draw from a distribution (else its proposals are always deterministic)."""
    free: bool
    """Whether a proposal costs (almost) nothing, so that it may be made every round."""

    def reusable(self, prompt: Ids, n: int) -> int:
        """How many of the `n` target cells that match `prompt` may stay, for this drafter's sake."""

    def rewind(self, n: int) -> None:
        """The target keeps `n` cells and reads the rest of the prompt again."""

    def reset(self) -> None:
        """Forget everything, what the memory holds of it included: it may be spoiled.

        `reusable` then says how much of the text the target has to read again for it.
        """

    def begin(self, history: History) -> None:
        """A reply starts; `history` holds the whole prompt, the target all of it but the newest token."""

    def observe(self, tokens: Tokens, start: int) -> None:
        """The target decoded `tokens` at positions `start`…; its hidden states are readable now."""

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        """Up to `k` tokens that may follow `history`; empty when there is nothing to say."""

    def commit(self, history: History, accepted: int) -> None:
        """The round is over: `accepted` tokens of the last draft (0 without one) are in `history`."""

    def close(self) -> None:
        """Free what the drafter owns; idempotent."""


class DraftContextFull(Exception):
    """The drafter's own context cannot hold the history."""


def common_prefix(a: Sequence[int] | Ids, b: Sequence[int] | Ids) -> int:
    """Length of the longest common prefix of two id sequences."""
    n = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:n]) != np.asarray(b[:n]))
    return int(different[0]) if len(different) else n
