"""What a draft costs a reply depends on who else is in its pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from localspec.engine.backend.passes import PassFacts
from localspec.engine.costs import VerifyCosts
from localspec.engine.shared_costs import SharedCosts


class TestSharedCosts:
    """What a draft costs a reply depends on who else is in its pass."""

    @dataclass
    class Beside:
        other_rows: int
        facts: PassFacts
        last_rows: int = 1

    def view(self, seconds: Callable[[int], float], others: int, sequences: int) -> SharedCosts:
        table = VerifyCosts()
        for rows in (1, 2, 4, 8, 16):
            table.observe(rows, 0, seconds(rows))
        return SharedCosts(
            table, threading.Lock(), self.Beside(others, PassFacts(sequences, others + 1, others + 1))
        )

    def test_alone_it_is_the_table(self) -> None:
        costs = self.view(lambda rows: 0.01 * rows, 0, 1)
        assert [costs.seconds(rows, 0) for rows in (1, 2, 4)] == pytest.approx([0.01, 0.02, 0.04])

    def test_a_row_is_paid_for_everybody_in_the_pass(self) -> None:
        costs = self.view(lambda rows: 0.01 * rows, 3, 4)
        assert costs.seconds(1, 0) == pytest.approx(0.04)
        assert costs.seconds(2, 0) == pytest.approx(0.04 + 4 * 0.01)

    def test_rows_that_cost_nothing_cost_nothing_in_company(self) -> None:
        costs = self.view(lambda rows: 0.01 if rows <= 8 else 0.02, 3, 4)
        assert costs.seconds(5, 0) == pytest.approx(costs.seconds(1, 0)) == pytest.approx(0.01)
        assert costs.seconds(13, 0) > 0.03

    def test_the_table_learns_whole_passes_and_none_in_which_a_prompt_is_read(self) -> None:
        table = VerifyCosts()
        verifying, reading = PassFacts(3, 7, 7), PassFacts(3, 70, 7)
        SharedCosts(table, threading.Lock(), self.Beside(5, verifying)).observe(2, 0, 0.03)
        SharedCosts(table, threading.Lock(), self.Beside(5, reading)).observe(2, 0, 0.9)
        assert table.known(7) and table.seconds(7, 0) == pytest.approx(0.03)
        assert not table.known(2)
