"""The speed-up against plain decoding that the screen shows: measured here, now, or not at all.

Pure arithmetic on `Round` events. Both rates come from rounds within the last 2 048 tokens of context, so
the figure follows a plain cost that grows with the context; it never comes from one measurement at load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from localspec.engine.events import Round

WINDOW = 2048
"""Tokens of context within which rounds are comparable."""
MIN_PLAIN_TOKENS = 32
RUN = 4
"""A plain sample is a run of this many rounds or more, less the first: it is slow after a change of shape."""
KEEP = 4096


@dataclass(frozen=True, slots=True)
class Sample:
    """One round: tokens the target gave, seconds it took, where in the context and when."""

    tokens: int
    seconds: float
    n_past: int
    at: float


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """A measured ratio and how old its plain side is."""

    ratio: float
    plain_tps: float
    speculative_tps: float
    age_s: float
    """Seconds since the newest plain round in it."""


class SpeedModel:
    """Observe every round of the session; `current` is the speed-up at the present context length."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._plain: deque[Sample] = deque(maxlen=KEEP)
        self._speculative: deque[Sample] = deque(maxlen=KEEP)
        self._run: list[Sample] = []
        """Rounds without a draft since the last one with a draft, not judged yet."""
        self._run_counted = 0
        self._n_past = 0

    def begin_reply(self) -> None:
        """A prefill came between: a run of plain rounds does not reach over it."""
        self._end_run()

    def observe(self, event: Round) -> None:
        """Count a round. A plain one costs what its decode did: looking for a draft is not its price."""
        self._n_past = event.n_past
        work_s = event.verify_s + event.other_s
        if event.drafted:
            self._end_run()
            self._speculative.append(self._sample(event, work_s + event.draft_s))
            return
        self._run.append(self._sample(event, work_s))
        if len(self._run) >= RUN:
            fresh = self._run[max(1, self._run_counted) :]
            self._plain.extend(fresh)
            self._run_counted = len(self._run)

    def current(self) -> SpeedUp | None:
        """The ratio of the two rates here, or None until enough plain tokens were measured."""
        plain = [s for s in self._plain if abs(s.n_past - self._n_past) <= WINDOW]
        speculative = [s for s in self._speculative if abs(s.n_past - self._n_past) <= WINDOW]
        if sum(s.tokens for s in plain) < MIN_PLAIN_TOKENS or not speculative:
            return None
        plain_tps, speculative_tps = _rate(plain), _rate(speculative)
        if not plain_tps or not speculative_tps:
            return None
        age_s = self._clock() - max(s.at for s in plain)
        return SpeedUp(speculative_tps / plain_tps, plain_tps, speculative_tps, age_s)

    def _sample(self, event: Round, seconds: float) -> Sample:
        return Sample(event.gave, seconds, event.n_past, self._clock())

    def _end_run(self) -> None:
        # Rounds of a short gap between drafts are the price of a drafter that found nothing.
        if self._run_counted == 0:
            self._speculative.extend(self._run)
        self._run.clear()
        self._run_counted = 0


def _rate(samples: list[Sample]) -> float:
    seconds = sum(s.seconds for s in samples)
    return sum(s.tokens for s in samples) / seconds if seconds > 0 else 0.0
