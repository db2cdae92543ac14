"""Will it fit, is the draft right, what is missing? The one place that joins what the faces ask for.

Facts come from the catalogue, from headers (on disk, or read by range from the hub) or from llama.cpp itself;
device figures from a short child process. Nothing here imports llama_cpp into the asking process.
"""

from localspec.planning.facts import unit_of
from localspec.planning.gate import settle
from localspec.planning.machine import Machine, host_machine, read_machine
from localspec.planning.measured import own_memory, remember_load
from localspec.planning.pairs import plan_pair, plan_pairs
from localspec.planning.question import DEFAULT_CTX
from localspec.planning.result import SYMBOLS, MeasuredSpeed, PairPlan, Source, State
from localspec.planning.speeds import Recording, RecordingWorker, remember_rates

__all__ = [
    "DEFAULT_CTX",
    "SYMBOLS",
    "Machine",
    "MeasuredSpeed",
    "PairPlan",
    "Recording",
    "RecordingWorker",
    "Source",
    "State",
    "host_machine",
    "own_memory",
    "plan_pair",
    "plan_pairs",
    "read_machine",
    "remember_load",
    "remember_rates",
    "settle",
    "unit_of",
]
