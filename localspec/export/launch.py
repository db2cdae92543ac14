"""The shape of a launch: a checked argument list with notes, and how it is printed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

from localspec.catalog import Drafter, ModelFile, Pair
from localspec.errors import UsageError
from localspec.export.facts import Engine


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user wants of the other engine; None leaves it to the engine."""

    host: str | None = None
    port: int | None = None
    n_ctx: int | None = None
    k: int | None = None
    """Draft length instead of the pair's."""
    gpus: int | None = None
    """GPUs that share the target by tensor parallelism."""
    gpu_memory: float | None = None
    """Share of each GPU's memory the engine may take, 0 to 1."""
    parallel: int | None = None
    """Requests at once."""
    target_repo: str | None = None
    """Unquantised target instead of the catalogue's."""
    draft_repo: str | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """A command for another engine."""

    engine: str
    version: str
    """The version its arguments were compared with."""
    checked: str
    argv: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def command(self) -> str:
        """The command for a shell, one option per line."""
        lines: list[str] = []
        for word in self.argv:
            if word.startswith("--") or not lines:
                lines.append(shlex.quote(word))
            else:
                lines[-1] += f" {shlex.quote(word)}"
        return " \\\n  ".join(lines)


@dataclass(slots=True)
class Builder:
    """Collects arguments; a flag that the engine's table does not hold cannot get in."""

    engine: Engine
    argv: list[str]
    notes: list[str] = field(default_factory=list)

    def add(self, flag: str, value: object | None) -> None:
        """Append a flag with its value; None leaves it out."""
        if flag not in self.engine.flags:
            raise AssertionError(f"{self.engine.name} {self.engine.version} has no {flag}")
        if value is not None:
            self.argv += [flag, str(value)]

    def launch(self) -> Launch:
        return Launch(
            self.engine.name, self.engine.version, self.engine.checked, tuple(self.argv), tuple(self.notes)
        )


def method_of(engine: Engine, pair: Pair, drafter: Drafter) -> str:
    """The engine's name for the way this pair drafts.

    Raises:
        UsageError: it has none.
    """
    method = engine.methods.get(drafter.kind)
    if method is None:
        raise UsageError(
            f"{engine.name} {engine.version} has no method for the {drafter.kind} draft of `{pair.name}`",
            hint=f"it knows {', '.join(sorted(set(engine.methods)))}",
        )
    return method


def draft_length(engine: Engine, pair: Pair, drafter: Drafter, wishes: Wishes) -> int:
    """Tokens per draft: asked for, else the pair's, else usual for the kind.

    Raises:
        UsageError: nothing says it.
    """
    k = wishes.k or drafter.k or engine.default_k.get(drafter.kind)
    if k is None:
        raise UsageError(
            f"`{pair.name}` names no draft length and a {drafter.kind} draft has its own", hint="give --k N"
        )
    return k


def target_repo(pair: Pair, wishes: Wishes) -> str:
    """Repository of the unquantised target.

    Raises:
        UsageError: it is not known.
    """
    return wishes.target_repo or _base_repo(pair, pair.target, "--target-repo")


def draft_repo(pair: Pair, drafter: Drafter, wishes: Wishes) -> str | None:
    """Repository of the unquantised draft; None for drafts that are no model of their own.

    Raises:
        UsageError: it is not known.
    """
    if drafter.model is None:
        if wishes.draft_repo is not None:
            raise UsageError(f"`{pair.name}` drafts without a second model, so --draft-repo has no effect")
        return None
    return wishes.draft_repo or _base_repo(pair, drafter.model, "--draft-repo")


def _base_repo(pair: Pair, model: ModelFile, option: str) -> str:
    if model.base_repo is None:
        raise UsageError(
            f"the unquantised repository of `{model.name}` in the pair `{pair.name}` is not known",
            hint=f"give {option} OWNER/NAME",
        )
    return model.base_repo


def vocabularies_differ(pair: Pair, drafter: Drafter) -> bool | None:
    """Whether target and draft have embeddings of different length; None when a size is not known."""
    if drafter.model is None:
        return False
    sizes = pair.target.facts.get("n_vocab"), drafter.model.facts.get("n_vocab")
    return None if None in sizes else sizes[0] != sizes[1]
