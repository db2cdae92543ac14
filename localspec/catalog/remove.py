"""Take a user's pair out of their models file, without touching what else is written there."""

from __future__ import annotations

from pathlib import Path

from localspec.atomic import replace_file
from localspec.catalog.entries import Pair
from localspec.catalog.load import build_catalog, shipped_file
from localspec.errors import LocalspecError
from localspec.locations import locations
from localspec.tomlfile import parse_toml, read_text, read_toml, without_table


def is_users(pair: Pair, user_file: Path | None = None) -> bool:
    """Whether the pair's row is in the user's models file."""
    return pair.origin == str(user_file or locations().user_models_file)


def remove_user_pair(pair: Pair, user_file: Path | None = None) -> tuple[str, ...]:
    """Delete a pair's row, and those of its models that no other row names.

    Returns:
        The tables that went, as in their headers.

    Raises:
        UsageError: the file is malformed, or the row is written in a form that cannot be taken out by itself.
        LocalspecError: the file cannot be written.
    """
    path = user_file or locations().user_models_file
    shipped = shipped_file()
    text = without_table(read_text(path), ("pairs", pair.name), str(path))
    removed = [f"pairs.{pair.name}"]
    for model in pair.files:
        rows = parse_toml(text, str(path)).get("models", {})
        if model.name not in rows:
            continue
        documents = [(str(shipped), read_toml(shipped)), (str(path), parse_toml(text, str(path)))]
        named = {one.name for other in build_catalog(documents).pairs.values() for one in other.files}
        named |= {row.get("facts_from") for row in rows.values()}
        if model.name not in named:
            text = without_table(text, ("models", model.name), str(path))
            removed.append(f"models.{model.name}")
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise LocalspecError(f"cannot write `{path}`: {error.strerror}") from error
    return tuple(removed)
