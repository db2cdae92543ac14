"""What every drafter on the target's hidden states shares: which positions it has read and which it may.

Such a drafter keeps cells in a context of its own, each made from the target's feature at one position.
Three kinds of cell differ in two numbers only:

    kind      cell j is made of              offset  lag
    EAGLE-3   feature j and token j + 1           0    1
    MTP       feature j - 1 and token j           1    0
    DFlash    feature j                           0    0

Features wait in a store until they are read. Only those of committed positions ever are, never the ones of
a verification's rejected rows, and a gap between cells and store makes the target read that part again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.engine.drafters.base import Draft, DraftSampling, History, Ids, More, Tokens, common_prefix
from localspec.errors import EngineError

Floats = NDArray[np.float32]
EAGER_ROWS = 256
"""Unread features kept before they are read without drafting, so that a long prompt or a pause cannot pile
them up: at 8B a position of EAGLE-3 features takes 48 KiB."""


class Features(Protocol):
    """Hidden states of the target's last decode."""

    width: int

    def read(self, n: int) -> Floats:
        """`[n, width]`, one row per token of that decode; a copy."""


class OptionalFeatures(Protocol):
    """Hidden states that not every decode has."""

    def read(self, n: int) -> Floats | None:
        """`[n, width]`, a copy, or None."""


class Cells(Protocol):
    """The drafter's own cache."""

    def truncate(self, n: int) -> int:
        """Keep at most `n` cells; returns how many are left, fewer where a window cannot go back."""

    def wipe(self) -> None:
        """Drop all cells and what their memory holds."""

    def close(self) -> None:
        """Free the context; idempotent."""


class FeatureStore:
    """Features of consecutive positions that no cell was made of yet."""

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


class LatestRows:
    """Hidden states of the target's last decode, for drafters that read a single row and keep no cache.

    Args:
        source: may return None for decodes that have none (prompt chunks of some sources).
    """

    def __init__(self, source: OptionalFeatures) -> None:
        self._source = source
        self._rows: Floats | None = None
        self._start = 0

    def observe(self, tokens: Tokens, start: int) -> None:
        self._rows, self._start = self._source.read(len(tokens)), start

    def forget(self) -> None:
        self._rows = None

    def before_newest(self, history: History) -> Floats | None:
        """`[width]`, the state of the position before the newest token, if that decode was the last one."""
        at = len(history) - 2 - self._start
        return self._rows[at] if self._rows is not None and 0 <= at < len(self._rows) else None


class HiddenDrafter(ABC):
    """A `Drafter` on hidden states, all but how cells are made and what is proposed.

    Args:
        cells: the drafter's cache; owned.
        features: of the target; read after each of its decodes.
        offset: cell j is made of feature j - `offset`.
        lag: cell j depends on tokens up to j + `lag`.
    """

    free = False

    def __init__(self, name: str, cells: Cells, features: Features, *, offset: int, lag: int) -> None:
        self.name = name
        self._cells = cells
        self._features = features
        self._offset = offset
        self._lag = lag
        self._store = FeatureStore(features.width)
        self._tokens: Ids = np.zeros(0, np.int32)
        """Tokens that cells and features were made of, and possibly more behind them."""
        self._made = 0
        """Cells made of committed positions; drafted ones lie behind them until `commit`."""

    @abstractmethod
    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft: ...

    @abstractmethod
    def _read(self, n: int) -> None:
        """Make cells of the `n` oldest stored features, without output."""

    @property
    def _next_feature(self) -> int:
        """Position of the feature that the next cell needs."""
        return max(0, self._made - self._offset)

    def reusable(self, prompt: Ids, n: int) -> int:
        """Cells and stored features must reach `n` without a gap, or the target reads from the gap on."""
        agreed = common_prefix(self._tokens, prompt)
        self._store.keep_below(agreed)
        most = max(0, agreed - self._lag)
        if most < self._made or self._store.start != self._next_feature:
            self._made = min(self._made, most)
            self._store.restart(self._next_feature)
        self._truncate()
        self._tokens = prompt
        return min(n, self._store.end if len(self._store) else self._next_feature)

    def rewind(self, n: int) -> None:
        """The target goes on from position `n`: what was made of later positions will be made again."""
        if n < self._store.start:
            self._made = n + self._offset if n else 0
            self._store.restart(n)
        else:
            self._store.keep_below(n)
        self._truncate()

    def reset(self) -> None:
        self._made = 0
        self._tokens = np.zeros(0, np.int32)
        self._store.restart(0)
        self._cells.wipe()

    def begin(self, history: History) -> None:
        self._tokens = history.ids
        self._store.keep_below(len(history) - 1)
        self._read_ahead(len(self._store))

    def observe(self, tokens: Tokens, start: int) -> None:
        """Store the decode's features; in a long prompt, read the ones of the chunks before."""
        self._store.put(start, self._features.read(len(tokens)))
        self._read_ahead(start - self._store.start)

    def commit(self, history: History, accepted: int) -> None:
        """Drop drafted cells and features of rejected rows."""
        self._truncate()
        self._store.keep_below(len(history) - 1)
        self._tokens = history.ids
        self._read_ahead(len(self._store))

    def _read_ahead(self, committed: int) -> None:
        """Read all but the newest of the oldest `committed` features when there are too many."""
        if committed > EAGER_ROWS:
            self._read(committed - 1)

    def _check_gap(self, history: History) -> None:
        """Before a draft: cells and store must reach the newest token without a gap."""
        if (self._store.start, self._store.end) != (self._next_feature, len(history) - 1):
            raise EngineError(
                f"the {self.name} drafter has cells of features below {self._next_feature} and features "
                f"{self._store.start} to {self._store.end} of {len(history) - 1}"
            )

    def _truncate(self) -> None:
        kept = self._cells.truncate(self._made)
        if kept < self._made:
            self._made = kept
            self._store.restart(self._next_feature)

    def close(self) -> None:
        self._cells.close()
