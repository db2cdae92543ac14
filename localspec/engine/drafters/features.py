"""Drafters that continue the target's hidden states: EAGLE-3 and MTP share everything but an offset.

Both keep a cache of pairs (token, feature of the position before it). EAGLE-3 stores the pair of token
P + 1 at position P, MTP at position P + 1 with a zero feature for the very first token. A pair needs the
token behind a feature, so the newest one is only known when the next token is: it is the row that seeds
the draft. Only committed positions are ever read, never the rejected rows of a verification.

Protocols: llama.cpp `common/speculative.cpp`; Li et al. 2025 (EAGLE-3); DeepSeek-AI 2024 (MTP).
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.engine.drafters.base import Draft, DraftSampling, History, Ids, More
from localspec.errors import EngineError

Floats = NDArray[np.float32]
EAGER_ROWS = 256
"""Unread features kept before they are read without drafting, so that a pause cannot pile them up."""


class Features(Protocol):
    """Hidden states of the target's last decode."""

    width: int

    def read(self, n: int) -> Floats: ...


class PairContext(Protocol):
    """The drafter's own context."""

    n_batch: int

    def encode(self, features: Floats) -> Floats:
        """Features `[n, width]` → what a pair carries `[n, n_embd]`."""

    def decode(self, tokens: Ids, rows: Floats, start: int, *, outputs: bool) -> None: ...

    def last(self, n: int) -> tuple[Floats, Floats]:
        """(logits row, hidden row) of the last of `n` output rows."""

    def truncate(self, n: int) -> None: ...

    def close(self) -> None: ...


class FeatureStore:
    """Features of consecutive positions that no pair was made of yet."""

    def __init__(self, width: int) -> None:
        self._rows: Floats = np.empty((64, width), np.float32)
        self.start = 0
        self.end = 0

    def __len__(self) -> int:
        return self.end - self.start

    def put(self, start: int, rows: Floats) -> None:
        """Rows of positions `start`…; what was stored from there on is replaced."""
        if not self.start <= start <= self.end:
            self.restart(start)
        keep = start - self.start
        need = keep + len(rows)
        if need > len(self._rows):
            grown = np.empty((2 * need, self._rows.shape[1]), np.float32)
            grown[:keep] = self._rows[:keep]
            self._rows = grown
        self._rows[keep:need] = rows
        self.end = start + len(rows)

    def keep_below(self, n: int) -> None:
        """Forget positions from `n` on."""
        self.end = max(min(self.end, n), self.start)

    def restart(self, n: int) -> None:
        """Empty; the next row is of position `n`."""
        self.start = self.end = n

    def take(self, n: int) -> Floats:
        """Remove and return the first `n` rows, a copy."""
        rows = self._rows[:n].copy()
        rest = len(self) - n
        self._rows[:rest] = self._rows[n : n + rest]
        self.start += n
        return rows


