"""Pairing of a plain draft model: do its ids mean the target's texts?"""

from __future__ import annotations

import re

from localspec.header.architecture import FULL_ATTENTION_INTERVAL, RECURRENT, SNAPSHOTS
from localspec.header.kind import FileKind
from localspec.header.reader import Header, Strings, printable
from localspec.pairing.result import SHOWN, Difference, Status, Verdict, refuse
from localspec.pairing.tokens import integer, other_family, own, texts

MASK_SHARE = 100
"""At most one id in this many may differ, …"""
MASK_MOST = 256
"""… and no more than this; a handful is allowed in tiny vocabularies."""
MASK_LEAST = 4
_PADDING = re.compile(
    rb"^(\[PAD\d*\]|<unused\d*>|<\|?(pad|reserved|extra|dummy|unused)[^>]*>|)$", re.IGNORECASE
)
_UNUSED = 5  # token type of llama.cpp


def judge_model(target: Header, draft: Header, kind: FileKind) -> Verdict:
    """Judge a model that would draft by itself."""
    ours, theirs = texts(target), texts(draft)
    if ours is None or theirs is None:
        name = target.name if ours is None else draft.name
        return refuse(kind, f"`{name}` carries no tokenizer, so its tokens cannot be compared")
    n_shared = min(len(ours), len(theirs))
    ids, shown = differing(ours, theirs, n_shared)
    allowed = min(max(n_shared // MASK_SHARE, MASK_LEAST), MASK_MOST)
    if len(ids) > allowed:
        listed = "; ".join(map(str, shown))
        return refuse(
            kind,
            f"the vocabularies differ in {len(ids)} of {n_shared} common ids ({listed})",
            differences=shown,
        )
    tail = _real_tail(target, ours, n_shared)
    if tail > allowed:
        return refuse(
            kind,
            f"the target has {len(ours)} tokens, the draft {len(theirs)}: {tail} of the rest are real ones",
        )
    special = _special_conflict(target, draft)
    if special:
        return refuse(kind, special, differences=shown)
    reasons = _plain_reasons(target, draft, len(ours), len(theirs), ids, shown)
    status: Status = "compatible with mask" if ids else "compatible"
    warnings = tuple(_plain_warnings(target, draft))
    return Verdict(status, kind, tuple(reasons), warnings, tuple(ids), n_shared, shown)


def differing(ours: Strings, theirs: Strings, count: int) -> tuple[list[int], tuple[Difference, ...]]:
    """Ids below `count` whose texts differ, and the first of them spelled out."""
    if ours.raw == theirs.raw:
        return [], ()
    left, right = ours.texts(), theirs.texts()
    pairs = zip(left[:count], right[:count], strict=True)
    ids = [n for n, (a, b) in enumerate(pairs) if a != b]
    return ids, tuple(Difference(n, _readable(left[n]), _readable(right[n])) for n in ids[:SHOWN])


def _readable(text: bytes) -> str:
    return printable(text.decode("utf-8", errors="replace"))


def _real_tail(target: Header, tokens: Strings, count: int) -> int:
    """Tokens of the target at ids ≥ `count` that are no padding."""
    if len(tokens) <= count:
        return 0
    kinds = target.get("tokenizer.ggml.token_type")
    kinds = kinds if isinstance(kinds, tuple) and len(kinds) == len(tokens) else ()
    tail = enumerate(tokens.texts()[count:], start=count)
    return sum(not (_PADDING.match(text) or (kinds and kinds[n] == _UNUSED)) for n, text in tail)


def _adds_bos(header: Header) -> bool:
    flag = header.get("tokenizer.ggml.add_bos_token")
    if isinstance(flag, bool):
        return flag
    pre = str(header.get("tokenizer.ggml.pre") or "")
    return header.get("tokenizer.ggml.model") == "llama" or pre.startswith(
        ("llama3", "llama-v3", "llama-bpe")
    )


def _special_conflict(target: Header, draft: Header) -> str | None:
    """BOS and EOS must agree where the target's tokenizer adds them to every prompt."""
    for name, added in (
        ("bos", _adds_bos(target)),
        ("eos", target.get("tokenizer.ggml.add_eos_token") is True),
    ):
        ours, theirs = (integer(h, f"tokenizer.ggml.{name}_token_id") for h in (target, draft))
        if added and ours is not None and theirs is not None and ours != theirs:
            return f"the target starts every prompt with {name.upper()} id {ours}, the draft with id {theirs}"
    return None


def _plain_reasons(
    target: Header,
    draft: Header,
    n_ours: int,
    n_theirs: int,
    ids: list[int],
    shown: tuple[Difference, ...],
) -> list[str]:
    if target.metadata is draft.metadata or (
        target.name == draft.name and target.size_bytes == draft.size_bytes
    ):
        reasons = ["the target drafts for itself: correct, but no faster"]
    else:
        reasons = [f"the first {min(n_ours, n_theirs)} ids mean the same texts"]
    if ids:
        listed = "; ".join(map(str, shown))
        reasons = [f"{len(ids)} ids mean different texts and are never proposed ({listed})"]
    if n_theirs > n_ours:
        reasons.append(f"{n_theirs - n_ours} ids of the draft lie beyond the target's and are never proposed")
    elif n_theirs < n_ours:
        reasons.append(f"the target has {n_ours - n_theirs} padding ids more than the draft")
    for key in ("model", "pre"):
        ours, theirs = (h.get(f"tokenizer.ggml.{key}") for h in (target, draft))
        if ours != theirs:
            labels = f"`{printable(ours)}` and `{printable(theirs)}`"
            reasons.append(f"the tokenizers are labelled {labels}, but their tokens agree")
    return reasons


def _plain_warnings(target: Header, draft: Header) -> list[str]:
    warnings = []
    ours, theirs = (integer(h, "tokenizer.ggml.eos_token_id") for h in (target, draft))
    if ours is not None and theirs is not None and ours != theirs:
        warnings.append(
            f"the draft ends replies with id {theirs}, the target with id {ours}: expect a lost last draft"
        )
    family = other_family(target, draft)
    if family:
        warnings.append(family)
    if _is_recurrent(draft):
        warnings.append(
            "the draft is a hybrid model: it takes a checkpoint before every draft, which costs time"
        )
    if _is_recurrent(target) and target.get("general.architecture") not in SNAPSHOTS:
        warnings.append(
            "the target cannot keep recurrent states per token: every rejection re-reads a checkpoint"
        )
    return warnings


def _is_recurrent(header: Header) -> bool:
    architecture = str(header.get("general.architecture"))
    if architecture in RECURRENT or architecture in FULL_ATTENTION_INTERVAL:
        return True
    return own(header, "ssm.state_size") is not None or own(header, "shortconv.l_cache") is not None
