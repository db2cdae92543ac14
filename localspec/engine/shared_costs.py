"""What rows cost a reply whose passes serve others, too.

A pass has the rows of everybody in it. What a draft adds is the step from the others' rows and one to the
others' rows and k + 1, on the same table of measured passes; and since everybody in the pass waits for it,
that step counts once for each of them. So with company drafts must pay for all, and get shorter or stop
where rows are dear, while they cost next to nothing where a pass costs the same for any few rows.
"""

from __future__ import annotations

from threading import Lock
from typing import Protocol

from localspec.engine.costs import VerifyCosts


class PassView(Protocol):
    """A pass, as the sequences that were in it know it; `backend.passes.PassFacts` is one."""

    @property
    def sequences(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def outputs(self) -> int: ...


class Company(Protocol):
    """A sequence and who shared its last pass; `backend.passes.SharedSequence` is one."""

    other_rows: int
    """Rows to verify of the others."""

    @property
    def facts(self) -> PassView: ...


class SharedCosts(VerifyCosts):
    """A reply's view of the pair's table of pass times.

    Args:
        table: seconds by rows of the whole pass; shared with other replies.
        lock: guards `table`.
        sequence: the reply's.
    """

    def __init__(self, table: VerifyCosts, lock: Lock, sequence: Company) -> None:
        super().__init__()
        self._table = table
        self._lock = lock
        self._sequence = sequence

    def known(self, rows: int) -> bool:
        with self._lock:
            return self._table.known(rows + self._sequence.other_rows)

    def seconds(self, rows: int, n_past: int) -> float:
        """Expected seconds of a pass with `rows` rows of this reply, its draft's part in everybody's time."""
        others, sequences = self._sequence.other_rows, self._sequence.facts.sequences
        with self._lock:
            least = self._table.seconds(others + 1, n_past)
            if rows == 1:
                return least
            return least + sequences * max(0.0, self._table.seconds(others + rows, n_past) - least)

    def observe(self, rows: int, n_past: int, seconds: float) -> None:
        """The last pass took `seconds`; one in which somebody read a prompt says nothing of verifying."""
        facts = self._sequence.facts
        if facts.rows == facts.outputs:
            with self._lock:
                self._table.observe(facts.outputs, n_past, seconds)
