"""Save a user's pair in their models file, without touching what is written there.

Rows are appended as text, so comments and order stay; the result is checked as a whole before the file
is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from localspec.atomic import replace_file
from localspec.catalog.entries import ModelFile, Pair, PairKind
from localspec.catalog.load import build_catalog, shipped_file
from localspec.errors import LocalspecError, UsageError
from localspec.locations import locations
from localspec.tomlfile import key_toml, parse_toml, read_text, read_toml, to_toml


def add_user_pair(
    name: str,
    *,
    target: ModelFile | str,
    kind: PairKind,
    draft: ModelFile | str | None = None,
    k: int | None = None,
    note: str | None = None,
    user_file: Path | None = None,
) -> Pair:
    """Append a pair, and the models it names that are new, to the user's models file.

    Args:
        target, draft: a new model, or the name of a known one.
        user_file: instead of `locations().user_models_file`.

    Returns:
        The pair as the catalogue now has it.

    Raises:
        UsageError: a name is taken or bad, or the combination is known to be bad; nothing is written.
        LocalspecError: the file cannot be written.
    """
    path = user_file or locations().user_models_file
    text = read_text(path)
    own = parse_toml(text, str(path))
    rows: list[tuple[str, str, Mapping[str, object]]] = []
    chosen: dict[str, object] = {}
    for key, model in (("target", target), ("draft", draft)):
        if isinstance(model, ModelFile):
            if not any(row[1] == model.name for row in rows):
                rows.append(("models", model.name, model_table(model)))
            chosen[key] = model.name
        elif model is not None:
            chosen[key] = model
    chosen |= {"kind": kind} | ({"k": k} if k is not None else {}) | ({"note": note} if note else {})
    rows.append(("pairs", name, chosen))
    for table, key, _ in rows:
        held = own.get(table)
        if isinstance(held, dict) and key in held:
            raise UsageError(
                f"`{path}` already has [{table}.{key}]", hint="choose another name, or edit the file"
            )
    added = "\n".join(_source(*row) for row in rows)
    text = f"{text.rstrip()}\n\n{added}" if text.strip() else added
    shipped = shipped_file()
    catalog = build_catalog([(str(shipped), read_toml(shipped)), (str(path), parse_toml(text, str(path)))])
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise LocalspecError(f"cannot write `{path}`: {error.strerror}") from error
    return catalog.pair(name)


def model_table(model: ModelFile) -> dict[str, object]:
    """The `[models.NAME]` table that reads back as `model`."""
    rounded = model.size_bytes is not None and not model.size_exact
    table: dict[str, object | None] = {
        "repo": model.repo,
        "package": model.package,
        "path": str(model.path) if model.path else None,
        "file": None if model.path else model.file,
        "quant": model.quant,
        "size_bytes": model.size_bytes if model.size_exact else None,
        "approx_size": f"{(model.size_bytes or 0) / 2**20:.3f} MiB" if rounded else None,
        "revision": model.revision,
        "sha256": model.sha256,
        "license": model.license,
        "gated": model.gated,
        "base_repo": model.base_repo,
        "role": None if model.role == "model" else model.role,
        "bound_to": model.bound_to,
        "unverified": list(model.unverified) or None,
        "note": model.note,
        "facts": dict(model.facts) or None,
    }
    return {key: value for key, value in table.items() if value is not None}


def _source(table: str, name: str, row: Mapping[str, object]) -> str:
    lines = [
        f"[{table}.{key_toml(name)}]",
        *(f"{key_toml(key)} = {to_toml(value)}" for key, value in row.items()),
    ]
    return "\n".join(lines) + "\n"
