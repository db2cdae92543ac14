"""What pairing reads from a header: integers, token texts, names."""

from __future__ import annotations

import hashlib
import re

from localspec.header.reader import Header, Strings, printable


def integer(header: Header, key: str) -> int | None:
    value = header.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def own(header: Header, key: str) -> int | None:
    return integer(header, f"{header.get('general.architecture')}.{key}")


def word(header: Header, key: str) -> str:
    """A text from the header as it may stand in a message."""
    return printable(header.get(key))


def texts(header: Header) -> Strings | None:
    tokens = header.get("tokenizer.ggml.tokens")
    return tokens if isinstance(tokens, Strings) else None


def n_vocab(header: Header) -> int:
    tokens = texts(header)
    return len(tokens) if tokens else own(header, "vocab_size") or 0


def tokenizer_digest(header: Header) -> str | None:
    """SHA-256 of the token texts in id order, each followed by a zero byte, in hex; None without tokens."""
    tokens = header.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Strings):
        return None
    return hashlib.sha256(b"".join(text + b"\0" for text in tokens.texts())).hexdigest()


HEAD_SUFFIX = re.compile(r"[-_ .]*(eagle-?3|dflash\d*|dspark|mtp|nextn|medusa|assistant|speculator).*$")
FILE_SUFFIX = re.compile(r"[-_ .](gguf|instruct|it|chat|base|hf|bf16|f16|i?q\d\w*|ud)$")


def names(header: Header, *, head: bool = False) -> set[str]:
    """What a model is known by: its name and its base models, normalised for comparison.

    Args:
        head: the file is a learned head, whose own name says so after the target's.
    """
    found = [header.get("general.name"), header.get("general.basename")]
    count = integer(header, "general.base_model.count") or 0
    for n in range(min(count, 8)):
        found += [header.get(f"general.base_model.{n}.name"), header.get(f"general.base_model.{n}.repo_url")]
    plain = {plain_name(text, head=head) for text in found if isinstance(text, str)}
    return plain - {""}


def plain_name(text: str, *, head: bool = False) -> str:
    """A model name without owner, file and (for heads) head suffixes, separators and case."""
    text = text.rstrip("/").rsplit("/", 1)[-1].lower()
    if head:
        text = HEAD_SUFFIX.sub("", text)
    while FILE_SUFFIX.search(text):
        text = FILE_SUFFIX.sub("", text)
    return re.sub(r"[^a-z0-9]+", "", text)


_GENERIC = {"instruct", "chat", "base", "draft", "coder", "model", "gguf", "the", "preview", "mini", "small"}


def _words(header: Header) -> set[str]:
    """Words of the file's own name that could name a family: `llama`, `qwen`, …"""
    name = header.get("general.name")
    words = set(re.findall(r"[a-z]{3,}", name.lower())) if isinstance(name, str) else set()
    return words - {
        "instruct",
        "chat",
        "base",
        "draft",
        "coder",
        "model",
        "gguf",
        "the",
        "preview",
        "mini",
        "small",
    }


def other_family(target: Header, draft: Header) -> str | None:
    """A warning when the names have no word in common."""
    ours, theirs = _words(target), _words(draft)
    if ours and theirs and not ours & theirs:
        return (
            f"the draft is called `{word(draft, 'general.name')}`, a name of another family than the target's"
        )
    return None
