"""Plays a policy over a trace on a machine; the policy sees what a real round would have shown it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from localspec.engine.adapt import AdaptivePolicy
from localspec.engine.drafters.base import Draft, DraftSampling, History, Ids, More, Tokens
from localspec.engine.policy import DraftRequest, FixedPolicy, Outcome, Policy
from simulation.profiles import Profile
from simulation.traces import DEPTH, Trace, TracedReply

LEARNING = 200
"""Tokens of leading replies that are not counted."""
_RIGHT, _WRONG = 7, 0


@dataclass(slots=True)
class TraceDrafter:
    """Says what the trace recorded at the current position."""

    name: str
    free: bool
    profile: Profile
    block: bool = False
    reply: TracedReply = field(default_factory=lambda: TracedReply(0, (), ()))
    at: int = 0
    samples: bool = False

    def reusable(self, prompt: Ids, n: int) -> int:
        return n

    def rewind(self, n: int) -> None: ...
    def reset(self) -> None: ...
    def begin(self, history: History) -> None: ...
    def observe(self, tokens: Tokens, start: int) -> None: ...
    def commit(self, history: History, accepted: int) -> None: ...
    def close(self) -> None: ...

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        draft = Draft([], [])
        for i, confidence in enumerate(self.reply.confidences[self.at][:k]):
            if not more(i, confidence):
                break
            draft.tokens.append(_RIGHT if i < self.reply.right[self.at] else _WRONG)
            draft.confidences.append(confidence)
        draft.draft_s = self.profile.draft_s(len(draft), free=self.free, block=self.block)
        return draft


@dataclass(slots=True)
class Played:
    """Tokens and seconds of the counted part."""

    tokens: int = 0
    seconds: float = 0.0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def counted(trace: Trace) -> int:
    """Index of the first reply that counts: the ones before it hold the learning phase."""
    seen = 0
    for index, reply in enumerate(trace.replies):
        if seen >= LEARNING:
            return index
        seen += len(reply)
    raise ValueError(f"the trace `{trace.name}` is shorter than the learning phase")


def play(trace: Trace, profile: Profile, policy: Policy) -> Played:
    """Decode every reply of the trace under `policy`."""
    drafter = TraceDrafter(trace.drafter, trace.free, profile, trace.block)
    first, total = counted(trace), Played()
    for index, reply in enumerate(trace.replies):
        drafter.reply = reply
        if isinstance(policy, AdaptivePolicy):
            policy.begin()
        part = _play_reply(drafter, profile, policy)
        if index >= first:
            total.tokens += part.tokens
            total.seconds += part.seconds
            total.drafted += part.drafted
            total.tested += part.tested
            total.accepted += part.accepted
    return total


def _play_reply(drafter: TraceDrafter, profile: Profile, policy: Policy) -> Played:
    reply, played = drafter.reply, Played()
    history = History(np.zeros(1, np.int32), 1)
    at = 0
    while at < len(reply):
        drafter.at, n_past = at, reply.prompt_tokens + at
        limit = min(DEPTH, len(reply) - at - 1)
        name, draft = policy.draft(DraftRequest([drafter], history, limit, n_past))
        made = draft or Draft([], [])
        drafted = len(made)
        accepted = min(drafted, reply.right[at])
        tested = min(accepted + 1, drafted)
        verify_s = profile.verify_s(drafted + 1, n_past)
        proposing = made.draft_s if drafted or not drafter.free else profile.free_draft_s
        other_s = profile.overhead_s + profile.undo_s(drafted, accepted, n_past)
        policy.observe(
            Outcome(
                method=name, confidences=tuple(made.confidences), tested=tested, accepted=accepted,
                committed=(_RIGHT,) * (accepted + 1), rows=drafted + 1, n_past=n_past,
                draft_s=made.draft_s, catchup_s=0.0, catchup_rows=1 if drafted else 0,
                verify_s=verify_s, other_s=other_s,
            )
        )  # fmt: skip
        at += accepted + 1
        played.tokens += accepted + 1
        played.seconds += proposing + verify_s + other_s
        played.drafted += drafted
        played.tested += tested
        played.accepted += accepted
    return played


def adaptive(trace: Trace, profile: Profile) -> Played:
    """The policy as a session starts it."""
    return play(trace, profile, AdaptivePolicy(profile.calibrated()))


def best_fixed(trace: Trace, profile: Profile) -> tuple[int, Played]:
    """The fixed draft length, 0 included, that decodes this trace fastest: chosen with hindsight."""
    runs = {k: play(trace, profile, FixedPolicy(k)) for k in range(DEPTH + 1)}
    k = max(runs, key=lambda k: runs[k].rate)
    return k, runs[k]


def clairvoyant(trace: Trace, profile: Profile) -> float:
    """Tokens per second of whoever knows in advance what will be accepted: a bound no policy reaches."""
    tokens, seconds = 0, 0.0
    for reply in trace.replies[counted(trace) :]:
        tokens += len(reply)
        seconds += _least_time(reply, trace, profile)
    return tokens / seconds


def _least_time(reply: TracedReply, trace: Trace, profile: Profile) -> float:
    """Dynamic programming from the end of the reply."""
    least = [0.0] * (len(reply) + 1)
    for at in range(len(reply) - 1, -1, -1):
        n_past = reply.prompt_tokens + at
        most = min(DEPTH, len(reply) - at - 1, len(reply.confidences[at]))
        least[at] = min(
            profile.verify_s(k + 1, n_past)
            + profile.overhead_s
            + (profile.draft_s(k, free=trace.free, block=trace.block) if k else 0.0)
            + profile.undo_s(k, min(k, reply.right[at]), n_past)
            + least[at + min(k, reply.right[at]) + 1]
            for k in range(most + 1)
        )
    return least[0]


def chance_trace(acceptance: float, replies: int = 10, length: int = 400, seed: int = 1) -> Trace:
    """A drafter whose every token is right with one probability, independently, and that does not know it."""
    random_ = random.Random(seed)

    def right(left: int) -> int:
        n = 0
        while n < min(DEPTH, left) and random_.random() < acceptance:
            n += 1
        return n

    made = [
        TracedReply(64, tuple(right(length - at) for at in range(length)), ((0.5,) * DEPTH,) * length)
        for _ in range(replies)
    ]
    return Trace(f"chance {acceptance:.2f}", "draft", False, "random numbers", tuple(made))


def blind_trace(
    acceptance: float, *, free: bool, replies: int = 10, length: int = 300, seed: int = 1
) -> Trace:
    """A drafter of one acceptance whose confidence is a random number: it says nothing.

    Whether a token is right belongs to the text, not to where a draft began, as with real drafters.
    """
    random_ = random.Random(seed)

    def reply() -> TracedReply:
        tokens = [(random_.random() < acceptance, round(random_.random(), 2)) for _ in range(length + DEPTH)]
        right = [next((n for n in range(DEPTH) if not tokens[at + n][0]), DEPTH) for at in range(length)]
        return TracedReply(
            64,
            tuple(min(n, length - at) for at, n in enumerate(right)),
            tuple(tuple(c for _, c in tokens[at : at + DEPTH]) for at in range(length)),
        )

    drafter = "ngram" if free else "draft"
    made = tuple(reply() for _ in range(replies))
    return Trace(f"blind {drafter} {acceptance:.2f}", drafter, free, "random numbers", made)


def acceptance_for(rate: float, k: int, profile: Profile) -> float | None:
    """Per-token acceptance at which a fixed `k` reaches `rate` tokens per second, or None when never.

    Expected tokens of a round are (1 - a^(k+1)) / (1 - a): Leviathan et al. 2023, equation 1.
    """
    round_s = profile.verify_s(k + 1, 0) + profile.draft_s(k, free=False) + profile.overhead_s

    def reached(a: float) -> float:
        return sum(a**i for i in range(k + 1)) / round_s

    if reached(1.0) < rate:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) < rate else (low, middle)
    return high
