"""What a catalogue row is once it has been checked: frozen values that can name and find themselves.

Knows where a file lives and how a pair drafts; nothing of headers, budgets or the network.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

Role = Literal["model", "mtp", "eagle3", "dflash", "dflash2", "medusa"]
"""What the file is: a model that runs alone, or a head that needs its target."""
PairKind = Literal["draft", "mtp-inside", "mtp", "eagle3", "dflash", "dflash2", "medusa", "ngram"]
DenyEffect = Literal["refuse", "warn"]
ROLES: tuple[Role, ...] = get_args(Role)
KINDS: tuple[PairKind, ...] = get_args(PairKind)

ALONE: frozenset[PairKind] = frozenset({"mtp-inside", "ngram"})
"""Kinds that need no second file."""
METHOD: Mapping[PairKind, str] = {
    "draft": "draft", "mtp-inside": "mtp", "mtp": "mtp", "eagle3": "eagle3",
    "dflash": "dflash", "dflash2": "dflash", "medusa": "medusa", "ngram": "ngram",
}  # fmt: skip
"""Kind -> the engine's method for it."""

Fact = bool | int | str | list[int] | list[bool]
Span = tuple[float, float]
"""Lowest and highest published figure; equal when there is one."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One GGUF file: in a hub repository, in an installed Python package, or at a path."""

    name: str
    file: str
    """Path in the repository or package (of a split file: the first part), or the name of a local file."""
    repo: str | None = None
    package: str | None = None
    path: Path | None = None
    quant: str | None = None
    size_bytes: int | None = None
    """All parts together; a hint until it was pinned."""
    size_exact: bool = False
    """False when only a rounded size is published."""
    revision: str | None = None
    sha256: str | None = None
    license: str | None = None
    gated: bool | None = None
    """None when it is not known."""
    base_repo: str | None = None
    """Repository of the unquantised weights."""
    role: Role = "model"
    bound_to: str | None = None
    """`base_repo` of the only model a head was trained for."""
    facts: Mapping[str, Fact] = field(default_factory=dict, hash=False)
    """Header facts for `localspec.header.facts_from_catalogue`."""
    unverified: tuple[str, ...] = ()
    note: str | None = None

    @property
    def source(self) -> str:
        """Where the file comes from, in one word: `owner/repo/file`, `package:file` or a path."""
        if self.repo:
            return f"{self.repo}/{self.file}"
        return f"{self.package}:{self.file}" if self.package else str(self.path)

    def location(self, models_dir: Path) -> Path | None:
        """Where the file is or will be on this disk; None when its Python package is not installed."""
        if self.repo:
            return models_dir.joinpath(*self.repo.split("/"), *self.file.split("/"))
        return package_file(self.package, self.file) if self.package else self.path


@dataclass(frozen=True, slots=True)
class Evidence:
    """One published measurement; what the source does not say is None."""

    source: str
    """https address."""
    hardware: str
    acceptance: Span | None = None
    """Share of drafted tokens that were accepted, 0 to 1, as the source counts it."""
    speedup: Span | None = None
    """Speculative rate over plain rate."""
    plain_tps: Span | None = None
    spec_tps: Span | None = None
    k: int | None = None
    note: str | None = None

    @property
    def gain(self) -> Span | None:
        """The published speed-up, or the ratio of the published rates."""
        if self.speedup or not (self.plain_tps and self.spec_tps):
            return self.speedup
        return self.spec_tps[0] / self.plain_tps[1], self.spec_tps[1] / self.plain_tps[0]


@dataclass(frozen=True, slots=True)
class Drafter:
    """One way to draft for a target."""

    kind: PairKind
    model: ModelFile | None
    """None for n-grams and for MTP blocks inside the target."""
    k: int | None = None

    @property
    def method(self) -> str:
        """The engine's name for it."""
        return METHOD[self.kind]


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and what drafts for it."""

    name: str
    target: ModelFile
    drafters: tuple[Drafter, ...]
    """The recommended one first."""
    cards: tuple[int, ...] = ()
    """Card sizes in GB it is meant for."""
    host_ram_gib: int | None = None
    """Host memory needed when layers stay there."""
    experimental: bool = False
    note: str | None = None
    evidence: tuple[Evidence, ...] = ()
    origin: str = ""
    """The file that defined it."""

    @property
    def kind(self) -> PairKind:
        return self.drafters[0].kind

    @property
    def method(self) -> str:
        return self.drafters[0].method

    @property
    def draft(self) -> ModelFile | None:
        return self.drafters[0].model

    @property
    def k(self) -> int | None:
        """Draft length to start from; None = chosen from measured costs."""
        return self.drafters[0].k

    @property
    def files(self) -> tuple[ModelFile, ...]:
        """Target and companions, each once."""
        found = {self.target.name: self.target}
        found |= {d.model.name: d.model for d in self.drafters if d.model}
        return tuple(found.values())


@dataclass(frozen=True, slots=True)
class DenyRow:
    """A combination known to be bad."""

    target: tuple[str, ...]
    """Globs on names in the form of `names.plain`."""
    draft: tuple[str, ...]
    reason: str
    source: str | None = None
    kinds: tuple[PairKind, ...] = ()
    """Kinds of draft it holds for; empty = all."""
    effect: DenyEffect = "refuse"


def package_file(package: str, file: str) -> Path | None:
    """A data file of an installed package, found without importing it; None when either is missing."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found = Path(folder, *file.split("/"))
        if found.is_file():
            return found
    return None
