"""Interleaved measurements: every contestant answers every prompt in every repeat, in alternating order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localspec.bench.contestants import Answer, Contestant
from localspec.errors import EngineError
from localspec.measuring import Spread, spread
from localspec.workloads import Workload

MIN_REPEATS = 3


@dataclass(slots=True)
class Lane:
    """All answers of one contestant to one workload: `repeats[r]` holds one per prompt."""

    contestant: Contestant
    repeats: list[list[Answer]] = field(default_factory=list)

    def rates(self) -> list[float]:
        """Tokens per second of each repeat, all prompts together."""
        out = []
        for answers in self.repeats:
            seconds = sum(answer.seconds for answer in answers)
            if seconds <= 0:
                raise EngineError(f"`{self.contestant.name}` emitted nothing that could be timed")
            out.append(sum(answer.tokens for answer in answers) / seconds)
        return out

    @property
    def tps(self) -> Spread:
        return spread(self.rates())

    def speedup(self, plain: Lane) -> Spread:
        """Ratios to plain decoding of the same repeat."""
        return spread([a / b for a, b in zip(self.rates(), plain.rates(), strict=True)])

    @property
    def answers(self) -> list[Answer]:
        return [answer for answers in self.repeats for answer in answers]


@dataclass(frozen=True, slots=True)
class Result:
    """One workload; the first lane is plain decoding."""

    workload: Workload
    lanes: tuple[Lane, ...]

    @property
    def plain(self) -> Lane:
        return self.lanes[0]


def race(
    workload: Workload,
    contestants: Sequence[Contestant],
    repeats: int,
    max_tokens: int,
    tell: Callable[[str], None] = lambda label: None,
) -> Result:
    """Measure a workload; plain decoding is the first of `contestants`.

    A first answer of each, on another length, is thrown away: it builds graphs and warms the caches of the
    machine. Odd repeats run in reverse order, so that a machine that slows down slows all of them.
    """
    lanes = tuple(Lane(contestant) for contestant in contestants)
    for lane in lanes:
        lane.contestant.answer(workload.prompts[0], min(16, max_tokens))
    for repeat in range(repeats):
        for lane in lanes if repeat % 2 == 0 else reversed(lanes):
            tell(f"{workload.name} {repeat + 1}/{repeats} {lane.contestant.name}")
            lane.repeats.append([lane.contestant.answer(p, max_tokens) for p in workload.prompts])
    return Result(workload, lanes)
