"""Which models and prompts the stored traces come from."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from localspec.engine.settings import LoadSettings, Message, Request, SamplingSettings, SpeculationSettings
from localspec.interfaces import Companion, PairFiles
from localspec.pairs import resolve
from localspec.selftest import write
from localspec.workloads import WORKLOADS
from simulation.traces import Trace, record, save

TOKENS = 256


def requests(method: str, *, ignore_eog: bool = False, prompts: int = 3) -> list[Request]:
    """The benchmark's prompts, answered greedily."""
    return [
        Request(
            messages=(Message("user", prompt),),
            sampling=SamplingSettings(temperature=0.0),
            speculation=SpeculationSettings(method=method),  # type: ignore[arg-type]
            max_tokens=TOKENS,
            ignore_eog=ignore_eog,
        )
        for workload in WORKLOADS
        for prompt in workload.prompts[:prompts]
    ]


def record_all(folder: Path, threads: int) -> list[Path]:
    """Record every trace this machine has models for; returns the files."""
    load = LoadSettings(threads=threads, n_ctx=2048)
    demo = resolve("demo")
    jobs: list[tuple[str, PairFiles, list[Request], str]] = [
        ("ngram-smollm2", demo, requests("ngram"), "SmolLM2-135M-Instruct Q4_1, the benchmark's 15 prompts"),
    ]
    for companion in demo.companions:
        jobs.append(
            (f"{companion.kind}-smollm2", demo, requests(companion.kind),
             f"SmolLM2-135M-Instruct Q4_1 with {companion.path.name}, the benchmark's 15 prompts")
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as tiny:
        near = Companion("draft", write("syn-near", Path(tiny)))
        pair = PairFiles("syn", write("syn", Path(tiny)), (near,))
        jobs.append(
            ("draft-syn", pair, requests("draft", ignore_eog=True, prompts=2),
             "tiny random target and a draft that resembles it")
        )  # fmt: skip
        written = []
        for name, files, asked, source in jobs:
            trace: Trace = record(files, load, asked, source)
            path = folder / f"{name}.json"
            save(trace, path)
            print(f"{path}: {trace.tokens} positions", file=sys.stderr)
            written.append(path)
    return written
