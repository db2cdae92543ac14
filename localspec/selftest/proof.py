"""PLAIN, SELF, ALIEN and ROLLBACK on tiny models: does this build, on this machine, speculate rightly?

    PLAIN     the reply without speculation, from the same session: what the others are compared with
    SELF      the target drafts for itself: nearly everything is accepted, the text is PLAIN's
    ALIEN     a model with other weights drafts: nearly everything is rejected, the text is PLAIN's
    ROLLBACK  n-grams draft for a target with a recurrent state: rejected rows leave no trace in it

A session is built anew for each check and each repetition, because a build can be wrong as a whole.
Where texts part at a position at which the target's two best tokens are a tie, kernels for one row and
for several may choose differently; that is not a fault. It knows how to ask a session, not how to open one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localspec.engine.events import Done, Token
from localspec.engine.settings import (
    LoadSettings,
    Method,
    Request,
    SamplingSettings,
    SpeculationSettings,
)
from localspec.errors import LocalspecError
from localspec.interfaces import Companion, PairFiles, SessionLike
from localspec.selftest.variants import write

Opener = Callable[[PairFiles, LoadSettings], SessionLike]
CheckName = Literal["self", "alien", "rollback"]

TOKENS = 64
TIE = 0.05
"""Difference of two log-probabilities below which either token is the target's choice."""
SELF_ACCEPTED = 0.95
ALIEN_ACCEPTED = 0.2
_PROMPT = "bddcdcacdabbbacaaaadacbc"
"""Letters that the recurrent model's text is made of, so that n-grams find something to draft."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check of one build."""

    check: CheckName
    build: int
    """0-based repetition."""
    passed: bool
    detail: str
    """What was seen, in one sentence."""


def prove(open_pair: Opener, folder: Path, load: LoadSettings, *, builds: int = 1) -> Iterator[Finding]:
    """Run every check `builds` times, yielding each finding as it is made; never raises for a failure.

    Args:
        open_pair: opens a session; a worker's, where a native abort must not end this process.
        folder: where the tiny models are written, or lie already.
        load: device and threads to prove; types of the KV cache are set to F32, flash attention off.
    """
    exact = LoadSettings(
        n_ctx=256, kv=("f32", "f32"), draft_kv=("f32", "f32"), flash_attn="off", threads=1,
        gpu_layers=load.gpu_layers, draft_gpu_layers=load.draft_gpu_layers, device=load.device,
        draft_device=load.draft_device, rpc=load.rpc,
    )  # fmt: skip
    checks: tuple[tuple[CheckName, str, str | None], ...] = (
        ("self", "syn", "syn"), ("alien", "syn", "syn-b"), ("rollback", "syn-hyb-few", None),
    )  # fmt: skip
    for build in range(builds):
        for check, target, draft in checks:
            companions = (Companion("draft", write(draft, folder)),) if draft else ()
            files = PairFiles(f"selftest-{check}", write(target, folder), companions)
            try:
                session = open_pair(files, exact)
                try:
                    passed, detail = _check(session, check)
                finally:
                    session.close()
            except LocalspecError as error:
                passed, detail = False, error.message
            yield Finding(check, build, passed, detail)


def _check(session: SessionLike, check: CheckName) -> tuple[bool, str]:
    plain, plain_end = _reply(session, "off")
    tokens, end = _reply(session, "ngram" if check == "rollback" else "draft")
    for done in (plain_end, end):
        if done.reason == "error":
            return False, done.error or "the reply ended with an error"
    summary = end.summary
    seen = f"{summary.accepted} of {summary.tested} tested draft tokens accepted"
    fault = _difference(plain, tokens)
    if fault is not None:
        return False, f"{fault}; {seen}"
    share = summary.accept_per_tested
    if share is None:
        return False, "nothing was drafted"
    if check == "self" and share < SELF_ACCEPTED:
        return False, f"only {seen} although the target drafts for itself"
    if check == "alien" and share > ALIEN_ACCEPTED:
        return False, f"{seen} of a draft that knows nothing of the target"
    return True, f"text as without speculation, {seen}"


def _reply(session: SessionLike, method: Method) -> tuple[list[Token], Done]:
    request = Request(
        prompt=_PROMPT,
        sampling=SamplingSettings(temperature=0.0),
        speculation=SpeculationSettings(method=method, k=None if method == "off" else 4),
        max_tokens=TOKENS,
        logprobs=2,
        ignore_eog=True,
    )
    events = list(session.reply(request))
    last = events[-1]
    assert isinstance(last, Done), "a reply ends with Done"
    return [event for event in events if isinstance(event, Token)], last


def _difference(plain: Sequence[Token], tokens: Sequence[Token]) -> str | None:
    """What is wrong with `tokens`, or None; behind a tie the texts may go on differently."""
    for i, (expected, got) in enumerate(zip(plain, tokens, strict=False)):
        if expected.id != got.id:
            best, second = expected.top[:2]
            gap = best[1] - second[1]
            return None if gap <= TIE else f"token {i + 1} is not the target's choice by {gap:.2f}"
    if len(plain) != len(tokens):
        return f"{len(tokens)} tokens where plain decoding gives {len(plain)}"
    return None
