"""Runs a batch into a file or a stream, and sums it up."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from localspec.batch.lines import Item
from localspec.batch.results import Result
from localspec.batch.store import Sequencer, Store

Answer = Callable[[list[Item], Callable[[Result], None]], None]
"""Answers items and hands each result over as soon as it is there."""
Opening = Callable[[], AbstractContextManager[Answer]]
"""Makes ready what answers, which may take a while; not called when there is nothing to ask."""
OnProgress = Callable[[int, int], None]
"""Called with the number of finished items and of failed ones."""


@dataclass(slots=True)
class Tally:
    """What a batch came to. Tokens, drafts and seconds are those of this run only, without the load."""

    requests: int
    answered: int = 0
    """Results with status 200, those of earlier runs included."""
    failed: int = 0
    """Results with another status, those of earlier runs included."""
    kept: int = 0
    """Results that an earlier run had left."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    given_up: list[str] = field(default_factory=list)
    """Drafters that were switched off in one conversation or more, because they proposed only nonsense."""
    seconds: float = 0.0

    @property
    def finished(self) -> int:
        return self.answered + self.failed

    def add(self, result: Result) -> None:
        """Count a fresh result; a foreign server may leave any of the numbers out."""
        self.answered += result.ok
        self.failed += not result.ok
        usage = _mapping(result.body.get("usage"))
        self.prompt_tokens += _count(usage, "prompt_tokens")
        self.completion_tokens += _count(usage, "completion_tokens")
        choices = result.body.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            report = _mapping(_mapping(choice).get("speculation"))
            self.drafted += _count(report, "drafted")
            self.tested += _count(report, "tested")
            self.accepted += _count(report, "accepted")
            off = report.get("given_up")
            self.given_up += [m for m in (off if isinstance(off, list) else ()) if m not in self.given_up]

    def line(self) -> str:
        """One sentence for people."""
        parts = [f"{self.answered} of {self.requests} answered"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.kept:
            parts.append(f"{self.kept} kept from an earlier run")
        if self.completion_tokens and self.seconds > 0:
            rate = self.completion_tokens / self.seconds
            parts.append(f"{self.completion_tokens} tokens in {self.seconds:.1f} s ({rate:.1f} tokens/s)")
        if self.tested:
            share = 100 * self.accepted / self.tested
            parts.append(f"{self.accepted} of {self.tested} tested drafts accepted ({share:.0f} %)")
        parts += [f"the `{method}` drafter looked broken and was switched off" for method in self.given_up]
        return " · ".join(parts)


def run_into_file(
    items: list[Item], store: Store, opening: Opening, on_progress: OnProgress, *, resume: bool
) -> Tally:
    """Answer what an earlier run left open.

    The store keeps what was finished whatever ends the run.
    """
    with store:
        store.open(resume=resume)
        tally = Tally(len(items), kept=len(store.done))
        tally.failed = sum(not ok for ok in store.done.values())
        tally.answered = tally.kept - tally.failed
        open_items = [item for item in items if item.key not in store.done]
        _run(open_items, opening, store.add, tally, on_progress)
        store.finish()
    return tally


def run_into_stream(
    items: list[Item],
    write: Callable[[str], None],
    opening: Opening,
    on_progress: OnProgress,
    *,
    ordered: bool,
) -> Tally:
    """Answer everything and `write` each line as soon as its turn comes."""
    tally = Tally(len(items))
    sequencer = Sequencer(ordered=ordered)

    def keep(result: Result) -> None:
        for line in sequencer.put(result.item.index, result.line()):
            write(line)

    _run(items, opening, keep, tally, on_progress)
    return tally


def _run(
    items: list[Item], opening: Opening, keep: Callable[[Result], None], tally: Tally, on_progress: OnProgress
) -> None:
    on_progress(tally.finished, tally.failed)
    if not items:
        return
    with opening() as answer:
        began = time.monotonic()

        def take(result: Result) -> None:
            keep(result)
            tally.add(result)
            tally.seconds = time.monotonic() - began
            on_progress(tally.finished, tally.failed)

        answer(items, take)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(values: dict[str, Any], name: str) -> int:
    value = values.get(name)
    return value if isinstance(value, int) else 0
