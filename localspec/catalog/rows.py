"""From TOML tables to catalogue entries: every key, type and value is checked, and errors name the place.

Knows the layout of `models.toml` (described at its top); nothing of where such files are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from localspec.catalog.entries import KINDS, ROLES, DenyEffect, DenyRow, Evidence, Fact, ModelFile, Span
from localspec.errors import UsageError
from localspec.header.catalogue_facts import CATALOGUE_KEYS, DIRECT_KEYS
from localspec.tomlfile import Table, kind_of, shortened

TOP_KEYS = ("models", "pairs", "deny")
MODEL_KEYS = (
    "repo", "package", "path", "file", "quant", "size_bytes", "approx_size", "revision", "sha256", "license",
    "gated", "base_repo", "role", "bound_to", "facts", "facts_from", "unverified", "note",
)  # fmt: skip
PAIR_KEYS = (
    "target", "draft", "kind", "k", "cards", "host_ram_gib", "experimental", "note", "also", "evidence",
)  # fmt: skip
DRAFTER_KEYS = ("kind", "draft", "k")
EVIDENCE_KEYS = ("acceptance", "speedup", "plain_tps", "spec_tps", "k", "hardware", "source", "note")
DENY_KEYS = ("target", "draft", "kinds", "effect", "reason", "source")
FACT_KEYS = (*CATALOGUE_KEYS, *DIRECT_KEYS)
Tables = Mapping[str, tuple[Any, str]]
"""Name -> raw table and the file it stands in."""

K_LIMIT = 64
MAX_SIZE = 1 << 43
_MAX_FACT = 1 << 40
_MAX_LIST = 1024
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_REPO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_PACKAGE = re.compile(r"[a-z][a-z0-9_]*")
_HEX = {"revision": 40, "sha256": 64}
_UNITS = {"MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6, "GB": 10**9}
_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) (MiB|GiB|MB|GB)")
_BOOLEAN_FACTS = frozenset({"tied", "own_embedding", "own_output"})
_TEXT_FACTS = frozenset({"architecture", "embedding_type", "output_type"})


def check_name(name: str, source: str, table: str) -> None:
    """Refuse names that cannot be typed as they are.

    Raises:
        UsageError: anything but lower case letters, digits, dot, dash and underscore.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"`{source}`: [{table}] `{shortened(name)}` cannot be a name",
            hint="use lower case letters, digits, dots, dashes and underscores, at most 80",
        )


def model_row(name: str, row: object, source: str) -> tuple[ModelFile, str | None]:
    """One `[models.NAME]` and the name in its `facts_from`, whose facts the caller adds.

    Raises:
        UsageError: a bad key, type or value.
    """
    check_name(name, source, "models")
    table = Table(row, source, f"models.{name}", MODEL_KEYS)
    repo, package, path, file = _place(table)
    size, exact = _size(table)
    model = ModelFile(
        name=name,
        file=file,
        repo=repo,
        package=package,
        path=path,
        quant=table.text("quant"),
        size_bytes=size,
        size_exact=exact,
        revision=_hex(table, "revision"),
        sha256=_hex(table, "sha256"),
        license=table.text("license"),
        gated=table.flag("gated"),
        base_repo=_repo(table, "base_repo"),
        role=table.choice("role", ROLES) or "model",  # type: ignore[arg-type]
        bound_to=_repo(table, "bound_to"),
        facts=_facts(table),
        unverified=_unverified(table),
        note=table.text("note"),
    )
    if model.sha256 and repo and not model.revision:
        raise table.error("sha256", "needs `revision`: a branch moves to other bytes")
    if model.bound_to and model.role == "model":
        raise table.error("bound_to", "is for heads: give the file's `role`")
    return model, table.text("facts_from")


def _place(table: Table) -> tuple[str | None, str | None, Path | None, str]:
    places = [key for key in ("repo", "package", "path") if key in table]
    if len(places) != 1:
        said = " and ".join(f"`{key}`" for key in places)
        raise UsageError(
            f"`{table.source}`: [{table.name}] has {said or 'no place to get the file from'}",
            hint="give one of: repo with file, package with file, path",
        )
    if places == ["path"]:
        if "file" in table:
            raise table.error("file", "belongs to `repo` or `package`, not to `path`")
        path = Path(table.needed_text("path")).expanduser()
        if not path.is_absolute():
            raise table.error("path", "must be absolute")
        return None, None, path, path.name
    file = table.needed_text("file")
    pure = PurePosixPath(file)
    if pure.is_absolute() or ".." in pure.parts or str(pure) != file or set(file) & set('\\:*?"<>|\0\n'):
        raise table.error("file", "must be a path inside the repository or package")
    if not file.lower().endswith(".gguf"):
        raise table.error("file", "must end in .gguf")
    package = table.text("package")
    if package and not _PACKAGE.fullmatch(package):
        raise table.error("package", "must be the name of a Python package")
    return _repo(table, "repo"), package, None, file


def _repo(table: Table, key: str) -> str | None:
    value = table.text(key)
    if value is not None and (not _REPO.fullmatch(value) or ".." in value):
        raise table.error(key, "must be `owner/name`")
    return value


