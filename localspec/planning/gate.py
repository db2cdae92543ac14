"""The question before every load: does it fit into the memory that is free now?

Cheap where there is no GPU: RAM is read from the system and the first 64 KiB of each header are enough. Only
a refusal, or a GPU, is worth a second look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from localspec.budget import DeviceUse, Plan, Suggestion
from localspec.engine.settings import LoadSettings
from localspec.errors import DoesNotFitError
from localspec.header import ModelFacts, facts_from_header, read_header
from localspec.interfaces import PairFiles
from localspec.planning.machine import Machine, host_machine, read_machine
from localspec.planning.question import Wanted, compare, input_of, wanted

GIB = 1 << 30


def settle(
    files: PairFiles, load: LoadSettings, *, force: bool = False, machine: Machine | None = None
) -> LoadSettings:
    """The settings a pair is loaded with: `gpu_layers` filled in where only part of it fits the GPU.

    Args:
        force: load even what does not fit.
        machine: devices read earlier, or with our own worker's memory counted as free; None reads them.

    Raises:
        DoesNotFitError: the plan exceeds the free memory; the hint says what would fit.
        ModelFileError: a file is missing or no GGUF.
    """
    machine = machine or host_machine() or read_machine(rpc=load.rpc)
    question = wanted(load, None, machine)
    if not question.devices:
        return load
    answer = _plan(files, question, _first_facts)
    if answer.fit == "too big" and not force:
        answer = _plan(files, question, _all_facts)
        if answer.fit == "too big":
            raise refusal(files.name, answer.devices, answer.suggestions)
    if answer.fit == "partial" and load.gpu_layers is None:
        return replace(load, gpu_layers=answer.gpu_layers)
    return load


def refusal(name: str, devices: Sequence[DeviceUse], suggestions: Sequence[Suggestion]) -> DoesNotFitError:
    """The error for a plan that exceeds its devices, with what would help."""
    short = min(devices, key=lambda device: device.spare_bytes)
    where = "RAM" if short.kind == "cpu" else short.name + (" (SIM)" if short.simulated else "")
    help = [suggestion.text for suggestion in suggestions[:2]]
    return DoesNotFitError(
        f"`{name}` needs {short.needed_bytes / GIB:.1f} GiB of {where}, "
        f"{short.usable_bytes / GIB:.1f} GiB are free for it",
        hint="; ".join([*help, "`--force` goes on anyway"]),
    )


def _plan(files: PairFiles, question: Wanted, facts: Callable[[Path], ModelFacts]) -> Plan:
    inputs = [input_of(c.kind, facts(c.path) if c.path != files.target else None) for c in files.companions]
    return compare(facts(files.target), inputs, question, detail=facts is _all_facts).plan


def _first_facts(path: Path) -> ModelFacts:
    return facts_from_header(read_header(path, only_first=True))


def _all_facts(path: Path) -> ModelFacts:
    return facts_from_header(read_header(path))
