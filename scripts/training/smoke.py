"""The whole way on a tiny synthetic target, in a minute: data, every trainer, files, evaluation."""

from __future__ import annotations

from pathlib import Path

import torch

from localspec.interfaces import DraftKind
from localspec.output import Output
from localspec.selftest import write
from localspec.workloads import Workload
from training import dictation
from training.evaluate import as_table, evaluate
from training.fitting import Plan
from training.trainers import TRAINERS, read_lesson

TARGET = "syn"
SECONDS = 3.0
"""Training time per kind."""
PROMPTS = (Workload("smoke", ("abc", "count")),)


def run_smoke(folder: Path, out: Output) -> dict[str, Path]:
    """Train all kinds and count their accepted drafts; returns the files by kind."""
    torch.set_num_threads(1)
    target = write(TARGET, folder)
    data = folder / "data"
    dictation.write_held_out(target, data, 1, 24, out)
    dictation.write_training(target, data, 1, out, tokens=3000, size=8, max_new=32, seed=1)
    lesson = read_lesson(target, data, 64, out)
    files: dict[str, Path] = {}
    kinds: tuple[DraftKind, ...] = ("eagle3", "medusa", "draft")
    for kind in kinds:
        files[kind] = folder / f"{kind}.gguf"
        run = TRAINERS[kind](lesson, Plan(SECONDS / 60, batch=4), folder / kind, files[kind])
        out.line(f"{kind}: {run.steps} steps, loss {run.curve[-1].loss:.2f}")
        out.line(
            as_table(evaluate(target, kind, files[kind], out, workloads=PROMPTS, max_tokens=32, threads=1))
        )
    return files
