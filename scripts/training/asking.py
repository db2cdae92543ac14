"""Questions that the target itself makes up, to be answered like the written prompts.

Given the start of a user's turn and nothing else, an instruction-tuned model writes what users ask it
("Magpie", Xu et al. 2024). They range wider than a list of templates, and a head that learned from
templates alone is better on unseen prompts of theirs than on held-out ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from localspec.engine.drafters.base import common_prefix
from localspec.engine.settings import Message
from localspec.engine.text.template import ChatTemplate
from training.generate import Crowd, Writer
from training.heldout import shares_a_phrase

TEMPERATURES = (1.0, 0.8)
LONGEST, SHORTEST = 120, 4
"""Tokens of a question."""
TRIES = 4
"""Attempts per question that is wanted: a model without instruction tuning never ends a turn."""


class Questions:
    """A file of questions, one JSON string a line; attempts that gave none are `null`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str | None] = []
        if path.exists():
            whole = path.read_text(encoding="utf-8").rpartition("\n")[0]
            self._lines = [json.loads(line) for line in whole.splitlines()]

    def texts(self) -> list[str]:
        """Different ones in the order in which they were asked."""
        return list(dict.fromkeys(text for text in self._lines if text))

    def ask(self, crowd: Crowd, wanted: int, seed: int, progress: Callable[[int], None]) -> None:
        """Let the target write until there are `wanted`; goes on where the file ends.

        A batch of attempts is written when all of it is done, so that a stopped run resumes at its start.
        """
        opening = opening_ids(crowd)
        while len(self.texts()) < wanted and len(self._lines) < TRIES * wanted:
            first = len(self._lines)
            batch = range(first, first + crowd.size)
            writers = (Writer(i, opening, seed, LONGEST, TEMPERATURES) for i in batch)
            found = dict(_finished(crowd, writers))
            self._lines += [found[i] for i in batch]
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(found[i]) + "\n" for i in batch)
            progress(len(self.texts()))


def opening_ids(crowd: Crowd) -> list[int]:
    """A conversation up to where the user's first words stand."""
    template = ChatTemplate(crowd.model.vocabulary)
    one, other = (template.render((Message("user", text),)).ids for text in ("A", "1"))
    return one[: common_prefix(one, other)]


def _finished(crowd: Crowd, writers: Iterator[Writer]) -> Iterator[tuple[int, str | None]]:
    for sample, _ in crowd.write(writers):
        if sample is not None:
            written = sample.tokens[sample.n_prompt :].tolist()
            text = b"".join(map(crowd.model.vocabulary.piece, written)).decode("utf-8", "replace").strip()
            # The token that ends a turn is not among those written; a reply that was cut has them all.
            ended = SHORTEST <= len(written) < LONGEST - 1
            fits = ended and "\ufffd" not in text and not shares_a_phrase(text)
            yield sample.index, text if fits and text else None
