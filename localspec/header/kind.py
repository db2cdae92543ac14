"""What a GGUF file is to a speculating engine, read from its contents and never from its name."""

from __future__ import annotations

from typing import Literal

from localspec.header.reader import Header

FileKind = Literal[
    "model",
    "model with nextn",
    "eagle3",
    "dflash",
    "dflash2",
    "dspark",
    "mtp",
    "gemma4-assistant",
    "medusa",
    "other",
]
"""`model` can be a target or a plain draft; `mtp` is a sidecar that holds nextn blocks only;
`other` is a GGUF that generates no text (projector, adapter, embedding model, vocabulary)."""

_NO_TEXT = frozenset(
    [
        "clip",
        "bert",
        "modern-bert",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "eurobert",
        "gemma-embedding",
        "t5encoder",
        "wavtokenizer-dec",
    ]
)


def draft_kind(header: Header) -> FileKind:
    """Classify a file by its architecture and tensors; needs a complete header for the finer kinds."""
    architecture = str(header.get("general.architecture") or "")
    names = {tensor.name for tensor in header.tensors}
    if header.get("general.type") in ("adapter", "mmproj") or architecture in _NO_TEXT:
        return "other"
    if architecture in ("medusa", "eagle3", "gemma4-assistant"):
        return architecture  # type: ignore[return-value]
    if architecture == "dflash":
        if "markov_w1.weight" in names:
            return "dspark"
        return (
            "dflash2"
            if "selector_hidden.weight" in names or header.get("dflash.selector_top_k")
            else "dflash"
        )
    nextn = header.get(f"{architecture}.nextn_predict_layers")
    blocks = header.get(f"{architecture}.block_count")
    if isinstance(nextn, int) and nextn > 0 and isinstance(blocks, int):
        if not header.complete:
            return "model with nextn"
        present = any(".nextn.eh_proj." in name for name in names)
        if not any(name.startswith("blk.0.") for name in names) or nextn == blocks:
            return "mtp"
        return "model with nextn" if present else "model"
    return "model" if not header.complete or names else "other"
