"""Prompts that no head or draft may see in training: the product's own workloads and more of each kind.

Their templates and sources are apart from `prompts.py`; a test compares every 8-gram.
"""

from __future__ import annotations

import functools
import re

from localspec.workloads import WORKLOADS, Workload

PHRASE = 8
"""Words in a row that no training prompt may share with a held-out one."""

_INVENTORY = """\
class Inventory:
    def __init__(self, limit):
        self.limit = limit
        self.stock = {}

    def add_part(self, part, amount):
        if self.used() + amount > self.limit:
            raise OverflowError("no room on the shelf")
        self.stock[part] = self.stock.get(part, 0) + amount

    def used(self):
        return sum(self.stock.values())
"""
_RECEIPT = (
    "Thank you for your order of three boxes of green tea and one teapot. The parcel leaves our warehouse in "
    "Hamburg on Monday and should reach you within four working days. If the pot arrives broken, send us a "
    "photo and we will replace it free of charge."
)

MORE = (
    Workload(
        "code",
        (
            "Please implement a small timer in Python that counts down and prints the remaining seconds.",
            "I need JavaScript for a button that toggles the dark mode of a page.",
            "How would you find the three longest lines of a log with Python?",
        ),
    ),
    Workload(
        "edit",
        (
            f"Change `OverflowError` to `ValueError` here and return all code.\n```python\n{_INVENTORY}```",
            f"Copy this message word for word, but replace green tea with black coffee.\n\n{_RECEIPT}",
        ),
    ),
    Workload(
        "chat",
        (
            "My cat wakes me at five every day. Any advice?",
            "Who invented the bicycle, and when did people begin to use it?",
            "Could you tell me whether it is safe to drink rain?",
        ),
    ),
    Workload(
        "json",
        (
            "Give me a JSON array with four musical instruments; keys: instrument, family, strings.",
            "Turn this into JSON with the keys who, when and where: Lena meets Karim at noon in the harbor.",
        ),
    ),
    Workload(
        "creative",
        (
            "Tell me a bedtime tale in which a snail wins a race.",
            "Compose a four-line verse on the sound of a typewriter.",
        ),
    ),
)

HELD_OUT = tuple(
    Workload(known.name, known.prompts + extra.prompts) for known, extra in zip(WORKLOADS, MORE, strict=True)
)
"""Per workload: the product's prompts first, then those written for evaluation."""


def phrases(text: str) -> set[tuple[str, ...]]:
    """Every `PHRASE` words in a row, without case and punctuation."""
    words = re.findall(r"[a-z0-9_]+", text.lower())
    return {tuple(words[i : i + PHRASE]) for i in range(len(words) - PHRASE + 1)}


@functools.cache
def held_out_phrases() -> frozenset[tuple[str, ...]]:
    """Those of all held-out prompts."""
    return frozenset(p for workload in HELD_OUT for prompt in workload.prompts for p in phrases(prompt))


def shares_a_phrase(text: str) -> bool:
    """Whether a text has a phrase of a held-out prompt."""
    return not phrases(text).isdisjoint(held_out_phrases())
