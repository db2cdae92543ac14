"""An independent check of emitted text: every token teacher-forced, one row at a time, in a fresh context.

It shares no code with the speculative loop: no batches of several rows, no rollback, no draft. What it
measures holds on quantised weights too, where row counts move logits and texts may differ token by token:

- greedy: regret = best logit - logit of the emitted token, and how often the argmax differs;
- sampled: the probability integral transform of each token under the one-row distribution, which is uniform
  exactly when the tokens were drawn from it (randomised at the steps, Czado et al. 2009). It is taken twice,
  over the candidates by id and by falling probability: errors that even out over ids, like a leaning towards
  what a draft model likes, show in the second order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.engine.backend.context import Context, ContextSettings
from localspec.engine.backend.model import ModelSettings, load_model
from localspec.engine.backend.samplers import Candidates, native_samplers
from localspec.engine.sampling import Sampler, uniform
from localspec.engine.settings import LoadSettings, SamplingSettings

MAX_REGRET = 0.5
MAX_FLIPS = 0.05
MIN_KS_P = 0.001


@dataclass(frozen=True, slots=True)
class GreedyCheck:
    """Regrets of one or more greedy replies."""

    regrets: tuple[float, ...]

    @property
    def worst(self) -> float:
        return max(self.regrets, default=0.0)

    @property
    def flips(self) -> int:
        return sum(regret > 0 for regret in self.regrets)

    @property
    def passed(self) -> bool:
        share = self.flips / len(self.regrets) if self.regrets else 1.0
        return self.worst <= MAX_REGRET and share <= MAX_FLIPS

    def __str__(self) -> str:
        share = 100 * self.flips / max(len(self.regrets), 1)
        return f"{len(self.regrets)} tokens: largest regret {self.worst:.3f}, {share:.1f} % argmax flips"


@dataclass(frozen=True, slots=True)
class SampledCheck:
    """Uniformity of the transformed tokens of sampled replies."""

    values: tuple[tuple[float, float], ...]
    """Of each token: its transform over the candidates by id, and by falling probability."""

    @property
    def p_values(self) -> tuple[float, float]:
        """Of both orders."""
        by_id, by_rank = zip(*self.values, strict=True) if self.values else ((), ())
        return ks_uniform(by_id), ks_uniform(by_rank)

    @property
    def passed(self) -> bool:
        return bool(self.values) and min(self.p_values) > MIN_KS_P

    def __str__(self) -> str:
        by_id, by_rank = self.p_values
        return f"{len(self.values)} tokens: KS p = {by_id:.4f} by id, {by_rank:.4f} by probability"


class Teacher:
    """A target of its own with one output row.

    Args:
        load: the session's settings, so that weights lie on the same devices and the caches have one type.
    """

    def __init__(self, target: Path, load: LoadSettings) -> None:
        gpu_layers = -1 if load.gpu_layers is None else load.gpu_layers
        self._model = load_model(
            target,
            ModelSettings(
                gpu_layers=gpu_layers,
                mmap=load.mmap,
                device=load.device,
                tensor_split=load.tensor_split,
                n_cpu_moe=load.n_cpu_moe,
            ),
        )
        self._settings = ContextSettings(
            n_ctx=load.n_ctx or 4096,
            n_batch=512,
            kv=load.kv,
            flash_attn=load.flash_attn,
            threads=load.threads or 1,
        )
        self._candidates = Candidates(self._model.n_vocab)

    def rows(self, prompt: Sequence[int], reply: Sequence[int]) -> list[NDArray[np.float32]]:
        """Logits row before each token of `reply`."""
        context = Context(self._model, replace(self._settings, n_ctx=len(prompt) + len(reply) + 1))
        try:
            cells = context.sequence()
            text = np.array([*prompt, *reply], np.int32)
            cells.prefill(text[: len(prompt) - 1])
            out = []
            for at in range(len(prompt) - 1, len(text) - 1):
                out.append(cells.decode(text[at : at + 1], 1)[0].copy())
            return out
        finally:
            context.close()

    def greedy(self, prompt: Sequence[int], reply: Sequence[int]) -> list[float]:
        """Regret of each token of a greedy reply, in logits."""
        rows = self.rows(prompt, reply)
        return [float(row.max() - row[id]) for row, id in zip(rows, reply, strict=True)]

    def sampled(
        self, prompt: Sequence[int], reply: Sequence[int], sampling: SamplingSettings, seed: int
    ) -> list[tuple[float, float]]:
        """Transforms of each token of a sampled reply; uniform on [0, 1) when it was drawn from the chain."""
        native = native_samplers(
            sampling, self._model.vocabulary, self._settings.n_ctx, seed, self._candidates
        )
        sampler = Sampler(sampling, native, np.array(prompt, np.int32))
        values = []
        try:
            for at, (row, id) in enumerate(zip(self.rows(prompt, reply), reply, strict=True)):
                p = sampler.distribution(row)
                own = p.of(id)
                inside = uniform(seed, at, 7) * own
                likelier = (p.p > own) | ((p.p == own) & (p.ids < id))
                values.append((float(p.p[p.ids < id].sum()) + inside, float(p.p[likelier].sum()) + inside))
                sampler.accept(id)
        finally:
            sampler.close()
        return values

    def close(self) -> None:
        self._model.close()


def ks_uniform(values: Sequence[float]) -> float:
    """p-value of the Kolmogorov-Smirnov test against U[0, 1), asymptotic with Stephens' correction."""
    n = len(values)
    if n == 0:
        return 0.0
    ordered = np.sort(np.asarray(values))
    steps = np.arange(1, n + 1) / n
    distance = float(max((steps - ordered).max(), (ordered - steps + 1 / n).max()))
    x = distance * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))
    tail = sum((-1) ** (j - 1) * math.exp(-2 * j * j * x * x) for j in range(1, 101))
    return min(1.0, max(0.0, 2 * tail)) if x > 0.2 else 1.0
