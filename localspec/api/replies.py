"""Typed replies of the OpenAI-compatible API, with the speculation report that every choice carries.

Models are dumped with `exclude_unset`: a field that is passed as None appears as null, one that is left
out does not appear.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from pydantic import BaseModel, ConfigDict

from localspec.engine.events import Notice, NoticeKind
from localspec.engine.stats import Summary

FinishReason = Literal["stop", "length", "tool_calls"]


class _Reply(BaseModel):
    # Replies are checked by the type checker and built in hot loops: no coercion is wanted.
    model_config = ConfigDict(extra="forbid", strict=True)


class PromptTokensDetails(_Reply):
    cached_tokens: int
    """Prompt tokens found in the cache of an earlier request."""


class CompletionTokensDetails(_Reply):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    """Reply tokens that the n-gram drafter proposed and the target accepted; 0 without `prediction`."""
    rejected_prediction_tokens: int
    """Drafts of the n-gram drafter that did not enter the reply; 0 without `prediction`."""


class Usage(_Reply):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class NoticeItem(_Reply):
    kind: NoticeKind
    reason: str


class SpeculationReport(_Reply):
    """What speculation did for one choice. Times are seconds, rates tokens per second."""

    methods: list[str]
    """Drafters that proposed at least once."""
    rounds: int
    shared_rounds: int
    """Rounds that shared the target's pass with other requests."""
    drafted: int
    tested: int
    """Drafts the target judged; one after the first rejection of a round is not tested."""
    accepted: int
    accepted_per_tested: float | None
    accepted_per_drafted: float | None
    tokens_per_round: float | None
    tested_at: list[int]
    accepted_at: list[int]
    accepted_lengths: list[int]
    prefill_s: float
    prefill_tps: float | None
    decode_s: float
    decode_tps: float | None
    draft_s: float
    verify_s: float
    first_token_s: float | None
    plain_tokens: int
    plain_s: float
    speedup: float | None
    """Measured speculative rate / measured plain rate; null while the plain rate is unknown."""
    paused_at_token: int | None
    off_reason: str | None
    """Why nothing was drafted, when speculation was off for this choice."""
    tuned: str | None
    """The setting of `localspec bench --tune` that `auto` started from."""
    resets: list[str]
    """Drafters that were reset because nothing of what they proposed made sense."""
    given_up: list[str]
    """Drafters that a reset did not help; off for this conversation."""
    notices: list[NoticeItem]


def speculation_report(
    summary: Summary, notices: list[Notice], off_reason: str | None, tuned: str | None = None
) -> SpeculationReport:
    """The report of one finished choice; the last `off` notice beats the pair's own `off_reason`."""
    reasons = [n.reason for n in notices if n.kind == "off"]
    return SpeculationReport(
        methods=list(summary.methods),
        rounds=summary.rounds,
        shared_rounds=summary.shared_rounds,
        drafted=summary.drafted,
        tested=summary.tested,
        accepted=summary.accepted,
        accepted_per_tested=summary.accept_per_tested,
        accepted_per_drafted=summary.accept_per_drafted,
        tokens_per_round=summary.tokens_per_round,
        tested_at=list(summary.tested_at),
        accepted_at=list(summary.accepted_at),
        accepted_lengths=list(summary.accepted_lengths),
        prefill_s=summary.prefill_s,
        prefill_tps=summary.prefill_tps,
        decode_s=summary.decode_s,
        decode_tps=summary.decode_tps,
        draft_s=summary.draft_s,
        verify_s=summary.verify_s,
        first_token_s=summary.first_token_s,
        plain_tokens=summary.plain_tokens,
        plain_s=summary.plain_s,
        speedup=summary.speedup,
        paused_at_token=summary.paused_at_token,
        off_reason=reasons[-1] if reasons else off_reason,
        tuned=tuned,
        resets=list(summary.resets),
        given_up=list(summary.given_up),
        notices=[NoticeItem(**asdict(n)) for n in notices],
    )


class TopLogprob(_Reply):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Reply):
    content: list[TokenLogprob]


class CompletionLogprobs(_Reply):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class FunctionCallReply(_Reply):
    name: str
    arguments: str


class ToolCallReply(_Reply):
    id: str
    type: Literal["function"]
    function: FunctionCallReply


class FunctionCallDelta(_Reply):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(_Reply):
    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCallDelta


class AssistantMessage(_Reply):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallReply] | None = None


class ChatChoice(_Reply):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    speculation: SpeculationReport


class ChatCompletion(_Reply):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class AssistantDelta(_Reply):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(_Reply):
    index: int
    delta: AssistantDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    speculation: SpeculationReport | None = None


class ChatChunk(_Reply):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class CompletionChoice(_Reply):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    """Null only in the chunks of a stream before the last."""
    speculation: SpeculationReport | None = None


class Completion(_Reply):
    """A whole completion, or one chunk of a streamed one: OpenAI gives both the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class Model(_Reply):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(_Reply):
    object: Literal["list"]
    data: list[Model]


class ErrorDetail(_Reply):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(_Reply):
    error: ErrorDetail
