"""Tiny synthetic models for tests and for `doctor`, and the check that makes them worth testing with."""

from localspec.selftest.check import HistoryCheck, closing_cycle, history_matters
from localspec.selftest.variants import VARIANTS, Variant, write

__all__ = ["VARIANTS", "HistoryCheck", "Variant", "closing_cycle", "history_matters", "write"]