class FeatureDrafter:
    """EAGLE-3 (`offset` 0) or MTP (`offset` 1).

    Args:
        context: holds the pairs.
        features: of the target; read after each of its decodes.
        n_vocab: the target's; other ids are never proposed.
    """

    samples = True
    free = False

    def __init__(
        self, name: str, context: PairContext, features: Features, n_vocab: int, *, offset: int
    ) -> None:
        self.name = name
        self._context = context
        self._features = features
        self._n_vocab = n_vocab
        self._offset = offset
        self._store = FeatureStore(features.width)
        self._tokens: Ids = np.zeros(0, np.int32)
        self._pairs = 0
        self._drafted = False

    # Pair j holds (token j + 1, feature j) for EAGLE-3 and (token j, feature j - 1) for MTP, at position j.

    def reusable(self, prompt: Ids, n: int) -> int:
        """Pairs and stored features must reach `n` without a gap, or the target reads from the gap on."""
        self._keep(_common(self._tokens, prompt))
        covered = self._store.end if len(self._store) else max(0, self._pairs - self._offset)
        return min(n, covered)

    def rewind(self, n: int) -> None:
        """The target goes on from position `n`: what was made of later positions will be made again."""
        if n < self._store.start:
            self._pairs = n + self._offset if n else 0
            self._store.restart(n)
        else:
            self._store.keep_below(n)
        self._context.truncate(self._pairs)

    def _keep(self, agreed: int) -> None:
        """Forget pairs and features that depend on tokens from `agreed` on, or lie behind a gap."""
        self._store.keep_below(agreed)
        most = max(0, agreed - 1 + self._offset)
        if most < self._pairs or self._store.start != self._next_feature:
            self._pairs = min(self._pairs, most)
            self._store.restart(self._next_feature)
        self._context.truncate(self._pairs)

    @property
    def _next_feature(self) -> int:
        """Position of the feature that the next pair needs."""
        return max(0, self._pairs - self._offset)

    def begin(self, history: History) -> None:
        self._drafted = False
        self._tokens = history.ids.copy()
        self._store.keep_below(len(history) - 1)

    def observe(self, tokens: Ids, start: int) -> None:
        self._store.put(start, self._features.read(len(tokens)))

    def commit(self, history: History, accepted: int) -> None:
        """Drop drafted pairs and features of rejected rows; read features ahead when many have piled up."""
        if self._drafted:
            self._context.truncate(self._pairs)
            self._drafted = False
        self._store.keep_below(len(history) - 1)
        self._tokens = history.ids
        if len(self._store) > EAGER_ROWS:
            self._read_pairs(history, len(self._store) - 1)

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        draft = Draft([], [], [] if sampling else None)
        if not len(self._store) or k <= 0:
            return draft
        started = time.perf_counter()
        draft.catchup_rows = len(self._store)
        logits, hidden = self._seed(history)
        caught_up = time.perf_counter()
        draft.catchup_s = caught_up - started
        self._drafted = True
        self._steps(draft, k, more, sampling, logits, hidden)
        draft.draft_s = time.perf_counter() - caught_up
        return draft

    def _steps(
        self, draft: Draft, k: int, more: More, sampling: DraftSampling | None, row: Floats, hidden: Floats
    ) -> None:
        position = self._pairs
        while True:
            row = row[: self._n_vocab]
            q = sampling.distribution(row) if sampling else None
            id = int(row.argmax())
            confidence = float(q.p.max()) if q else 1.0 / float(np.exp(row - row[id]).sum())
            if not more(len(draft.tokens), confidence):
                return
            if sampling and q and draft.q is not None:
                id = q.draw(sampling.uniform())
                draft.q.append(q)
            draft.tokens.append(id)
            draft.confidences.append(confidence)
            if len(draft.tokens) >= k:
                return
            self._context.decode(np.array([id], np.int32), hidden[None, :], position, outputs=True)
            row, hidden = self._context.last(1)
            position += 1

    def _seed(self, history: History) -> tuple[Floats, Floats]:
        """Read all outstanding pairs; the last one gives the first proposal's logits and hidden row."""
        self._read_pairs(history, max(0, len(self._store) - self._context.n_batch + 1))
        tokens, rows = self._next_pairs(history, len(self._store))
        # All rows are outputs: with only the last one flagged, the graph would return row 0.
        self._context.decode(tokens, rows, self._pairs, outputs=True)
        self._pairs += len(tokens)
        return self._context.last(len(tokens))

    def _read_pairs(self, history: History, n: int) -> None:
        """Make pairs of the `n` oldest stored features, without output."""
        while n > 0:
            take = min(n, self._context.n_batch - 1)
            tokens, rows = self._next_pairs(history, take)
            self._context.decode(tokens, rows, self._pairs, outputs=False)
            self._pairs += len(tokens)
            n -= take

    def _next_pairs(self, history: History, n: int) -> tuple[Ids, Floats]:
        first = self._store.start
        if first != self._next_feature:
            raise EngineError(
                f"the {self.name} drafter has pairs up to {self._pairs} and features from {first}"
            )
        rows = self._context.encode(self._store.take(n))
        if self._offset and first == 0:
            rows = np.concatenate([np.zeros((1, rows.shape[1]), np.float32), rows])
            tokens = history.ids[: n + 1].copy()
        else:
            tokens = history.ids[first + 1 : first + 1 + n].copy()
        return tokens, rows

    def close(self) -> None:
        self._context.close()


def _common(a: Ids, b: Ids) -> int:
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
