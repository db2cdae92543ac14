"""Models and pairs known without the network: `models.toml` as checked, frozen values.

Loads no model and asks nobody. `localspec.header.facts_from_catalogue` turns a row's `facts`, `size_bytes`
and `quant` into what the memory budget reads.
"""

from localspec.catalog.add import add_user_pair, model_table
from localspec.catalog.entries import DenyRow, Drafter, Evidence, ModelFile, Pair, PairKind, package_file
from localspec.catalog.load import (
    DEMO,
    Catalog,
    build_catalog,
    demo_target_path,
    load_catalog,
    names_of,
    shipped_file,
)
from localspec.catalog.names import match_file, plain, quant_label
from localspec.catalog.pins import Pin, Pins, pins_file, read_pins, remove_pin, write_pin
from localspec.catalog.remove import is_users, remove_user_pair

__all__ = [
    "DEMO",
    "Catalog",
    "DenyRow",
    "Drafter",
    "Evidence",
    "ModelFile",
    "Pair",
    "PairKind",
    "Pin",
    "Pins",
    "add_user_pair",
    "build_catalog",
    "demo_target_path",
    "is_users",
    "load_catalog",
    "match_file",
    "model_table",
    "names_of",
    "package_file",
    "pins_file",
    "plain",
    "quant_label",
    "read_pins",
    "remove_pin",
    "remove_user_pair",
    "shipped_file",
    "write_pin",
]
