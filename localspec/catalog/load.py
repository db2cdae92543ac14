"""Build the catalogue from `models.toml` files: the shipped one, the user's, any given; later names win.

Knows where the files are and how references between rows resolve; the rows themselves are `rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from localspec.catalog.entries import ALONE, KINDS, DenyRow, Drafter, Fact, ModelFile, Pair, package_file
from localspec.catalog.names import plain
from localspec.catalog.pins import Pin
from localspec.catalog.rows import (
    DRAFTER_KEYS,
    K_LIMIT,
    TOP_KEYS,
    Tables,
    cards_of,
    deny_row,
    evidence_row,
    model_row,
    pair_table,
)
from localspec.errors import LocalspecError, PairingError, UsageError, nearest, unknown
from localspec.locations import locations
from localspec.tomlfile import Table, read_toml, shortened

DEMO = "demo"
"""Name of the embedded pair."""
_T = TypeVar("_T")
_EXPECTED_ROLE = {"draft": "model"}


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every known model, pair and bad combination."""

    models: Mapping[str, ModelFile] = field(hash=False)
    pairs: Mapping[str, Pair] = field(hash=False)
    deny: tuple[DenyRow, ...] = ()

    def pair(self, name: str) -> Pair:
        """The pair of this name.

        Raises:
            UsageError: there is none; the hint has the nearest name.
        """
        return _named("pair", name, self.pairs)

    def model(self, name: str) -> ModelFile:
        """The model of this name; raises as `pair`."""
        return _named("model", name, self.models)

    def alternatives(self, model: ModelFile) -> tuple[ModelFile, ...]:
        """Other files of the same weights and role with a known size, smallest first."""
        same = [
            other
            for other in self.models.values()
            if other.base_repo and other.base_repo == model.base_repo and other.role == model.role
            and other.name != model.name and other.size_bytes
            and bool(other.facts.get("n_nextn")) == bool(model.facts.get("n_nextn"))
        ]  # fmt: skip
        return tuple(sorted(same, key=lambda other: (other.size_bytes or 0, other.name)))

    def denied(self, target: Iterable[str], draft: Iterable[str], kind: str = "draft") -> DenyRow | None:
        """The first row against this combination, or None.

        Args:
            target, draft: every name the file goes by: catalogue name, file, repository, `general.name`.
            kind: what the companion is.
        """
        targets, drafts = [plain(name) for name in target], [plain(name) for name in draft]
        for row in self.deny:
            if (not row.kinds or kind in row.kinds) and _any(row.target, targets) and _any(row.draft, drafts):
                return row
        return None

    def denied_files(self, target: ModelFile, drafter: Drafter) -> DenyRow | None:
        """The row against this target and drafter, or one made for a head of another checkpoint."""
        head = drafter.model
        if head is None:
            return None
        if head.bound_to and target.base_repo and head.bound_to != target.base_repo:
            return DenyRow(
                target=(plain(target.name),),
                draft=(plain(head.name),),
                reason=f"`{head.name}` was trained for {head.bound_to}, not for {target.base_repo}",
            )
        return self.denied(names_of(target), names_of(head), drafter.kind)

    def check_allowed(self, pair: Pair) -> None:
        """Refuse a pair that a deny row of effect `refuse` is against.

        Raises:
            PairingError: with the row's reason.
        """
        for drafter in pair.drafters:
            row = self.denied_files(pair.target, drafter)
            if row and row.effect == "refuse" and drafter.model:
                raise PairingError(
                    f"`{drafter.model.name}` cannot draft for `{pair.target.name}`: {row.reason}",
                    hint=f"see {row.source}" if row.source else None,
                )

    def with_pins(self, pins: Mapping[tuple[str, str], Pin]) -> Catalog:
        """The same catalogue with what was learnt when files were fetched: name, revision, digest, size."""
        models = {name: _pinned(model, pins) for name, model in self.models.items()}
        pairs = {
            name: replace(
                pair,
                target=models[pair.target.name],
                drafters=tuple(
                    replace(d, model=models[d.model.name] if d.model else None) for d in pair.drafters
                ),
            )
            for name, pair in self.pairs.items()
        }
        return replace(self, models=models, pairs=pairs)


def _named(kind: str, name: str, known: Mapping[str, _T]) -> _T:
    if name not in known:
        close = nearest(name, known)
        if close:
            raise unknown(kind, name, known)
        raise UsageError(f"unknown {kind} `{name}`", hint="`localspec models ls` lists the names")
    return known[name]


