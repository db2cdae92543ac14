"""Drafts by copying: the text itself says what came after the last few tokens before.

Prompt-lookup decoding (Saxena 2023) with an incremental index and the longest, most recent match.
"""

from __future__ import annotations

import time

import numpy as np

from localspec.engine.drafters.base import Draft, DraftSampling, History, Ids, More, Tokens

KEY = 2
"""Tokens of an index key, and the shortest match that drafts."""
_CANDIDATES = 12
"""Most recent places compared per lookup; bounds the cost on repetitive text."""
_LONGEST = 32
"""Matches are not measured beyond this length."""


def _confidence(length: int) -> float:
    """A match's own estimate by its length: 0.5 for two tokens, 0.94 for sixteen."""
    return length / (length + 1.5) if length > KEY else 0.5


class NgramDrafter:
    """Copies what followed the longest earlier occurrence of the current suffix.

    The index covers the prompt, the reply so far and, as a second text, the request's `prediction`.
    """

    name = "ngram"
    samples = False
    free = True

    def __init__(self, prediction: Ids | None = None) -> None:
        self._prediction = prediction if prediction is not None and len(prediction) > KEY else None
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._indexed = 0
        self._text: list[int] = []
        self._offset = 0

    def reusable(self, prompt: Ids, n: int) -> int:
        return n

    def rewind(self, n: int) -> None:
        pass

    def reset(self) -> None:
        """What it copies from is the text itself, which `begin` indexes anew."""

    def begin(self, history: History) -> None:
        self._places.clear()
        self._text = []
        self._offset = 0
        if self._prediction is not None:
            # The prediction is an older text in front of the history: its matches count as least recent.
            self._text = self._prediction.tolist()
            self._offset = len(self._text)
        self._indexed = KEY
        self._extend(history)

    def observe(self, tokens: Tokens, start: int) -> None:
        pass

    def commit(self, history: History, accepted: int) -> None:
        self._extend(history)

    def close(self) -> None:
        self._places.clear()

    def _extend(self, history: History) -> None:
        """Index the tokens that are new since the last call. A key's place is the index after it."""
        text = self._text
        text.extend(history.ids[len(text) - self._offset :].tolist())
        seam = self._offset
        for end in range(self._indexed, len(text)):
            if seam and end - KEY < seam < end:
                continue  # a key across the seam between prediction and history is no text
            self._places.setdefault(tuple(text[end - KEY : end]), []).append(end)
        self._indexed = max(self._indexed, len(text))

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        started = time.perf_counter()
        self._extend(history)
        place, length = self._longest_match()
        draft = Draft([], [])
        if place is not None:
            limit = self._offset if place < self._offset else len(self._text)
            for i, id in enumerate(self._text[place : min(place + k, limit)]):
                confidence = _confidence(length + i)
                if not more(i, confidence):
                    break
                draft.tokens.append(id)
                draft.confidences.append(confidence)
        draft.draft_s = time.perf_counter() - started
        return draft

    def _longest_match(self) -> tuple[int | None, int]:
        text = self._text
        places = self._places.get(tuple(text[-KEY:]), ())
        best, best_length, n = None, KEY - 1, len(text)
        for place in reversed(places[-_CANDIDATES:]):
            length = KEY
            while (
                length < _LONGEST and place - length > 0 and text[place - length - 1] == text[n - length - 1]
            ):
                length += 1
            if length > best_length:
                best, best_length = place, length
                if length >= _LONGEST:
                    break
        return best, best_length


def ids_of(values: list[int]) -> Ids:
    """A list as the id array the engine passes around."""
    return np.array(values, np.int32)
