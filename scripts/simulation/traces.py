"""What a drafter would have said at every position of the target's own greedy text.

From such a trace any draft length at any moment can be replayed: drafting k tokens at position p has
min(k, right[p]) of them accepted, and the text goes on at p + accepted + 1.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.engine.drafters.base import Draft, Drafter
from localspec.engine.events import Done, Notice, Token
from localspec.engine.policy import DraftRequest, Outcome, Policy
from localspec.engine.settings import LoadSettings, Request
from localspec.interfaces import PairFiles
from localspec.session import Session
from localspec.session.place import Place

DEPTH = 16
"""Tokens drafted from each position."""
BLOCKS = ("medusa", "dflash")
SUFFIX = ".json.gz"


@dataclass(frozen=True, slots=True)
class TracedReply:
    """One greedy reply; all lists are indexed by the number of tokens already in it."""

    prompt_tokens: int
    right: tuple[int, ...]
    """Leading tokens of the draft that agree with the text."""
    confidences: tuple[tuple[float, ...], ...]
    """The drafter's estimate of each drafted token; empty where it proposed nothing."""

    def __len__(self) -> int:
        return len(self.right)


@dataclass(frozen=True, slots=True)
class Trace:
    """All replies of one drafter on one target."""

    name: str
    drafter: str
    free: bool
    """The drafter costs (almost) nothing per token."""
    source: str
    """Models and prompts, in words."""
    replies: tuple[TracedReply, ...]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.replies))

    @property
    def block(self) -> bool:
        """All tokens of a draft come out of one pass."""
        return self.drafter in BLOCKS


def _on(position: int, confidence: float) -> bool:
    """Draft on. (`always` would tell drafters that nobody asks how sure they are.)"""
    return True


class Recorder:
    """A policy that drafts at every position, keeps what was said, and decodes plainly."""

    paused = False
    adapts = False

    def __init__(self) -> None:
        self.drafts: list[list[int]] = []
        self.confidences: list[list[float]] = []
        self.drafter = ""
        self.free = False

    def draft(self, request: DraftRequest) -> tuple[str, Draft | None]:
        (drafter,) = request.drafters
        draft = drafter.propose(request.history, DEPTH, _on, None)
        self.drafter, self.free = drafter.name, drafter.free
        self.drafts.append(list(draft.tokens))
        self.confidences.append([round(c, 2) for c in draft.confidences])
        return "off", None

    def observe(self, outcome: Outcome) -> list[Notice]:
        return []

    def restart(self, method: str) -> None:
        """Nothing is learned."""

    def speedup(self) -> float | None:
        return None


class RecordingSession(Session):
    """A session whose replies are plain and observed by a recorder."""

    recorder: Recorder

    def _policy(self, request: Request, drafters: list[Drafter], place: Place) -> Policy:
        self.recorder = Recorder()
        return self.recorder


def record(files: PairFiles, load: LoadSettings, requests: Sequence[Request], source: str) -> Trace:
    """Decode every request plainly, drafting at each position with the request's method."""
    session = RecordingSession(files, load, lambda event: None)
    replies = []
    try:
        for request in requests:
            ids, prompt_tokens = [], 0
            for event in session.reply(request):
                if isinstance(event, Token):
                    ids.append(event.id)
                elif isinstance(event, Done):
                    prompt_tokens = event.summary.prompt_tokens
            replies.append(traced(ids, prompt_tokens, session.recorder))
        name = f"{session.recorder.drafter} on {files.name}"
        return Trace(name, session.recorder.drafter, session.recorder.free, source, tuple(replies))
    finally:
        session.close()


def traced(ids: Sequence[int], prompt_tokens: int, recorder: Recorder) -> TracedReply:
    """Compare each draft with what followed it."""
    right = []
    for at, draft in enumerate(recorder.drafts[: len(ids)]):
        agree = zip(draft, ids[at:], strict=False)
        right.append(next((i for i, (a, b) in enumerate(agree) if a != b), min(len(draft), len(ids) - at)))
    confidences = tuple(map(tuple, recorder.confidences[: len(ids)]))
    return TracedReply(prompt_tokens, tuple(right), confidences)


def save(trace: Trace, path: Path) -> None:
    """Write a trace as compressed JSON, confidences in percent."""
    replies = [
        {
            "prompt_tokens": reply.prompt_tokens,
            "right": list(reply.right),
            "percent": [[round(100 * c) for c in row] for row in reply.confidences],
        }
        for reply in trace.replies
    ]
    head = {"name": trace.name, "drafter": trace.drafter, "free": trace.free, "source": trace.source}
    text = json.dumps({**head, "replies": replies}, separators=(",", ":")) + "\n"
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def load_trace(path: Path) -> Trace:
    """Read what `save` wrote."""
    data: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    replies = tuple(
        TracedReply(
            reply["prompt_tokens"],
            tuple(reply["right"]),
            tuple(tuple(p / 100 for p in row) for row in reply["percent"]),
        )
        for reply in data["replies"]
    )
    return Trace(data["name"], data["drafter"], data["free"], data["source"], replies)
