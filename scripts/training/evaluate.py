"""What a trained file is worth: the product's own session on held-out prompts, greedy, fixed k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localspec.engine.settings import LoadSettings, Message, Request, SamplingSettings, SpeculationSettings
from localspec.errors import EngineError
from localspec.interfaces import Companion, DraftKind, PairFiles
from localspec.measuring import run
from localspec.output import Output, table
from localspec.session import open_session
from localspec.workloads import Workload
from training.heldout import HELD_OUT
from training.rounds import Tally

K = 4


@dataclass(frozen=True, slots=True)
class Result:
    """Counts of one workload."""

    workload: str
    tally: Tally
    tokens: int


def evaluate(
    target: Path,
    kind: DraftKind,
    draft: Path,
    out: Output,
    *,
    workloads: Sequence[Workload] = HELD_OUT,
    k: int = K,
    max_tokens: int = 256,
    threads: int | None = None,
) -> list[Result]:
    """One greedy reply per prompt, counted by the engine; the last result is the sum.

    Raises:
        EngineError: the draft cannot draft for this target.
    """
    session = open_session(
        PairFiles(target.stem, target, (Companion(kind, draft),)), LoadSettings(n_ctx=1024, threads=threads)
    )
    results, total, tokens = [], Tally(k), 0
    done = 0
    try:
        if session.info.off_reason:
            raise EngineError(session.info.off_reason)
        with out.progress("held-out prompts", sum(len(w.prompts) for w in workloads)) as bar:
            for workload in workloads:
                tally, written = Tally(k), 0
                for prompt in workload.prompts:
                    request = Request(
                        messages=(Message("user", prompt),),
                        sampling=SamplingSettings(temperature=0.0),
                        max_tokens=max_tokens,
                        speculation=SpeculationSettings(method=kind, k=k),
                    )
                    counts = run(session, request).counts
                    written += counts.completion_tokens
                    for each in (tally, total):
                        each.rounds += counts.rounds
                        each.reached += _padded(counts.tested_at, k)
                        each.right += _padded(counts.accepted_at, k)
                    done += 1
                    bar.update(done)
                tokens += written
                results.append(Result(workload.name, tally, written))
    finally:
        session.close()
    return [*results, Result("all", total, tokens)]


def _padded(counts: Sequence[int], k: int) -> np.ndarray:
    return np.array([*counts, *[0] * k][:k], np.int64)


def as_table(results: Sequence[Result]) -> str:
    """Per workload: tokens, rounds, accepted per round, acceptance at each position."""
    k = results[0].tally.k
    rows = [
        [r.workload, r.tokens, r.tally.rounds, f"{r.tally.per_round:.2f}",
         *(f"{p:.2f}" for p in r.tally.by_position)]
        for r in results
    ]  # fmt: skip
    headers = ["workload", "tokens", "rounds", "accepted/round", *(f"position {j + 1}" for j in range(k))]
    return table(headers, rows, right=range(1, len(headers)))


def as_data(results: Sequence[Result]) -> list[dict[str, object]]:
    """The table as plain data."""
    return [
        {
            "workload": r.workload, "tokens": r.tokens, "rounds": r.tally.rounds,
            "accepted_per_round": round(r.tally.per_round, 3),
            "by_position": [round(p, 3) for p in r.tally.by_position],
        }
        for r in results
    ]  # fmt: skip
