"""GGUF headers: read from any range source, boiled down to facts, classified by contents."""

from localspec.header.catalogue_facts import CATALOGUE_KEYS, DIRECT_KEYS, facts_from_catalogue
from localspec.header.facts import Layer, ModelFacts
from localspec.header.fingerprint import fingerprint
from localspec.header.header_facts import facts_from_header
from localspec.header.kind import FileKind, draft_kind
from localspec.header.reader import Header, Strings, Tensor, read_header, read_sources
from localspec.header.source import FileSource, RangeSource, shard_paths

__all__ = [
    "CATALOGUE_KEYS",
    "DIRECT_KEYS",
    "FileKind",
    "FileSource",
    "Header",
    "Layer",
    "ModelFacts",
    "RangeSource",
    "Strings",
    "Tensor",
    "draft_kind",
    "facts_from_catalogue",
    "facts_from_header",
    "fingerprint",
    "read_header",
    "read_sources",
    "shard_paths",
]
