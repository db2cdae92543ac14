"""From the events of one reply to what a client reads: text, reasoning, tool calls, log-probabilities.

One `Choice` per reply. It returns what each batch of events added (for streams) and keeps the whole (for
single replies), so that both kinds of answer come from the same lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from localspec.api.replies import (
    CompletionTokensDetails,
    FinishReason,
    FunctionCallDelta,
    FunctionCallReply,
    PromptTokensDetails,
    SpeculationReport,
    TokenLogprob,
    ToolCallDelta,
    ToolCallReply,
    TopLogprob,
    Usage,
    speculation_report,
)
from localspec.engine.events import Channel, Done, Event, Notice, Round, Text, Token
from localspec.engine.settings import Request
from localspec.engine.text.toolcalls import CallDelta, ContentDelta, ToolParser
from localspec.engine.text.toolformats import detect_tools
from localspec.errors import EngineError
from localspec.interfaces import SessionInfo

LOWEST_LOGPROB = -9999.0
"""OpenAI's stand-in for minus infinity, which JSON cannot say."""


@dataclass(slots=True)
class Delta:
    """What a batch of events added."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls or self.logprobs)


class Choice:
    """One reply being read."""

    def __init__(self, request: Request, info: SessionInfo) -> None:
        self.request = request
        self.done: Done | None = None
        self.notices: list[Notice] = []
        self.tool_calls: list[ToolCallReply] = []
        self.logprobs: list[TokenLogprob] = []
        self.reasoning_tokens = 0
        self.accepted_predictions = 0
        self.rejected_predictions = 0
        self._off_reason = info.off_reason
        tuned = info.start_of(request.speculation)
        self._tuned = tuned.text if tuned is not None else None
        self._tools = _tool_parser(request, info)
        self._content: list[str] = []
        self._reasoning: list[str] = []

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def absorb(self, events: Iterable[Event]) -> Delta:
        """Take the next events of the reply.

        Raises:
            EngineError: the reply ended with an error.
        """
        delta = Delta()
        for event in events:
            match event:
                case Token():
                    self._say(event.text, event.channel, delta)
                    self.reasoning_tokens += event.channel == "reasoning"
                    if self.request.logprobs is not None:
                        delta.logprobs.append(token_logprob(event))
                case Text():
                    self._say(event.text, event.channel, delta)
                case Round():
                    self._count(event)
                case Notice():
                    self.notices.append(event)
                case Done():
                    self._end(event, delta)
        self.logprobs += delta.logprobs
        return delta

    @property
    def finish_reason(self) -> FinishReason:
        """OpenAI's word for the end; a full context counts as `length`."""
        if self._ended.reason in ("length", "context"):
            return "length"
        return "tool_calls" if self.tool_calls else "stop"

    @property
    def report(self) -> SpeculationReport:
        return speculation_report(self._ended.summary, self.notices, self._off_reason, self._tuned)

    @property
    def _ended(self) -> Done:
        if self.done is None:
            raise EngineError("the reply ended without saying why")
        return self.done

    def _say(self, text: str, channel: Channel, delta: Delta) -> None:
        if not text:
            return
        # A raw completion has one text field, so nothing is split off there.
        if channel == "reasoning" and self.request.prompt is None:
            self._reasoning.append(text)
            delta.reasoning += text
        elif self._tools is None:
            self._content.append(text)
            delta.content += text
        else:
            self._parsed(self._tools.feed(text), delta)

    def _parsed(self, parts: Iterable[ContentDelta | CallDelta], delta: Delta) -> None:
        for part in parts:
            if isinstance(part, ContentDelta):
                self._content.append(part.text)
                delta.content += part.text
            elif part.id is not None:
                name = part.name or ""
                begun = FunctionCallReply(name=name, arguments=part.arguments)
                self.tool_calls.append(ToolCallReply(id=part.id, type="function", function=begun))
                first = FunctionCallDelta(name=name, arguments=part.arguments)
                delta.tool_calls.append(
                    ToolCallDelta(index=part.index, id=part.id, type="function", function=first)
                )
            else:
                self.tool_calls[part.index].function.arguments += part.arguments
                more = FunctionCallDelta(arguments=part.arguments)
                delta.tool_calls.append(ToolCallDelta(index=part.index, function=more))

    def _count(self, event: Round) -> None:
        if self.request.prediction is not None and event.method == "ngram":
            self.accepted_predictions += event.accepted
            self.rejected_predictions += event.drafted - event.accepted

    def _end(self, done: Done, delta: Delta) -> None:
        if done.reason == "error":
            raise EngineError(done.error or "the reply failed")
        self.done = done
        if self._tools is not None:
            self._parsed(self._tools.finish(), delta)


def _tool_parser(request: Request, info: SessionInfo) -> ToolParser | None:
    """A parser when the request has tools and the model's template a notation for calling them."""
    format = detect_tools(info.chat_template) if request.tools else None
    return ToolParser(format, request.tools) if format is not None else None


def token_logprob(token: Token) -> TokenLogprob:
    """OpenAI's entry for one token; bytes that are no whole character show as U+FFFD."""
    own = token.piece or token.text.encode()
    return TokenLogprob(
        token=own.decode("utf-8", "replace"),
        logprob=max(token.logprob or 0.0, LOWEST_LOGPROB),
        bytes=list(own),
        top_logprobs=[
            TopLogprob(
                token=piece.decode("utf-8", "replace"), logprob=max(value, LOWEST_LOGPROB), bytes=list(piece)
            )
            for (_, value), piece in zip(token.top, token.top_pieces, strict=True)
        ],
    )


def usage_of(choices: list[Choice], per_prompt: int) -> Usage:
    """Exact counts over all choices; each prompt counts once, whatever its number of choices."""
    prompts = [c.done.summary for c in choices[::per_prompt] if c.done]
    summaries = [c.done.summary for c in choices if c.done]
    prompt_tokens = sum(s.prompt_tokens for s in prompts)
    completion_tokens = sum(s.completion_tokens for s in summaries)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(s.reused_tokens for s in prompts)),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=sum(c.reasoning_tokens for c in choices),
            accepted_prediction_tokens=sum(c.accepted_predictions for c in choices),
            rejected_prediction_tokens=sum(c.rejected_predictions for c in choices),
        ),
    )
