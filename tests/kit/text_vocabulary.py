"""A small vocabulary for tests of text: bytes, some longer pieces, control and user-defined tokens."""

from __future__ import annotations

from collections.abc import Sequence

WORDS = (
    "Hello",
    " world",
    "ing",
    " the",
    "th",
    "\n\n",
    "  ",
    "<",
    ">",
    "|>",
    "</",
    "user",
    "assistant",
    "\n",
)
CHATML_CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


class FakeVocabulary:
    """Implements `localspec.engine.text.vocabulary.Vocabulary`; tokenises by the longest piece that fits.

    `adds_space` behaves like SentencePiece: text after a control token or at the start gets a space.
    """

    def __init__(
        self,
        controls: Sequence[str] = CHATML_CONTROLS,
        *,
        defined: Sequence[str] = ("<think>", "</think>"),
        words: Sequence[str] = WORDS,
        bos: str | None = None,
        eos: str | None = "<|im_end|>",
        add_bos: bool = False,
        adds_space: bool = False,
        chat_template: str | None = None,
    ) -> None:
        plain = [bytes([byte]) for byte in range(256)] + [word.encode() for word in words]
        self._pieces = [*plain, *(text.encode() for text in (*defined, *controls))]
        self._control_from = len(self._pieces) - len(controls)
        self._defined_from = self._control_from - len(defined)
        self._adds_space = adds_space
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        self.n_vocab = len(self._pieces)
        self.bos = self.id(bos) if bos else None
        self.eos = self.id(eos) if eos in controls else None
        self.eot: int | None = None
        self.eog = frozenset(self.id(text) for text in (eos, "<|endoftext|>") if text in controls)
        self.add_bos = add_bos
        self.add_eos = False
        self.chat_template = chat_template

    def id(self, text: str) -> int:
        return self._ids[text.encode()]

    def piece(self, id: int, special: bool = False) -> bytes:
        return b"" if id >= self._control_from and not special else self._pieces[id]

    def is_control(self, id: int) -> bool:
        return id >= self._control_from

    def token_text(self, id: int) -> str:
        return self._pieces[id].decode("utf-8", "replace")

    def tokenize(self, text: str, *, special: bool, add_special: bool) -> list[int]:
        ids = [self.bos] if add_special and self.add_bos and self.bos is not None else []
        start_at = self._defined_from
        marks = [
            p for i, p in enumerate(self._pieces[start_at:], start_at) if special or not self.is_control(i)
        ]
        marks.sort(key=len, reverse=True)
        data, run = text.encode(), bytearray()
        at = 0
        while at < len(data):
            mark = next((m for m in marks if data.startswith(m, at)), None)
            if mark is None:
                run.append(data[at])
                at += 1
            else:
                ids += [*self._words(bytes(run)), self._ids[mark]]
                run.clear()
                at += len(mark)
        return ids + self._words(bytes(run))

    def _words(self, run: bytes) -> list[int]:
        if not run:
            return []
        run = b" " + run if self._adds_space else run
        ids: list[int] = []
        while run:
            size = next(n for n in range(min(len(run), 16), 0, -1) if self._plain(run[:n]))
            ids.append(self._ids[run[:size]])
            run = run[size:]
        return ids

    def _plain(self, piece: bytes) -> bool:
        return self._ids.get(piece, self.n_vocab) < self._defined_from
