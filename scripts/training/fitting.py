"""The training loop that all trainers share: schedule, progress, best-so-far, Ctrl+C, resuming."""

from __future__ import annotations

import functools
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from localspec.output import Output
from training.corpus import Batch, Corpus
from training.rounds import Tally

WARM_UP = 0.02
"""Share of the run in which the learning rate rises."""
CLIP = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how fast to train."""

    minutes: float
    """Wall time; the schedule follows it, because shared machines differ in speed from hour to hour."""
    batch: int = 8
    rate: float = 1e-3
    evaluate_s: float = 180.0
    seed: int = 1

    def rate_at(self, done: float) -> float:
        """Linear warm-up, then half a cosine to a fiftieth; `done` is the share of the run, 0…1."""
        if done < WARM_UP:
            return self.rate * max(done / WARM_UP, 0.02)
        return self.rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


@dataclass(slots=True)
class Point:
    """One evaluation of a learning curve."""

    minutes: float
    steps: int
    tokens: int
    loss: float
    accepted_per_round: float
    by_position: list[float]


@dataclass(slots=True)
class Run:
    """What a training run has done so far."""

    elapsed: float = 0.0
    steps: int = 0
    tokens: int = 0
    curve: list[Point] = field(default_factory=list)

    @property
    def best(self) -> float:
        return max((point.accepted_per_round for point in self.curve), default=-1.0)


def fit(
    module: nn.Module,
    corpus: Corpus,
    plan: Plan,
    *,
    loss: Callable[[Batch, float], Tensor],
    evaluate: Callable[[], Tally],
    folder: Path,
    out: Output,
) -> Run:
    """Train `module` in place; it ends as its best evaluation. Ctrl+C ends the run early, keeping that.

    Args:
        loss: of a batch, given the share of the run that is done, 0…1.

    A folder with a checkpoint is gone on from: weights, optimizer, elapsed time and learning curve.
    """
    folder.mkdir(parents=True, exist_ok=True)
    optimizer = torch.optim.AdamW(
        module.parameters(), plan.rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    run = _resume(folder, module, optimizer)
    rng = random.Random(plan.seed + run.steps)
    torch.manual_seed(plan.seed + run.steps)
    started, evaluated, mean = time.monotonic() - run.elapsed, time.monotonic(), 0.0
    with out.progress("training", 60 * plan.minutes) as bar:
        try:
            while run.elapsed < 60 * plan.minutes:
                for batch in corpus.epoch(plan.batch, rng):
                    done = run.elapsed / (60 * plan.minutes)
                    value = train_step(
                        module, optimizer, functools.partial(loss, batch, done), plan.rate_at(done)
                    )
                    mean = 0.95 * mean + 0.05 * value if mean else value
                    run.steps += 1
                    run.tokens += int(batch.length.sum())
                    run.elapsed = time.monotonic() - started
                    bar.update(run.elapsed, f"loss {mean:.3f}, held out {max(run.best, 0):.2f} accepted")
                    if run.elapsed >= 60 * plan.minutes:
                        break
                    if time.monotonic() - evaluated > plan.evaluate_s:
                        _evaluate(run, module, optimizer, evaluate, mean, folder, out)
                        evaluated = time.monotonic()
            _evaluate(run, module, optimizer, evaluate, mean, folder, out)
        except KeyboardInterrupt:
            out.note("interrupted; the best so far is kept")
    best = folder / "best.pt"
    if best.exists():
        module.load_state_dict(torch.load(best))
    return run


def train_step(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[], Tensor],
    rate: float,
) -> float:
    """One step at a learning rate; returns the loss."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        value = loss()
    value.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(module.parameters(), CLIP)
    optimizer.step()
    return float(value.detach())


def _evaluate(
    run: Run,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    evaluate: Callable[[], Tally],
    loss: float,
    folder: Path,
    out: Output,
) -> None:
    """Add a point to the curve; save the weights when they are the best, and the state of the run always."""
    module.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        tally = evaluate()
    module.train()
    better = tally.per_round > run.best
    minutes = run.elapsed / 60
    run.curve.append(Point(minutes, run.steps, run.tokens, loss, tally.per_round, tally.by_position))
    out.note(f"{minutes:.1f} min, {run.tokens} tokens, loss {loss:.3f}: {tally}{' *' if better else ''}")
    if better:
        _save(folder / "best.pt", module.state_dict())
    state = {"module": module.state_dict(), "optimizer": optimizer.state_dict()}
    _save(folder / "last.pt", state)
    (folder / "run.json").write_text(json.dumps(asdict(run)))


def _save(path: Path, state: object) -> None:
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.rename(path)


def _resume(folder: Path, module: nn.Module, optimizer: torch.optim.Optimizer) -> Run:
    record, last = folder / "run.json", folder / "last.pt"
    if not (record.exists() and last.exists()):
        return Run()
    state = torch.load(last)
    module.load_state_dict(state["module"])
    optimizer.load_state_dict(state["optimizer"])
    known = json.loads(record.read_text())
    return Run(**{**known, "curve": [Point(**point) for point in known["curve"]]})
