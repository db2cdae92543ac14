"""`localspec verify`: proof on this machine that what speculation emits is the target's own text.

Each method answers the benchmark's prompts with a fixed draft length, so that it never pauses, until enough
of its drafts were judged. Then the session is closed, the target is loaded once more, and every emitted
token is scored one row at a time by `teacher`, which shares no code with the loop. A method whose drafts
were not judged often enough has proved nothing and fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from localspec.engine.settings import (
    LoadSettings,
    Message,
    Method,
    Request,
    SamplingSettings,
    SpeculationSettings,
    VerifyRule,
)
from localspec.errors import UsageError
from localspec.interfaces import SessionInfo
from localspec.measuring import run
from localspec.output import Output, table
from localspec.session import Session
from localspec.teacher import MAX_FLIPS, MAX_REGRET, MIN_KS_P, GreedyCheck, SampledCheck, Teacher
from localspec.workloads import WORKLOADS

SAMPLING = SamplingSettings(temperature=0.8, top_k=40, top_p=0.95, min_p=0.0)
"""What the sampled replies are drawn with."""
K = 4
"""Draft length unless another one is asked for."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much evidence a method must produce, in each of the two checks."""

    tested: int
    """Drafts the target judged."""
    sampled_tokens: int
    reply_tokens: int
    """Length of one reply."""
    replies: int
    """Replies after which a check that lacks evidence gives up."""


FULL = Amount(tested=200, sampled_tokens=4000, reply_tokens=256, replies=60)
QUICK = Amount(tested=40, sampled_tokens=400, reply_tokens=96, replies=30)
"""A look, not a proof: a bias this small a sample cannot show passes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One reply to be scored."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    seed: int


@dataclass(slots=True)
class Replies:
    """What one method answered in one of the checks."""

    samples: list[Sample] = field(default_factory=list)
    drafted: int = 0
    tested: int = 0
    accepted: int = 0

    @property
    def tokens(self) -> int:
        return sum(len(sample.reply) for sample in self.samples)

    def lacks(self, amount: Amount, tokens: int) -> str | None:
        """Why this is no evidence, or None."""
        if self.tested < amount.tested:
            judged = f"{self.tested} drafts were judged in {len(self.samples)} replies"
            return f"only {judged}, {amount.tested} needed"
        if self.tokens < tokens:
            return f"only {self.tokens} tokens were emitted, {tokens} needed"
        return None


@dataclass(frozen=True, slots=True)
class MethodReplies:
    """What one method answered, greedy and sampled."""

    method: Method
    k: int
    greedy: Replies
    sampled: Replies


@dataclass(frozen=True, slots=True)
class Verdict:
    """One method, judged."""

    replies: MethodReplies
    greedy: GreedyCheck
    sampled: SampledCheck
    missing: tuple[str, ...]
    """What evidence is missing, a sentence each."""

    @property
    def passed(self) -> bool:
        return self.greedy.passed and self.sampled.passed and not self.missing


def methods_of(info: SessionInfo, asked: Method) -> list[Method]:
    """The methods to verify: the asked one, or all the pair has.

    Raises:
        UsageError: `off` drafts nothing, or the pair lacks the method.
    """
    available: list[Method] = [m for m in info.methods if m not in ("auto", "off")]
    if asked == "auto":
        return available
    if asked == "off":
        raise UsageError("`--method off` drafts nothing, so there is nothing to verify")
    if asked not in available:
        reason = info.off_reason or "it has no companion of this kind"
        raise UsageError(f"`{info.pair}` cannot draft with `{asked}`: {reason}")
    return [asked]


def collect(
    session: Session, methods: Sequence[Method], k: int, amount: Amount, out: Output
) -> list[MethodReplies]:
    """Let every method answer until its drafts were judged often enough, or the prompts are used up."""
    collected = []
    for method in methods:
        speculation = SpeculationSettings(method=method, k=k)
        greedy = Request(sampling=SamplingSettings(temperature=0.0), speculation=speculation)
        sampled = Request(sampling=SAMPLING, speculation=speculation, ignore_eog=True)
        replies = MethodReplies(
            method,
            k,
            answers(session, greedy, amount, 0, out, f"{method}, greedy"),
            answers(session, sampled, amount, amount.sampled_tokens, out, f"{method}, sampled"),
        )
        collected.append(replies)
    return collected


def answers(
    session: Session, request: Request, amount: Amount, tokens: int, out: Output, label: str
) -> Replies:
    """Replies of one method until `amount` and `tokens` are reached.

    Sampled ones go on past the end of generation (dropping the token that ends a reply would bias the
    others) and take turns between the two verdicts, match and rejection.
    """
    replies = Replies()
    with out.progress(f"{label}: drafts judged", amount.tested) as progress:
        for number, prompt in zip(range(amount.replies), prompts(), strict=False):
            rule: VerifyRule = "match" if number % 2 else "rejection"
            asked = replace(
                request,
                messages=(Message("user", prompt),),
                max_tokens=amount.reply_tokens,
                sampling=replace(request.sampling, seed=number),
                speculation=replace(request.speculation, verify=rule),
            )
            ids = session.prompt_ids(asked)
            done = run(session, asked)
            replies.samples.append(Sample(tuple(ids), tuple(done.ids), number))
            replies.drafted += done.counts.drafted
            replies.tested += done.counts.tested
            replies.accepted += done.counts.accepted
            progress.update(replies.tested)
            if replies.lacks(amount, tokens) is None:
                break
    return replies


def prompts() -> Iterator[str]:
    """The benchmark's prompts, one of each workload in turn; later rounds are worded differently."""
    for variant in count(1):
        for column in range(min(len(workload.prompts) for workload in WORKLOADS)):
            for workload in WORKLOADS:
                text = workload.prompts[column]
                yield text if variant == 1 else f"{text}\nThis is request number {variant}."


