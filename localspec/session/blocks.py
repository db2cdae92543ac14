"""Reads from a DFlash file's header how its blocks are drafted; loads nothing."""

from __future__ import annotations

from localspec.engine.drafters.head_context import BlockFormat
from localspec.errors import PairingError
from localspec.header import Header, draft_kind
from localspec.pairing.tokens import integer

DEFAULT_BLOCK = 16
"""Block size of a file that names none."""


def block_format(header: Header, mask: int | None) -> BlockFormat:
    """How a DFlash file drafts, by its keys and tensors.

    Args:
        mask: the mask token as llama.cpp reads it, which it cannot from files without a vocabulary.

    Raises:
        PairingError: the file names no mask token, or has blocks of nothing but the newest token.
    """
    kind, names = draft_kind(header), {tensor.name for tensor in header.tensors}
    if mask is None:
        mask = integer(header, "tokenizer.ggml.mask_token_id")
    if mask is None:
        raise PairingError(f"`{header.name}` names no mask token, which a block drafter fills in")
    block_size = integer(header, "dflash.block_size") or DEFAULT_BLOCK
    if block_size < 2:
        raise PairingError(f"`{header.name}` drafts in blocks of {block_size} token, which holds no draft")
    candidates = integer(header, "dflash.selector_top_k") or 0
    return BlockFormat(
        mask=mask,
        block_size=block_size,
        causal=header.get("dflash.attention.causal") is True,
        from_anchor=kind == "dspark" and header.get("dflash.sample_from_anchor") is not False,
        confidence_head=kind == "dspark" and "conf_proj.weight" in names,
        candidates=candidates if kind == "dflash2" else 0,
    )
