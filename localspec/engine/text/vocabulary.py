"""What the text layer needs to know of a model: its token ids and their spelling.

The backend implements `Vocabulary`; nothing here knows logits, files or llama.cpp. Ids must be in range:
an implementation may abort the process on others, so callers never invent one.
"""

from __future__ import annotations

from typing import Protocol


class Vocabulary(Protocol):
    """Token ids and their spelling."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def bos(self) -> int | None: ...

    @property
    def eos(self) -> int | None: ...

    @property
    def eot(self) -> int | None: ...

    @property
    def eog(self) -> frozenset[int]:
        """Every id that ends a generation by the model's metadata."""

    @property
    def add_bos(self) -> bool:
        """Whether the model expects its prompts to start with BOS."""

    @property
    def add_eos(self) -> bool: ...

    @property
    def chat_template(self) -> str | None:
        """Jinja source stored in the model, or None."""

    def piece(self, id: int, special: bool = False) -> bytes:
        """UTF-8 bytes of one token, possibly a part of a character; called once per generated token.

        A control or unknown token is `b""` unless `special`.
        """

    def tokenize(self, text: str, *, special: bool, add_special: bool) -> list[int]:
        """Ids of `text`; control tokens are recognised in it only with `special`.

        `add_special` adds BOS and EOS where the model's metadata asks for them.
        """

    def is_control(self, id: int) -> bool:
        """True for tokens that plain text must never become: control and unknown."""

    def token_text(self, id: int) -> str:
        """The token as it is written in the vocabulary, for example `<|im_start|>`."""