def _hex(table: Table, key: str) -> str | None:
    value = table.text(key)
    if value is not None and not re.fullmatch(rf"[0-9a-f]{{{_HEX[key]}}}", value):
        raise table.error(key, f"must be {_HEX[key]} hexadecimal digits")
    return value


def _size(table: Table) -> tuple[int | None, bool]:
    exact, rounded = table.whole("size_bytes", 1, MAX_SIZE), table.text("approx_size")
    if rounded is None:
        return exact, exact is not None
    if exact is not None:
        raise table.error("approx_size", "is pointless beside `size_bytes`")
    found = _SIZE.fullmatch(rounded)
    if not found:
        raise table.error("approx_size", 'must look like "5.3 GiB"')
    size = round(float(found[1]) * _UNITS[found[2]])
    if not 0 < size <= MAX_SIZE:
        raise table.error("approx_size", "is no size a model has")
    return size, False


def _facts(table: Table) -> dict[str, Fact]:
    facts = Table(table.data.get("facts", {}), table.source, f"{table.name}.facts", FACT_KEYS)
    return {key: _fact(facts, key, value) for key, value in facts.data.items()}


def _fact(table: Table, key: str, value: Any) -> Fact:
    if key in _BOOLEAN_FACTS:
        table.flag(key)
    elif key in _TEXT_FACTS:
        table.text(key)
    elif key == "base_models":
        table.texts(key)
    elif isinstance(value, list):
        kinds = {type(item) for item in value}
        if len(kinds) != 1 or not kinds <= {int, bool} or len(value) > _MAX_LIST:
            raise table.error(key, "must be an integer, or one value per layer")
        if any(not 0 <= item <= _MAX_FACT for item in value):
            raise table.error(key, f"must hold values between 0 and {_MAX_FACT}")
    else:
        table.whole(key, 0, _MAX_FACT)
    result: Fact = value
    return result


def _unverified(table: Table) -> tuple[str, ...]:
    fields = table.texts("unverified")
    known = {*MODEL_KEYS, *(f"facts.{key}" for key in FACT_KEYS)}
    for field in fields:
        if field not in known:
            raise table.error("unverified", f"names `{shortened(field)}`, which is no field")
    return fields


def evidence_row(row: object, source: str, pair: str) -> Evidence:
    """One measurement of a pair; raises as `model_row`."""
    table = Table(row, source, f"pairs.{pair}.evidence", EVIDENCE_KEYS)
    link = table.needed_text("source")
    if not link.startswith("https://") or set(link) & set(' \t\n<>"'):
        raise table.error("source", "must be an https address")
    return Evidence(
        source=link,
        hardware=table.needed_text("hardware"),
        acceptance=_span(table, "acceptance", 1.0),
        speedup=_span(table, "speedup", 1000.0),
        plain_tps=_span(table, "plain_tps", 1e6),
        spec_tps=_span(table, "spec_tps", 1e6),
        k=table.whole("k", 1, K_LIMIT),
        note=table.text("note"),
    )


def _span(table: Table, key: str, most: float) -> Span | None:
    value = table.data.get(key)
    if value is None:
        return None
    ends = value if isinstance(value, list) else [value, value]
    if len(ends) != 2 or any(isinstance(x, bool) or not isinstance(x, int | float) for x in ends):
        raise table.error(key, f"must be a number or [lowest, highest], not {kind_of(value)}")
    if not 0 <= ends[0] <= ends[1] <= most or not ends[1]:
        raise table.error(key, f"must be above 0 and at most {most:g}, the lower end first")
    return float(ends[0]), float(ends[1])


def deny_row(row: object, source: str, number: int) -> DenyRow:
    """One `[[deny]]`, counted from 1 for messages; raises as `model_row`."""
    table = Table(row, source, f"deny {number}", DENY_KEYS)
    effects = get_args(DenyEffect)
    for key in ("target", "draft"):
        if not table.texts(key) or not all(
            glob.strip() and glob == glob.lower() for glob in table.texts(key)
        ):
            raise table.error(key, "must be a list of globs in lower case")
    kinds = table.texts("kinds")
    for kind in kinds:
        if kind not in KINDS:
            raise table.error("kinds", f"names `{shortened(kind)}`", f"known: {', '.join(KINDS)}")
    return DenyRow(
        target=table.texts("target"),
        draft=table.texts("draft"),
        reason=table.needed_text("reason"),
        source=table.text("source"),
        kinds=kinds,  # type: ignore[arg-type]
        effect=table.choice("effect", effects) or "refuse",  # type: ignore[arg-type]
    )


def pair_table(name: str, row: object, source: str) -> Table:
    """`[pairs.NAME]` with its keys checked; its references are resolved by the caller."""
    check_name(name, source, "pairs")
    return Table(row, source, f"pairs.{name}", PAIR_KEYS)


def cards_of(table: Table) -> tuple[int, ...]:
    """The card sizes of a pair, ascending; raises as `model_row`."""
    value: Any = table.data.get("cards", [])
    if not isinstance(value, list) or any(type(card) is not int or not 1 <= card <= 1024 for card in value):
        raise table.error("cards", "must be a list of card sizes in GB")
    return tuple(sorted(set(value)))
