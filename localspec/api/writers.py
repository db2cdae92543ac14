"""Writes choices in the shape of an operation: chat completion or raw completion, whole or in chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Protocol

from localspec.api.assemble import Choice, Delta, usage_of
from localspec.api.replies import (
    AssistantDelta,
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    TokenLogprob,
)

Chunk = ChatChunk | Completion


class Writer(Protocol):
    """One operation's answer to one request. Chunks of a choice: `opening`, `delta`*, `closing`."""

    per_prompt: int

    def opening(self, index: int) -> Chunk | None: ...

    def delta(self, index: int, delta: Delta) -> Chunk: ...

    def closing(self, index: int, choice: Choice) -> Chunk: ...

    def usage(self, choices: list[Choice]) -> Chunk:
        """The chunk without choices that OpenAI sends for `include_usage`."""

    def whole(self, choices: list[Choice]) -> ChatCompletion | Completion: ...


class ChatWriter:
    """`chat.completion` and `chat.completion.chunk`."""

    def __init__(self, model: str, per_prompt: int) -> None:
        self.per_prompt = per_prompt
        self._model = model
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            object="chat.completion.chunk",
            created=self._created,
            model=self._model,
            choices=choices,
        )

    def opening(self, index: int) -> ChatChunk:
        delta = AssistantDelta(role="assistant", content="")
        return self._chunk([ChatChunkChoice(index=index, delta=delta, logprobs=None, finish_reason=None)])

    def delta(self, index: int, delta: Delta) -> ChatChunk:
        said = AssistantDelta()
        if delta.content:
            said.content = delta.content
        if delta.reasoning:
            said.reasoning_content = delta.reasoning
        if delta.tool_calls:
            said.tool_calls = delta.tool_calls
        logprobs = ChatLogprobs(content=delta.logprobs) if delta.logprobs else None
        return self._chunk([ChatChunkChoice(index=index, delta=said, logprobs=logprobs, finish_reason=None)])

    def closing(self, index: int, choice: Choice) -> ChatChunk:
        return self._chunk(
            [
                ChatChunkChoice(
                    index=index,
                    delta=AssistantDelta(),
                    logprobs=None,
                    finish_reason=choice.finish_reason,
                    speculation=choice.report,
                )
            ]
        )

    def usage(self, choices: list[Choice]) -> ChatChunk:
        chunk = self._chunk([])
        chunk.usage = usage_of(choices, self.per_prompt)
        return chunk

    def whole(self, choices: list[Choice]) -> ChatCompletion:
        return ChatCompletion(
            id=self._id,
            object="chat.completion",
            created=self._created,
            model=self._model,
            choices=[self._choice(i, choice) for i, choice in enumerate(choices)],
            usage=usage_of(choices, self.per_prompt),
        )

    def _choice(self, index: int, choice: Choice) -> ChatChoice:
        # OpenAI says null, not "", when the message is tool calls only.
        message = AssistantMessage(
            role="assistant", content=choice.content or (None if choice.tool_calls else "")
        )
        if choice.reasoning:
            message.reasoning_content = choice.reasoning
        if choice.tool_calls:
            message.tool_calls = choice.tool_calls
        return ChatChoice(
            index=index,
            message=message,
            logprobs=None if choice.request.logprobs is None else ChatLogprobs(content=choice.logprobs),
            finish_reason=choice.finish_reason,
            speculation=choice.report,
        )


class CompletionWriter:
    """`text_completion`; with `echo` each text starts with its prompt."""

    def __init__(self, model: str, per_prompt: int, echoes: Sequence[str]) -> None:
        """`echoes[i]` is the prompt that choice `i` repeats, "" without `echo`."""
        self.per_prompt = per_prompt
        self._model = model
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._echoes = echoes
        self._offsets = [len(echo) for echo in echoes]

    def _completion(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(
            id=self._id, object="text_completion", created=self._created, model=self._model, choices=choices
        )

    def opening(self, index: int) -> Completion | None:
        if not self._echoes[index]:
            return None
        return self._completion(
            [CompletionChoice(index=index, text=self._echoes[index], logprobs=None, finish_reason=None)]
        )

    def delta(self, index: int, delta: Delta) -> Completion:
        logprobs = None
        if delta.logprobs:
            logprobs = completion_logprobs(delta.logprobs, self._offsets[index])
            self._offsets[index] += sum(len(entry.token) for entry in delta.logprobs)
        text = delta.reasoning + delta.content
        return self._completion(
            [CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=None)]
        )

    def closing(self, index: int, choice: Choice) -> Completion:
        return self._completion(
            [
                CompletionChoice(
                    index=index,
                    text="",
                    logprobs=None,
                    finish_reason=choice.finish_reason,
                    speculation=choice.report,
                )
            ]
        )

    def usage(self, choices: list[Choice]) -> Completion:
        completion = self._completion([])
        completion.usage = usage_of(choices, self.per_prompt)
        return completion

    def whole(self, choices: list[Choice]) -> Completion:
        completion = self._completion([self._choice(i, choice) for i, choice in enumerate(choices)])
        completion.usage = usage_of(choices, self.per_prompt)
        return completion

    def _choice(self, index: int, choice: Choice) -> CompletionChoice:
        echo = self._echoes[index]
        asked = choice.request.logprobs is not None
        return CompletionChoice(
            index=index,
            text=echo + choice.content,
            logprobs=completion_logprobs(choice.logprobs, len(echo)) if asked else None,
            finish_reason=choice.finish_reason,
            speculation=choice.report,
        )


def completion_logprobs(entries: list[TokenLogprob], offset: int) -> CompletionLogprobs:
    """OpenAI's older, column-wise shape; `offset` is where the first token's text begins."""
    offsets: list[int] = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry.token)
    return CompletionLogprobs(
        tokens=[entry.token for entry in entries],
        token_logprobs=[entry.logprob for entry in entries],
        top_logprobs=[{top.token: top.logprob for top in entry.top_logprobs} for entry in entries],
        text_offset=offsets,
    )
