"""Plans of pairs: facts, devices and settings joined into one value per pair.

`plan_pairs` answers a list from what this disk knows; `plan_pair` looks closer: complete headers, by range
requests where a file is not here, the verdict on the draft, and the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from localspec.budget import Plan, PlanItem, explain
from localspec.catalog import Catalog, Drafter, ModelFile, Pair, PairKind
from localspec.engine.settings import KvType, LoadSettings
from localspec.errors import LocalspecError, OutsideError, PermissionDeniedError
from localspec.header import Header, facts_from_header, read_header
from localspec.header.source import shard_paths
from localspec.interfaces import Companion, PairFiles
from localspec.locations import locations
from localspec.pairing import Verdict, verdict
from localspec.pairs import pair_files
from localspec.planning.facts import Known, PairFacts, local_facts, remote_key
from localspec.planning.machine import TIMEOUT_S, Machine, ask_child
from localspec.planning.measured import with_items, with_measured
from localspec.planning.question import Comparison, Wanted, compare, input_of, wanted
from localspec.planning.remote import remote_header
from localspec.planning.result import PairPlan
from localspec.planning.speeds import speed_of
from localspec.planning.tuned import tuned_of_plan
from localspec.store.measurements import Measurements


def plan_pairs(
    catalog: Catalog,
    *,
    budget: str | None = None,
    n_ctx: int | None = None,
    kv: tuple[KvType, KvType] | None = None,
    k: int | None = None,
    load: LoadSettings | None = None,
    machine: Machine | None = None,
    models_dir: Path | None = None,
    measurements: Measurements | None = None,
) -> list[PairPlan]:
    """Plan every pair of a catalogue from what is known on this disk, in the catalogue's order.

    Args:
        budget: a simulated card (`24GB-card`, `24GiB`); None compares with this machine.
        n_ctx, kv, k: over those of `load`; k is the longest draft of a round.
        load: the other settings that change memory.
        machine: devices read earlier; None reads them (about a second) unless a budget is given.
        models_dir: where models are kept, instead of `locations().models_dir`.
        measurements: what earlier loads took.

    Raises:
        UsageError: no such budget.
    """
    question = wanted(with_changes(load or LoadSettings(), n_ctx, kv, k), budget, machine)
    look = PairFacts(models_dir or locations().models_dir)
    return [
        _joined(pair, {model.name: look.known(model) for model in pair.files}, question, look, measurements)
        for pair in catalog.pairs.values()
    ]


def plan_pair(
    pair: Pair | PairFiles,
    *,
    budget: str | None = None,
    n_ctx: int | None = None,
    kv: tuple[KvType, KvType] | None = None,
    k: int | None = None,
    load: LoadSettings | None = None,
    machine: Machine | None = None,
    models_dir: Path | None = None,
    measurements: Measurements | None = None,
    online: bool = True,
    dry_run: bool = False,
) -> PairPlan:
    """Plan one pair from complete headers, with verdict, suggestions and arithmetic.

    Args:
        online: read headers of files that are not here from the hub; what prevents it is a note in the plan.
        dry_run: ask llama.cpp itself, in a child process, what it would allocate for files on this disk; the
            formula's figures stay for others, and for a simulated card.

    Raises:
        UsageError: no such budget.
        ModelFileError: a given file is missing, no GGUF or truncated.
    """
    if isinstance(pair, PairFiles):
        pair = pair_of_files(pair)
    question = wanted(with_changes(load or LoadSettings(), n_ctx, kv, k), budget, machine)
    look = PairFacts(models_dir or locations().models_dir)
    read = _Headers(look, online)
    known = {model.name: read.known(model) for model in pair.files}
    plan = _joined(pair, known, question, look, measurements, detail=True)
    real = plan.source == "header" and plan.state == "installed" and plan.compared_with in ("CPU", "GPU")
    if dry_run and real:
        plan = _with_dry_run(plan, pair_files(pair, look.models_dir), question.load, read.notes)
    if not plan.simulated:
        read.notes.extend(_out_of_reach(pair, known, plan.bytes, question.load.draft_device))
    return replace(plan, verdict=read.verdict(pair), notes=tuple(read.notes))


def _out_of_reach(
    pair: Pair, known: Mapping[str, Known], items: Sequence[PlanItem], device: str | None
) -> Iterator[str]:
    """Heads that the engine will refuse: their draft device cannot read what they borrow of the target."""
    holders = {item.device for item in items if item.term in ("target weights", "target KV")} - {"CPU"}
    if device is None or not holders - {device}:
        return
    for drafter in pair.drafters:
        model = drafter.model
        asked = input_of(drafter.kind, known[model.name].facts) if model else None
        if model and asked and asked.reads_target:
            yield (
                f"the engine will refuse `{model.name}`: on the draft device `{device}` it cannot read the "
                f"target's part on {', '.join(sorted(holders))}; leave `--draft-device` away"
            )


def _with_dry_run(plan: PairPlan, files: PairFiles, load: LoadSettings, notes: list[str]) -> PairPlan:
    layers = plan.gpu_layers if plan.fit == "partial" else load.gpu_layers
    answer = ask_child(
        {
            "ask": "dry run",
            "target": str(files.target),
            "companions": [[c.kind, str(c.path)] for c in files.companions],
            "load": asdict(replace(load, gpu_layers=layers)),
        },
        TIMEOUT_S,
    )
    if isinstance(answer, str):
        notes.append(f"the figures are the formula's, a dry run was not possible: {answer}")
        return plan
    return with_items(plan, answer["items"], "dry-run") if answer["items"] else plan


def with_changes(
    load: LoadSettings, n_ctx: int | None, kv: tuple[KvType, KvType] | None, k: int | None
) -> LoadSettings:
    """The settings with what was given."""
    return replace(load, n_ctx=n_ctx or load.n_ctx, kv=kv or load.kv, k_max=k or load.k_max)


def pair_of_files(files: PairFiles) -> Pair:
    """Files on this disk as a catalogue row."""
    target = _file_row(files.target)
    drafters = [_drafter_row(companion, target) for companion in files.companions]
    return Pair(files.name, target, tuple(drafters) or (Drafter("ngram", None),))


def _file_row(path: Path) -> ModelFile:
    size = sum(part.stat().st_size for part in shard_paths(path) if part.is_file())
    return ModelFile(path.stem, path.name, path=path, size_bytes=size, size_exact=True)


def _drafter_row(companion: Companion, target: ModelFile) -> Drafter:
    if companion.path == target.path:
        kind: PairKind = "mtp-inside" if companion.kind == "mtp" else companion.kind
        return Drafter(kind, None if kind == "mtp-inside" else target)
    return Drafter(companion.kind, _file_row(companion.path))


@dataclass(slots=True)
class _Headers:
    """Complete headers, each read once; without one the best facts known."""

    look: PairFacts
    online: bool
    notes: list[str] = field(default_factory=list)
    found: dict[str, Header] = field(default_factory=dict)

    def known(self, model: ModelFile) -> Known:
        path = self.look.path(model) or model.path
        if path is not None:
            self.found[model.name] = read_header(path)
            return Known(local_facts(path, self.look.cache, header=self.found[model.name]), "header")
        if model.repo and self.online:
            try:
                self.found[model.name] = header = remote_header(model)
            except (OutsideError, PermissionDeniedError) as error:
                self.notes.append(f"the header of `{model.name}` was not read: {error.message}")
            else:
                facts = facts_from_header(header)
                self.look.cache.put(remote_key(model), facts)
                return Known(facts, "header")
        return self.look.known(model)

    def verdict(self, pair: Pair) -> Verdict | None:
        target = self.found.get(pair.target.name)
        draft = self.found.get(pair.draft.name) if pair.draft else None
        return verdict(target, draft) if target and draft else None


def _joined(
    pair: Pair,
    known: Mapping[str, Known],
    question: Wanted,
    look: PairFacts,
    measurements: Measurements | None,
    *,
    detail: bool = False,
) -> PairPlan:
    """The budget's answer beside what the catalogue and the disk say."""
    target = known[pair.target.name]
    inputs = [input_of(d.kind, known[d.model.name].facts if d.model else None) for d in pair.drafters]
    answer = compare(target.facts, inputs, question, detail=detail)
    plan = _pair_plan(pair, known, answer, question, look, detail=detail)
    if measurements is not None and plan.state == "installed" and not plan.simulated:
        with suppress(LocalspecError):  # a file that has just gone
            files = pair_files(pair, look.models_dir)
            asked = (files, question.load, question.build, measurements)
            plan = replace(with_measured(plan, *asked), speed=speed_of(plan, *asked))
            plan = replace(plan, tuned=tuned_of_plan(plan, *asked))
    return plan


