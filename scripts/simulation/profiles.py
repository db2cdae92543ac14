"""What rounds cost on known hardware: seconds by rows of a target decode, and per drafted token.

Every figure is somebody's measurement, named with its source; row counts between two measured ones are
interpolated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from localspec.engine.costs import VerifyCosts

CALIBRATED = (1, 2, 4, 8, 16)
"""Row counts a session times while it loads."""
Table = tuple[tuple[int, float], ...]


@cache
def _seconds(table: Table, rows: int) -> float:
    """What the machine takes: straight lines between measured row counts, 0.8th power above them."""
    known, seconds = zip(*table, strict=True)
    if rows > known[-1]:
        return float(seconds[-1] * (rows / known[-1]) ** 0.8)
    return float(np.interp(rows, known, seconds))


@dataclass(frozen=True, slots=True)
class Profile:
    """One machine with one pair."""

    name: str
    rows: Table
    """(rows, seconds of a target decode) of every measured row count."""
    draft_token_s: float
    """Seconds per token of a drafter that is a model."""
    source: str
    checkpoint_s: float = 0.0
    """Saving the state before a round with drafts."""
    replays: bool = False
    """After a rejection the kept rows are decoded again."""
    overhead_s: float = 0.0003
    """Per round, outside the decodes."""
    free_draft_s: float = 0.00005
    """Per round, of a drafter that copies."""
    growth: float = 1 / 20000
    """Relative cost of a decode per cell of context."""

    def verify_s(self, rows: int, n_past: int) -> float:
        """Seconds of a decode of `rows` rows behind `n_past` cells."""
        return _seconds(self.rows, rows) * (1 + self.growth * n_past)

    def draft_s(self, tokens: int, *, free: bool, block: bool = False) -> float:
        """Seconds of a proposal; a block of any length is taken to cost one pass of the draft model."""
        return self.free_draft_s if free else self.draft_token_s * (1 if block and tokens else tokens)

    def undo_s(self, drafted: int, accepted: int, n_past: int) -> float:
        """What a round with drafts costs beside its decodes because the target cannot drop cells."""
        if not drafted:
            return 0.0
        again = self.replays and accepted < drafted
        return self.checkpoint_s + (self.verify_s(accepted + 1, n_past) if again else 0.0)

    def calibrated(self) -> VerifyCosts:
        """What a session knows after loading."""
        costs = VerifyCosts()
        for rows in CALIBRATED:
            costs.observe(rows, 0, self.verify_s(rows, 0))
        return costs


def _per_decode(rates: dict[int, float]) -> Table:
    """Seconds per decode from tokens per second at each row count."""
    return tuple((rows, rows / rate) for rows, rate in rates.items())


def _scaled(one_row_s: float, factors: dict[int, float]) -> Table:
    return tuple((rows, one_row_s * factor) for rows, factor in factors.items())


_CPU_135M = {1: 1, 2: 2.1, 3: 2.6, 4: 3.1, 5: 3.8, 6: 4.1, 8: 4.7, 12: 6.5, 16: 7.8}
_CPU_15B = {1: 1, 2: 1.65, 3: 2.2, 4: 2.6, 5: 3.3, 6: 3.8, 8: 4.5, 12: 5.6, 16: 5.4}
_RTX_3090 = {1: 156.56, 2: 279.89, 3: 390.96, 4: 470.48, 5: 509.70, 6: 541.57, 7: 559.30, 8: 583.77,
             16: 1014.38}  # fmt: skip
_RTX_4090 = {1: 168.6, 10: 1216.63, 12: 1460.17, 16: 1930.50}
_RX_7900 = ((1, 0.0244), (3, 0.0295), (4, 0.0314), (5, 0.0406), (16, 0.0780))

CPU_SMALL = Profile(
    "2-core CPU, 135M", _scaled(0.0055, _CPU_135M), 0.0015,
    "measured for this project on 2 shared x86 cores, SmolLM2-135M Q4_1",
)  # fmt: skip
CPU = Profile(
    "2-core CPU, 1.5B + 0.5B", _scaled(0.026, _CPU_15B), 0.0155,
    "measured for this project on 2 shared x86 cores, 1.5B and 0.5B Q4_K_M",
)  # fmt: skip
RTX_3090 = Profile(
    "RTX 3090, 8B + 1B", _per_decode(_RTX_3090), 1 / 379.2,
    "8B Q4_0 by rows: ggml-org/llama.cpp#15802 (16 rows, Q5_1: #7676); 1B F16, one row: #24216",
)  # fmt: skip
RTX_4090 = Profile(
    "RTX 4090, 8B + 1B", _per_decode(_RTX_4090), 1 / 762.37,
    "8B Q4_0, 10 to 16 rows: ggml-org/llama.cpp#15131; one row: the 3090's (#15802) by memory bandwidth, "
    "1008 / 936 GB/s; 1.1B Q4_K_M: geerlingguy/ai-benchmarks#43",
)  # fmt: skip
RX_7900_XTX = Profile(
    "RX 7900 XTX, 27B + MTP", _RX_7900, 0.002,
    "27B Q4_K_XL: rounds of 2, 3 and 4 drafts from rates and acceptances of sudoingX/qwen38-mtp#53, less "
    "2 ms per drafted token (an assumption); beyond 5 rows 3.4 ms per row (an assumption)",
)  # fmt: skip
MOE = Profile(
    "RTX 3090, MoE 16B", _per_decode({1: 180.53, 2: 180.94, 4: 291.18, 8: 475.54, 16: 784.29}), 1 / 379.2,
    "16B-A2.4B Q4_0 by rows: ggml-org/llama.cpp#15525; every row brings experts of its own",
)  # fmt: skip
HYBRID = replace(
    RX_7900_XTX, name="hybrid with checkpoints", checkpoint_s=0.006, replays=True,
    source="the RX 7900 XTX row, with a 150 MiB state saved over PCIe 4.0 x16 at 25 GB/s before each round "
    "with drafts, and the kept rows decoded again after a rejection",
)  # fmt: skip
CLASSIC = Profile(
    "70B + 1B at 35 tok/s", _scaled(1 / 35, {rows: s * _RTX_4090[1] for rows, s in _per_decode(_RTX_4090)}),
    1 / 762.37, "plain rate as given; relative cost of rows and the draft as on the RTX 4090",
)  # fmt: skip

PROFILES = (CPU_SMALL, CPU, RTX_3090, RTX_4090, RX_7900_XTX, MOE, HYBRID, CLASSIC)
