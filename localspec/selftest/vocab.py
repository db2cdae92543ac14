"""The vocabularies of the tiny models: byte-level BPE that llama.cpp tokenizes for real.

`TEXT` covers every byte, so any text survives text → ids → text. Its specials, chat template and merges
are chosen for the faults they can show: a template that writes BOS beside a tokenizer that adds it, an
end-of-turn id that is not EOS, an emoji that splits 2+2 bytes (😀) and one that splits 1+3 (🚀).
`EIGHT` has eight ids, few enough to enumerate distributions exactly.

It knows nothing of weights or files beyond the tokenizer keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gguf

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Token types as `tokenizer.ggml.token_type` stores them."""

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML behind a BOS, which the tokenizer of `TEXT` adds as well."""

THINKING_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{{ message.content.split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ message.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""Opens a reasoning block and strips the reasoning of earlier turns."""

_SPECIALS = (
    "<|pad|>",
    "<|bos|>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|mask|>",
    "<think>",
    "</think>",
)
_WORDS = (
    " the", " and", " of", " to", " in", " is", "ing", " not", "er", " that",
    " def", "return", "self", "    ", "\n\n", " =", "():", "é", "中",
)  # fmt: skip
_EMOJI_MERGES = ("9a80", "9f9a80", "f09f", "9880")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token texts, types and the ids with a meaning; None where the file names none."""

    tokens: tuple[str, ...]
    """Texts as the file stores them: byte-level BPE letters, specials verbatim."""
    types: tuple[int, ...]
    merges: tuple[str, ...]
    bos: int | None
    eos: int
    eot: int | None
    mask: int | None
    readable: tuple[int, ...]
    """Ids that are whole, printable text: a reply made of them is valid UTF-8 without specials."""
    add_bos: bool = True
    template: str | None = CHAT_TEMPLATE
    pre: str = "gpt-2"

    def __len__(self) -> int:
        return len(self.tokens)

    def padded(self, count: int) -> Vocabulary:
        """The same vocabulary with `count` unused ids behind it."""
        tail = tuple(f"[PAD{len(self) + i}]" for i in range(count))
        return replace(self, tokens=self.tokens + tail, types=self.types + (UNUSED,) * count)

    def with_eot_moved(self) -> Vocabulary:
        """The same vocabulary with the end-of-turn and mask tokens changed round."""
        if self.eot is None or self.mask is None:
            raise ValueError("only a vocabulary with an end-of-turn and a mask token can move one")
        tokens = list(self.tokens)
        tokens[self.eot], tokens[self.mask] = tokens[self.mask], tokens[self.eot]
        return replace(self, tokens=tuple(tokens), eot=self.mask, mask=self.eot)

    def write(self, writer: gguf.GGUFWriter) -> None:
        """Add the tokenizer keys."""
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        writer.add_token_merges(self.merges)
        writer.add_eos_token_id(self.eos)
        writer.add_add_bos_token(self.add_bos)
        if self.bos is not None:
            writer.add_bos_token_id(self.bos)
        if self.eot is not None:
            writer.add_eot_token_id(self.eot)
        if self.mask is not None:
            writer.add_mask_token_id(self.mask)
        if self.template is not None:
            writer.add_chat_template(self.template)


def byte_letters() -> tuple[str, ...]:
    """GPT-2's letter of each byte 0…255: printable Latin-1 stays, the rest moves to U+0100 and up.

    Source: `bytes_to_unicode` of openai/gpt-2's encoder.
    """
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return tuple(chr(byte) if byte in kept else chr(next(moved)) for byte in range(256))


def _merges(words: tuple[str, ...]) -> dict[str, str]:
    """Merged text → merge rule, built left to right so that each word becomes one token."""
    letters = byte_letters()
    rules: dict[str, str] = {}
    for code in _EMOJI_MERGES:
        text = "".join(letters[byte] for byte in bytes.fromhex(code))
        head = 2 if text[:2] in rules else 1
        rules[text] = f"{text[:head]} {text[head:]}"
    for word in words:
        text = "".join(letters[byte] for byte in word.encode())
        for end in range(2, len(text) + 1):
            rules.setdefault(text[:end], f"{text[: end - 1]} {text[end - 1]}")
    return rules


def _text_vocabulary() -> Vocabulary:
    letters = byte_letters()
    merges = _merges(_WORDS)
    tokens = (*_SPECIALS, *letters, *merges)
    types = (CONTROL,) * 6 + (USER_DEFINED,) * 2 + (NORMAL,) * (len(tokens) - len(_SPECIALS))
    back = {letter: byte for byte, letter in enumerate(letters)}
    readable = []
    for token_id in range(len(_SPECIALS), len(tokens)):
        text = bytes(back[letter] for letter in tokens[token_id]).decode(errors="replace")
        if all((char.isprintable() and char != "\ufffd") or char == "\n" for char in text):
            readable.append(token_id)
    return Vocabulary(
        tokens, types, tuple(merges.values()), bos=1, eos=2, eot=4, mask=5, readable=tuple(readable)
    )  # fmt: skip


TEXT = _text_vocabulary()
EIGHT = Vocabulary(
    tokens=("<|bos|>", "<|endoftext|>", "a", "b", "c", "d", "e", "ab"),
    types=(CONTROL, CONTROL) + (NORMAL,) * 6,
    merges=("a b",),
    bos=0,
    eos=1,
    eot=None,
    mask=None,
    readable=tuple(range(8)),
    add_bos=False,
    template=None,
)
