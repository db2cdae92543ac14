"""Sessions for `demo_app`: a long reply with everything a screen can show, slowly."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from localspec.engine.events import Done, Event, Loading, Notice, Prefill, Round, Token
from localspec.engine.settings import LoadSettings
from localspec.interfaces import PairFiles
from tests.kit.scripted import ScriptedSession, summary
from tests.tui.kit import RICH_INFO

REPLY = """\
Sorting a list in place needs **no second list**. Here is *quicksort* in Python:

```python
def quicksort(items, low=0, high=None):
    high = len(items) - 1 if high is None else high
    if low < high:
        pivot = partition(items, low, high)
        quicksort(items, low, pivot - 1)
        quicksort(items, pivot + 1, high)
```

What matters:

1. `partition` moves everything smaller than the pivot to its left, and everything else to its right
2. the recursion sorts both sides
   - on average this takes *n log n* steps
   - in the worst case n²

| input | steps |
|---|---|
| random | n log n |
| sorted | n² |

> Choose the pivot at random and the worst case becomes unlikely.
"""


def script(text: str, *, tokens_per_round: int = 3) -> list[Event]:
    """The text in small tokens, two of three drafted; plain rounds in between, so that a baseline exists."""
    pieces = [text[i : i + 4] for i in range(0, len(text), 4)]
    events: list[Event] = [Prefill(done, 1200, 0) for done in (300, 600, 900, 1200)]
    at = number = 0
    accepted = 0
    while at < len(pieces):
        plain = number % 40 < 12
        chunk = pieces[at : at + (1 if plain else tokens_per_round)]
        method = "off" if plain else "draft"
        events += [Token(at + i, piece, "content", i > 0, method, number) for i, piece in enumerate(chunk)]
        drafted = 0 if plain else 4
        taken = len(chunk) - 1
        accepted += taken
        cost = 0.03 if plain else 0.042
        events.append(
            Round(method, drafted, min(drafted, taken + 1), taken, drafted + 1, 1200 + at, drafted * 0.002,
                  cost, 0.0005, len(chunk))
        )  # fmt: skip
        if number == 60:
            events.append(Notice("paused", "slower than plain here (0.93×)"))
        if number == 75:
            events.append(Notice("resumed", "drafts pay again here (1.40×)"))
        at += len(chunk)
        number += 1
    total = summary(len(pieces), prompt=1200, drafted=4 * number, accepted=accepted, rounds=number)
    return [*events, Done("stop", replace(total, decode_s=0.042 * number))]


def chatty(
    files: PairFiles, load: LoadSettings, notify: Callable[[Loading | Notice], None]
) -> ScriptedSession:
    """Loads for a moment, then answers everything with `REPLY`; DEMO_DELAY seconds pass per event."""
    for fraction in (0.2, 0.5, 0.9):
        notify(Loading("target scripted", fraction))
        time.sleep(float(os.environ.get("DEMO_LOAD", "0.1")))
    return ScriptedSession([script(REPLY)], float(os.environ.get("DEMO_DELAY", "0.004")), RICH_INFO)
