"""Which models and prompts the stored traces come from."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from localspec.engine.settings import LoadSettings, Message, Request, SamplingSettings, SpeculationSettings
from localspec.interfaces import Companion, DraftKind, PairFiles
from localspec.pairs import resolve
from localspec.selftest import write
from localspec.workloads import WORKLOADS
from simulation.traces import SUFFIX, record, save

TOKENS = 256
TINY: tuple[tuple[str, str, DraftKind, str], ...] = (
    ("syn", "syn-near", "draft", "a draft that resembles it"),
    ("syn-hyb-few", "eagle3-few", "eagle3", "an EAGLE-3 head"),
    ("syn-hyb-few", "medusa-few", "medusa", "Medusa heads"),
    ("syn-hyb-few", "dflash-few", "dflash", "a DFlash drafter"),
)
"""(target, companion, kind, in words): random weights, drafts that are right about one time in four."""


@dataclass(frozen=True, slots=True)
class Job:
    """One trace to record."""

    name: str
    files: PairFiles
    requests: list[Request]
    source: str

    def run(self, folder: Path, load: LoadSettings) -> Path:
        trace = record(self.files, load, self.requests, self.source)
        path = folder / f"{self.name}{SUFFIX}"
        save(trace, path)
        print(f"{path}: {trace.tokens} positions", file=sys.stderr)
        return path


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


def jobs_of(files: PairFiles, label: str) -> list[Job]:
    """A job for each drafter of a pair on this disk, n-grams only where it has none."""
    drafters = [(c.kind, f" with {c.path.name}") for c in files.companions] or [("ngram", "")]
    return [
        Job(
            f"{kind}-{label}", files, requests(kind),
            f"{files.target.name}{what}, the benchmark's {len(requests(kind))} prompts",
        )
        for kind, what in drafters
    ]  # fmt: skip


def record_pair(folder: Path, target: Path | None, draft: Path | None, threads: int) -> list[Path]:
    """Record the drafters of a pair: given files, or a draft for the embedded target."""
    files = resolve(None if target else "demo", target, draft)
    load = LoadSettings(threads=threads, n_ctx=2048)
    return [job.run(folder, load) for job in jobs_of(files, files.target.stem.lower()[:24])]


def record_all(folder: Path, threads: int) -> list[Path]:
    """Record every stored trace this machine has models for; returns the files."""
    load = LoadSettings(threads=threads, n_ctx=2048)
    demo = resolve("demo")
    plain = PairFiles(demo.name, demo.target)
    paths = [job.run(folder, load) for job in jobs_of(plain, "smollm2")]
    if demo.companions:
        paths += [job.run(folder, load) for job in jobs_of(demo, "smollm2")]
    with tempfile.TemporaryDirectory() as tiny:
        for target, companion, kind, what in TINY:
            near = Companion(kind, write(companion, Path(tiny)))
            files = PairFiles(target, write(target, Path(tiny)), (near,))
            asked = requests(kind, ignore_eog=True, prompts=2)
            source = f"tiny random target and {what}"
            paths.append(Job(f"{kind}-{target}", files, asked, source).run(folder, load))
    return paths
