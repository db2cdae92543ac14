"""Pairing of learned heads: each is bound to the very model it was trained on."""

from __future__ import annotations

from localspec.header.architecture import LAYER_INPUTS
from localspec.header.kind import FileKind
from localspec.header.reader import Header, printable
from localspec.pairing.model import differing
from localspec.pairing.result import Verdict, refuse
from localspec.pairing.tokens import n_vocab, names, own, plain_name, texts, tokenizer_digest, word

HIDDEN_STATES = frozenset({
    "bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "gemma4", "glm-dsa", "glm4moe",
    "glm5-next", "gpt-oss", "hy_v3", "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe",
    "qwen3next", "step35",
})  # fmt: skip
"""Targets that emit the hidden state before the output matrix, which nextn heads read."""


def judge_head(target: Header, draft: Header, kind: FileKind) -> Verdict:
    """Judge an EAGLE-3, DFlash, nextn or Medusa file."""
    reasons = [*_width_conflicts(target, draft, kind), *_vocabulary_conflicts(target, draft, kind)]
    native = True
    if kind in ("eagle3", "dflash", "dflash2", "dspark"):
        reasons += _tap_conflicts(target, draft, kind)
        native = target.get("general.architecture") in LAYER_INPUTS
    if kind in ("mtp", "gemma4-assistant"):
        reasons += _nextn_conflicts(target, draft, kind)
    if reasons:
        return refuse(kind, *reasons)
    warnings = list(_head_warnings(target, draft, kind))
    if not native:
        warnings.append(
            f"llama.cpp does not expose the inner states of `{word(target, 'general.architecture')}`; "
            "a callback reads them, which is slower on a GPU"
        )
    return Verdict("compatible", kind, (_head_reason(target, draft, kind),), tuple(warnings), native=native)


def _head_reason(target: Header, draft: Header, kind: FileKind) -> str:
    return f"the head's widths, vocabulary and blocks fit `{target.get('general.name') or target.name}`"


def _width_conflicts(target: Header, draft: Header, kind: FileKind) -> list[str]:
    width = own(target, "embedding_length")
    keys = {
        "eagle3": "target_hidden_size",
        "medusa": "embedding_length",
        "gemma4-assistant": "embedding_length_out",
    }
    named = own(draft, keys.get(kind, "embedding_length"))
    inner = own(draft, "embedding_length")
    conflicts = []
    if named is not None and named != width:
        conflicts.append(f"the head expects hidden states of width {named}, the target has {width}")
    tensors = {tensor.name for tensor in draft.tensors}
    borrows = kind == "eagle3" and not {"token_embd.weight", "output.weight"} <= tensors
    if borrows and inner != width and named == width:
        conflicts.append(
            f"the head borrows the target's embedding, but its width is {inner} instead of {width}"
        )
    fusion = next((t for t in draft.tensors if t.name == "fc.weight"), None)
    taps = _taps(draft)
    if fusion and taps and width and fusion.shape[0] != len(taps) * width:
        conflicts.append(
            f"the head reads {fusion.shape[0]} features, but {len(taps)} blocks give {len(taps) * width}"
        )
    return conflicts


def _vocabulary_conflicts(target: Header, draft: Header, kind: FileKind) -> list[str]:
    ours, theirs = n_vocab(target), n_vocab(draft)
    if theirs and ours and theirs != ours:
        return [f"the head was trained on a vocabulary of {theirs} tokens, the target has {ours}"]
    bound = f"{draft.get('general.architecture')}.target."
    architecture, ours_is = draft.get(bound + "architecture"), target.get("general.architecture")
    if architecture and architecture != ours_is:
        trained = f"the head was trained on a `{printable(architecture)}` model"
        return [f"{trained}, the target is `{printable(ours_is)}`"]
    stored = draft.get(bound + "tokenizer_digest")
    if stored and stored != tokenizer_digest(target):
        return ["the head was trained with another tokenizer: its stored digest differs from the target's"]
    left, right = texts(target), texts(draft)
    if left and right and left.raw != right.raw:
        ids, shown = differing(left, right, min(len(left), len(right)))
        if ids:
            return [f"the head's tokenizer differs from the target's in {len(ids)} ids ({shown[0]})"]
    return []


def _taps(draft: Header) -> tuple[int, ...]:
    taps = draft.get(f"{draft.get('general.architecture')}.target_layers")
    return tuple(n for n in taps if isinstance(n, int)) if isinstance(taps, tuple) else ()


def _tap_conflicts(target: Header, draft: Header, kind: FileKind) -> list[str]:
    taps = _taps(draft)
    if not taps or (kind == "eagle3" and len(taps) != 3):
        return [
            f"the head names {len(taps)} blocks of the target to read"
            + (" instead of 3" if kind == "eagle3" else "")
        ]
    n_layer = (own(target, "block_count") or 0) - (own(target, "nextn_predict_layers") or 0)
    beyond = [n for n in taps if not 0 <= n <= n_layer]
    if beyond:
        return [f"the head reads block {beyond[0]}, but the target has {n_layer}"]
    architecture = target.get("general.architecture")
    if n_layer in taps and architecture not in HIDDEN_STATES:
        return [f"the head reads the final hidden state, which `{printable(architecture)}` does not emit"]
    return []


def _nextn_conflicts(target: Header, draft: Header, kind: FileKind) -> list[str]:
    ours, theirs = target.get("general.architecture"), draft.get("general.architecture")
    if kind == "gemma4-assistant":
        return (
            []
            if ours == "gemma4"
            else [f"a Gemma 4 assistant reads the cache of a Gemma 4 target, not of `{printable(ours)}`"]
        )
    if ours != theirs:
        return [f"the nextn blocks are of a `{printable(theirs)}` model, the target is `{printable(ours)}`"]
    trunk = own(draft, "block_count"), own(draft, "nextn_predict_layers")
    n_layer = (own(target, "block_count") or 0) - (own(target, "nextn_predict_layers") or 0)
    if trunk[0] is not None and trunk[1] is not None and trunk[0] not in (trunk[1], n_layer + trunk[1]):
        return [f"the nextn blocks follow block {trunk[0] - trunk[1]}, but the target has {n_layer}"]
    return []


def _head_warnings(target: Header, draft: Header, kind: FileKind) -> list[str]:
    """A head follows one checkpoint; names are all there is to tell a fine-tune from its base."""
    stored = draft.get(f"{draft.get('general.architecture')}.target.name")
    ours = target.get("general.name")
    if isinstance(stored, str) and isinstance(ours, str):
        if plain_name(stored) != plain_name(ours):
            trained = f"the head was trained on `{printable(stored)}`, the target is `{printable(ours)}`"
            return [f"{trained}: acceptance will suffer"]
        return []
    known, theirs = names(target), names(draft, head=True)
    if known and theirs and not known & theirs:
        return [
            f"by name (`{word(draft, 'general.name')}`) the head may belong to another checkpoint than "
            f"`{printable(ours or target.name)}`: a fine-tune breaks a learned head"
        ]
    return []