def _pair_plan(
    pair: Pair,
    known: Mapping[str, Known],
    answer: Comparison,
    question: Wanted,
    look: PairFacts,
    *,
    detail: bool,
) -> PairPlan:
    plan = answer.plan
    compared = plan.compared_with if question.devices else ""
    reason = question.reason if not compared else _missing(plan) if plan.missing else None
    sizes = [known[model.name].facts.size_bytes for model in pair.files]
    from_headers = all(one.source == "header" for one in known.values())
    return PairPlan(
        name=pair.name,
        target=pair.target.name,
        draft=pair.draft.name if pair.draft else None,
        method=pair.method,
        fit=plan.fit if compared else "unknown",
        bytes=(*plan.items, *answer.extra),
        total_bytes=plan.total_bytes + sum(item.size_bytes for item in answer.extra),
        n_ctx=plan.n_ctx,
        kv=plan.kv,
        largest_ctx=plan.largest_ctx if compared else 0,
        gpu_layers=plan.gpu_layers,
        n_layers=plan.n_layers,
        license=pair.target.license,
        gated=any(model.gated for model in pair.files),
        state=look.state(pair),
        evidence=pair.evidence,
        source="header" if from_headers else "catalogue",
        estimated=plan.estimated,
        simulated=compared == "SIM",
        compared_with=compared,
        devices=plan.devices,
        download_bytes=sum(sizes) if all(sizes) else None,
        reason=reason,
        suggestions=plan.suggestions,
        explain=tuple(explain(plan)) if detail else (),
    )


def _missing(plan: Plan) -> str:
    names = {"size": "the file's size", "n_layer": "the number of layers"}
    missing = ", ".join(names.get(fact, f"`{fact}`") for fact in dict.fromkeys(plan.missing))
    return f"the catalogue does not state {missing}, and no header was read"