def examine(
    collected: Sequence[MethodReplies], target: Path, load: LoadSettings, amount: Amount, out: Output
) -> list[Verdict]:
    """Score every emitted token with the target alone, one row at a time.

    Args:
        load: the session's effective settings; the session itself should be closed by now, because the
            target is loaded once more.
    """
    teacher = Teacher(target, load)
    try:
        verdicts = []
        for replies in collected:
            label = f"{replies.method}: scored one row at a time"
            total = replies.greedy.tokens + replies.sampled.tokens
            with out.progress(label, total, "tokens") as progress:
                regrets: list[float] = []
                values: list[tuple[float, float]] = []
                for sample in replies.greedy.samples:
                    regrets += teacher.greedy(sample.prompt, sample.reply)
                    progress.update(len(regrets))
                for sample in replies.sampled.samples:
                    values += teacher.sampled(sample.prompt, sample.reply, SAMPLING, sample.seed)
                    progress.update(len(regrets) + len(values))
            missing = [
                f"{name}: {reason}"
                for name, part, tokens in (
                    ("greedy", replies.greedy, 0),
                    ("sampled", replies.sampled, amount.sampled_tokens),
                )
                if (reason := part.lacks(amount, tokens)) is not None
            ]
            check = GreedyCheck(tuple(regrets)), SampledCheck(tuple(values))
            verdicts.append(Verdict(replies, *check, tuple(missing)))
        return verdicts
    finally:
        teacher.close()


def report_of(info: SessionInfo, verdicts: Sequence[Verdict], *, quick: bool) -> dict[str, Any]:
    """The verdicts as one JSON object."""
    return {
        "pair": info.pair,
        "target": info.target,
        "build": info.build,
        "quick": quick,
        "passed": all(verdict.passed for verdict in verdicts) and bool(verdicts),
        "limits": {"regret": MAX_REGRET, "flips_share": MAX_FLIPS, "ks_p": MIN_KS_P},
        "methods": [_method_report(verdict) for verdict in verdicts],
    }


def _method_report(verdict: Verdict) -> dict[str, Any]:
    replies = verdict.replies
    greedy, sampled = verdict.greedy, verdict.sampled
    return {
        "method": replies.method,
        "k": replies.k,
        "drafted": replies.greedy.drafted + replies.sampled.drafted,
        "tested": replies.greedy.tested + replies.sampled.tested,
        "accepted": replies.greedy.accepted + replies.sampled.accepted,
        "passed": verdict.passed,
        "evidence": {
            "greedy": _counts(replies.greedy)
            | {"passed": greedy.passed, "worst_regret": greedy.worst, "flips": greedy.flips},
            "sampled": _counts(replies.sampled)
            | {"passed": sampled.passed, "ks_p": min(sampled.p_values), "sampling": SAMPLING},
            "missing": list(verdict.missing),
        },
    }


def _counts(replies: Replies) -> dict[str, Any]:
    return {
        "replies": len(replies.samples),
        "tokens": replies.tokens,
        "tested": replies.tested,
        "accepted": replies.accepted,
    }


def human_report(report: dict[str, Any], verdicts: Sequence[Verdict]) -> str:
    """A row per check, what is missing, and the verdict in words."""
    rows = []
    for verdict in verdicts:
        name, replies = verdict.replies.method, verdict.replies
        for kind, part, check in (
            ("greedy", replies.greedy, verdict.greedy),
            ("sampled", replies.sampled, verdict.sampled),
        ):
            held = "held" if check.passed else "BROKEN"
            rows.append([name, kind, f"{part.accepted} of {part.tested}", held, str(check)])
    lines = [f"{report['target']} · {report['build']}", ""]
    lines += [table(["method", "text", "accepted of tested", "", "evidence"], rows), ""]
    for verdict in verdicts:
        lines += [f"{verdict.replies.method}: no proof, {reason}" for reason in verdict.missing]
    lines.append(
        f"limits: regret ≤ {MAX_REGRET} logits everywhere, argmax flips ≤ {100 * MAX_FLIPS:.0f} %, "
        f"KS p > {MIN_KS_P}"
    )
    if report["quick"]:
        lines.append("quick: fewer tokens than a proof needs; run it without --quick to be sure")
    good = "every method emits the target's own text"
    failed = ", ".join(v.replies.method for v in verdicts if not v.passed)
    lines.append(good if report["passed"] else f"FAILED: {failed}")
    return "\n".join(lines)
