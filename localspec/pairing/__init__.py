"""Does this draft belong to this target? A verdict with reasons, from two GGUF headers.

Vocabularies are compared by behaviour (texts and ids), not by label: the drafter is always fed the target's
own ids, so what counts is that an id means the same text on both sides. Learned heads are bound to the very
model they were trained on and are checked against widths, vocabulary, block numbers, names and, where stored,
a tokenizer digest. Rules: llama.cpp's `common_speculative_are_compatible` (0c1e57098), relaxed where a few
ids can be masked. Loads nothing; there is no way to force a refused pair.
"""

from __future__ import annotations

from localspec.header.kind import FileKind, draft_kind
from localspec.header.reader import Header
from localspec.pairing.heads import judge_head
from localspec.pairing.model import judge_model
from localspec.pairing.result import Difference, Status, Verdict, refuse
from localspec.pairing.tokens import tokenizer_digest

__all__ = ["Difference", "Status", "Verdict", "tokenizer_digest", "verdict"]


def verdict(target: Header, draft: Header) -> Verdict:
    """Judge a pair from two complete headers.

    The same file twice (self-draft) is compatible; a hybrid draft is too, with a remark.
    """
    target_kind, kind = draft_kind(target), draft_kind(draft)
    if target_kind not in ("model", "model with nextn"):
        return refuse(kind, f"`{target.name}` is no model that can be a target but {_called(target_kind)}")
    if kind == "other":
        return refuse(kind, f"`{draft.name}` generates no text, so it cannot draft")
    if not (target.complete and draft.complete):
        return refuse(kind, "the headers were read only in part; the tokenizer is needed for a verdict")
    if kind in ("model", "model with nextn"):
        return judge_model(target, draft, kind)
    return judge_head(target, draft, kind)


def _called(kind: FileKind) -> str:
    names = {"eagle3": "an EAGLE-3 head", "medusa": "a set of Medusa heads", "mtp": "a nextn (MTP) sidecar",
             "gemma4-assistant": "a Gemma 4 assistant", "other": "no text generator"}  # fmt: skip
    return names.get(kind, "a DFlash drafter")