def _any(globs: Iterable[str], names: list[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs for name in names)


def names_of(model: ModelFile) -> tuple[str, ...]:
    """Every name a catalogued file goes by, for deny rows."""
    parts = (model.name, model.file.rsplit("/", 1)[-1], model.repo, model.base_repo)
    return tuple(part for part in parts if part)


def _pinned(model: ModelFile, pins: Mapping[tuple[str, str], Pin]) -> ModelFile:
    pin = pins.get((model.repo, model.file)) if model.repo else None
    if pin is None:
        return model
    return replace(
        model,
        file=pin.file,
        revision=pin.revision,
        sha256=pin.sha256,
        size_bytes=pin.size_bytes,
        size_exact=True,
    )


def shipped_file() -> Path:
    """`models.toml` of this installation: inside the package, or beside it in a checkout.

    Raises:
        LocalspecError: the installation is incomplete.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package, package.parent):
        if (folder / "models.toml").is_file():
            return folder / "models.toml"
    raise LocalspecError(f"models.toml is missing from `{package}`", hint="install localspec again")


def load_catalog(extra_files: Iterable[Path] = (), *, user_file: Path | None = None) -> Catalog:
    """The shipped catalogue, the user's models file over it, and `extra_files` over both.

    Args:
        extra_files: more files of the same layout; each must exist.
        user_file: instead of `locations().user_models_file`; may be absent.

    Raises:
        UsageError: a file is missing, malformed or has a bad row; names file, table and key.
    """
    files = [shipped_file(), user_file or locations().user_models_file]
    for extra in extra_files:
        if not extra.is_file():
            raise UsageError(f"`{extra}` does not exist")
        files.append(extra)
    return build_catalog((str(file), read_toml(file)) for file in files)


def build_catalog(documents: Iterable[tuple[str, Mapping[str, Any]]]) -> Catalog:
    """A catalogue from parsed documents, each with its file's name; raises as `load_catalog`."""
    models: dict[str, tuple[Any, str]] = {}
    pairs: dict[str, tuple[Any, str]] = {}
    deny: list[DenyRow] = []
    for source, document in documents:
        top = Table(document, source, "", TOP_KEYS)
        models |= {name: (row, source) for name, row in top.tables("models").items()}
        pairs |= {name: (row, source) for name, row in top.tables("pairs").items()}
        deny += [deny_row(row, source, n) for n, row in enumerate(top.rows("deny"), start=1)]
    known = _models(models)
    catalog = Catalog(known, {}, tuple(deny))
    built = {name: _pair(name, row, source, catalog) for name, (row, source) in pairs.items()}
    return replace(catalog, pairs=built)


def _models(tables: Tables) -> dict[str, ModelFile]:
    rows = {name: model_row(name, row, source) for name, (row, source) in tables.items()}
    own = {name: model.facts for name, (model, _) in rows.items()}
    built: dict[str, ModelFile] = {}
    for name, (model, origin) in rows.items():
        if origin is None:
            built[name] = model
            continue
        source = tables[name][1]
        if origin not in rows:
            raise _reference(source, f"models.{name}", "facts_from", origin, rows)
        if rows[origin][1] is not None:
            raise UsageError(
                f"`{source}`: [models.{name}] `facts_from` names `{origin}`, which names another",
                hint=f"did you mean `{rows[origin][1]}`?",
            )
        merged: dict[str, Fact] = {**own[origin], **model.facts}
        built[name] = replace(model, facts=merged)
    return built


def _reference(source: str, table: str, key: str, name: str, known: Iterable[str]) -> UsageError:
    close = nearest(name, known)
    return UsageError(
        f"`{source}`: [{table}] `{key}` names the unknown model `{shortened(name)}`",
        hint=f"did you mean `{close}`?" if close else "models are listed under [models.NAME]",
    )


def _pair(name: str, row: object, source: str, catalog: Catalog) -> Pair:
    table = pair_table(name, row, source)
    target_name = table.needed_text("target")
    if target_name not in catalog.models:
        raise _reference(source, table.name, "target", target_name, catalog.models)
    target = catalog.models[target_name]
    if target.role != "model":
        raise table.error(
            "target", f"names `{target_name}`, which is a {target.role} head and cannot run alone"
        )
    pair = Pair(
        name=name,
        target=target,
        drafters=tuple(_drafters(table, target, catalog)),
        cards=cards_of(table),
        host_ram_gib=table.whole("host_ram_gib", 1, 65536),
        experimental=table.flag("experimental") or False,
        note=table.text("note"),
        evidence=tuple(evidence_row(row, source, name) for row in table.rows("evidence")),
        origin=source,
    )
    for drafter in pair.drafters:
        denied = catalog.denied_files(target, drafter)
        if denied and denied.effect == "refuse":
            raise UsageError(f"`{source}`: [{table.name}] is a known bad combination: {denied.reason}")
    return pair


def _drafters(table: Table, target: ModelFile, catalog: Catalog) -> Iterator[Drafter]:
    yield _drafter(table, target, catalog)
    for row in table.rows("also"):
        yield _drafter(Table(row, table.source, f"{table.name}.also", DRAFTER_KEYS), target, catalog)


def _drafter(table: Table, target: ModelFile, catalog: Catalog) -> Drafter:
    kind = table.choice("kind", KINDS)
    if kind is None:
        raise table.missing("kind")
    drafter = Drafter(kind, None, table.whole("k", 1, K_LIMIT))  # type: ignore[arg-type]
    name = table.text("draft")
    if drafter.kind in ALONE:
        if name is not None:
            raise table.error("draft", f"is not used with kind `{kind}`")
        if kind == "mtp-inside" and target.facts.get("n_nextn") == 0:
            raise table.error("kind", f"is `mtp-inside`, but `{target.name}` has no MTP blocks")
        return drafter
    if name is None:
        raise table.missing("draft")
    if name not in catalog.models:
        raise _reference(table.source, table.name, "draft", name, catalog.models)
    model = catalog.models[name]
    role = _EXPECTED_ROLE.get(kind, kind)
    if model.role != role:
        raise table.error(
            "draft", f"names `{name}`, whose role is `{model.role}`; kind `{kind}` needs `{role}`"
        )
    return replace(drafter, model=model)


def demo_target_path() -> Path | None:
    """The embedded pair's target, found without importing its package; None when it is not installed."""
    target = build_catalog([(str(shipped_file()), read_toml(shipped_file()))]).pair(DEMO).target
    return package_file(target.package, target.file) if target.package else None
