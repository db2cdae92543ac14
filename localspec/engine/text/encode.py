"""Turns rendered text into ids so that only the template can write control tokens.

Text from a user, a tool or a model may contain the spelling of a control token (`<|im_start|>`). Before
rendering it is *marked*: a noncharacter is put after the first character of every such spelling, which
survives whatever a template does to a string (trim, split, concatenation, JSON). After rendering, a marked
spelling matches no control token, and its surroundings are tokenised as plain text. Text without such
spellings is untouched and tokenised in one call, exactly as without marking.

A *marked text* is a `str` that may contain `MARK`. Knows nothing of templates or chats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from localspec.engine.text.vocabulary import Vocabulary

MARK = "\ufdd0"
"""A Unicode noncharacter: never meant for interchange, so a text loses nothing when it is replaced."""
_NO_TEXT = re.compile("[\ufdd0\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` without `MARK` and without halves of characters, which no tokenizer takes."""
    return _NO_TEXT.sub("\ufffd", text)


def unmark(marked: str) -> str:
    """The text as a reader sees it."""
    return marked.replace(MARK, "")


def common_start(a: str, b: str) -> int:
    """Length of the longest common prefix of two texts."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def as_json(value: Any, change: Callable[[str], str] = str) -> Any:
    """`value` rebuilt of plain JSON types, strings changed; what is no JSON becomes its type's name.

    Objects with methods of their own must not reach a template (transformers does the same).
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return change(str.__str__(value))
    if isinstance(value, Mapping):
        return {as_json(key, change): as_json(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item, change) for item in value]
    return f"<{type(value).__name__}>"


class ControlTexts:
    """The spellings that the tokenizer turns into control tokens, and where they occur."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(text for text in texts if len(text) > 1 and not text.isspace())
        self._lengths: dict[str, tuple[int, ...]] = {}
        for text in self._texts:
            self._lengths.setdefault(text[0], ())
        for first in self._lengths:
            lengths = {len(text) for text in self._texts if text[0] == first}
            self._lengths[first] = tuple(sorted(lengths, reverse=True))
        firsts = "".join(re.escape(first) for first in self._lengths)
        self._first = re.compile(f"[{firsts}]" if firsts else "(?!)")
        spelled = [text for text in self._texts if not text.isalnum()]
        cuts = [(text, cut) for text in spelled for cut in range(1, len(text))]
        self._heads = frozenset(text[:cut] for text, cut in cuts)
        self._tails = frozenset(text[cut:] for text, cut in cuts)
        self.longest = max(map(len, self._texts), default=0)

    def __contains__(self, text: str) -> bool:
        return text in self._texts

    def at(self, text: str, start: int) -> str | None:
        """The longest control text at `start`."""
        for length in self._lengths.get(text[start : start + 1], ()):
            candidate = text[start : start + length]
            if candidate in self._texts:
                return candidate
        return None

    def find_all(self, text: str) -> Iterator[tuple[int, int]]:
        """(start, end) of the control texts in `text`, leftmost and longest, not overlapping."""
        start = 0
        while (first := self._first.search(text, start)) is not None:
            found = self.at(text, first.start())
            start = first.start() + (len(found) if found else 1)
            if found:
                yield first.start(), start

    def cut(self, text: str, at: int) -> int:
        """`at`, or the start of the control text that a cut there would divide."""
        starts = range(max(0, at - self.longest + 1), at)
        return next((start for start in starts if start + len(self.at(text, start) or "") > at), at)

    def mark(self, text: str) -> str:
        """`text` such that neither it nor two texts joined end to end spell a control token."""
        text = clean(text)
        breaks = {
            first.start() + 1
            for first in self._first.finditer(text)
            if self.at(text, first.start()) is not None
        }
        breaks.update(self._joints(text))
        if not breaks:
            return text
        edges = [0, *sorted(breaks), len(text)]
        return MARK.join(text[a:b] for a, b in pairwise(edges))

    def _joints(self, text: str) -> Iterator[int]:
        """Where to break a text whose ends could be completed to a control text, spaces aside."""
        start, end = len(text) - len(text.lstrip()), len(text.rstrip())
        if start == end:
            return
        head = text[start : start + self.longest]
        if any(head[:length] in self._tails for length in range(1, len(head) + 1)):
            yield start
        for tail in range(max(start, end - self.longest), end):
            if text[tail:end] in self._heads:
                yield tail + 1
                return


class Encoder:
    """A vocabulary with its control texts: tokenises marked text and spells ids as marked text."""

    def __init__(self, vocab: Vocabulary) -> None:
        self.vocab = vocab
        self.controls = ControlTexts(vocab.token_text(i) for i in range(vocab.n_vocab) if vocab.is_control(i))
        sample = vocab.tokenize("a", special=False, add_special=False)
        self.adds_space = bool(sample) and vocab.piece(sample[0]).startswith(b" ")
        """SentencePiece style: a space is put before text that starts a prompt or follows a control token."""

    def mark(self, value: Any) -> Any:
        """`value` as plain JSON types with every string in it marked."""
        return as_json(value, self.controls.mark)

    def tokenize(self, marked: str, *, after_text: bool = False) -> list[int]:
        """Ids of a marked text; no BOS or EOS is added.

        `after_text`: the ids will follow an ordinary token rather than a control token or nothing.
        """
        if not marked:
            return []
        if after_text and self.adds_space and self.controls.at(marked, 0) is None:
            return self._tokenize_middle(marked)
        if MARK not in marked:
            return self.vocab.tokenize(marked, special=True, add_special=False)
        ids: list[int] = []
        for text, plain in self._parts(marked):
            ids += self.vocab.tokenize(text, special=not plain, add_special=False)
        return ids

    def _tokenize_middle(self, marked: str) -> list[int]:
        # Tokenised behind a newline, whose ids are then dropped, the text gets no space of its own.
        newline = self.tokenize("\n")
        ids = self.tokenize("\n" + marked)
        return ids[len(newline) :] if ids[: len(newline)] == newline else self.tokenize(marked)

    def _parts(self, marked: str) -> Iterator[tuple[str, bool]]:
        """Runs of (text, plain): plain ones lie between control tokens and held a mark."""
        done = run = 0
        for start, end in [*self.controls.find_all(marked), (len(marked), len(marked))]:
            between = marked[run:start]
            if MARK in between:
                if run > done:
                    yield marked[done:run], False
                yield unmark(between), True
                done = start
            run = end
        if len(marked) > done:
            yield marked[done:], False

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each id, control tokens spelled out."""
        return [self.vocab.piece(i, True) for i in ids]

    def spell(self, ids: Sequence[int]) -> str:
        """The marked text of generated ids: control tokens as the template writes them, the rest marked."""
        out: list[str] = []
        run: list[bytes] = []
        for id in ids:
            if self.vocab.is_control(id):
                out += (self._decode(run), self.vocab.token_text(id))
                run = []
            else:
                run.append(self.vocab.piece(id))
        return "".join([*out, self._decode(run)])

    def _decode(self, run: list[bytes]) -> str:
        return self.controls.mark(b"".join(run).decode("utf-8", "replace")) if run else ""
