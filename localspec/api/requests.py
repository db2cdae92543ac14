"""From typed bodies to engine requests: one `Request` per choice, wrong combinations refused by field."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from localspec.api.bodies import (
    ChatBody,
    ChatMessage,
    CompletionBody,
    Content,
    GenerationBody,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedTool,
    RefusalPart,
    Tool,
)
from localspec.api.faults import BodyError
from localspec.api.forced import forced_call
from localspec.engine.settings import Message, Request, SamplingSettings, SpeculationSettings
from localspec.engine.text.toolformats import ToolFormat, detect_tools
from localspec.interfaces import SessionInfo

COMPLETION_TOKENS = 16
"""OpenAI's default `max_tokens` of a raw completion."""
KEY_CHARS = 256
"""How much of a raw prompt names its conversation: the part that growing prompts share."""
_SAMPLING = {f.name for f in fields(SamplingSettings)} - {"grammar", "json_schema", "seed", "logit_bias"}


@dataclass(frozen=True, slots=True)
class Ground:
    """What requests stand on: facts of the pair, defaults and limits set by whoever runs it."""

    info: SessionInfo
    base: Request = field(default_factory=Request)
    """Sampling, speculation and template variables where the body says nothing."""
    max_tokens: int | None = None
    """Longest reply; a body that asks for more gets this many."""


def chat_requests(body: ChatBody, ground: Ground) -> list[Request]:
    """The requests of a chat body, one per choice.

    Raises:
        BodyError: a field is out of range for this pair or contradicts another.
    """
    if body.top_logprobs and not body.logprobs:
        raise BodyError("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    tools = wanted_tools(body)
    format = detect_tools(ground.info.chat_template) if tools else None
    if tools and format is None:
        raise BodyError(
            f"the chat template of `{ground.info.pair}` knows no tools, so the model would not see them",
            hint="leave out `tools`, or send `tool_choice` as `none`",
            param="tools",
        )
    offered = tuple(tool.model_dump(exclude_unset=True) | {"type": "function"} for tool in tools)
    shared = _shared(body, ground)
    request = replace(
        shared,
        sampling=_with_forced_call(shared.sampling, body, offered, format, ground.info.pair),
        messages=_messages(body, ground),
        tools=offered,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        template_args=ground.base.template_args + tuple(_template_args(body).items()),
        continue_last=_continues(body),
        cache_key=body.prompt_cache_key or _conversation(body.messages, tools),
    )
    longest = body.max_completion_tokens or body.max_tokens or ground.base.max_tokens
    return _choices(replace(request, max_tokens=_capped(longest, ground)), body)


def completion_requests(body: CompletionBody, ground: Ground) -> list[Request]:
    """The requests of a raw completion, prompt by prompt, each with its choices.

    Raises:
        BodyError: as `chat_requests`.
    """
    if body.suffix:
        raise BodyError(
            "`suffix` is not supported: put the model's fill-in-the-middle tokens in `prompt`", param="suffix"
        )
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise BodyError("`best_of` must equal `n`", param="best_of")
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    longest = body.max_tokens or ground.base.max_tokens or COMPLETION_TOKENS
    request = replace(
        _shared(body, ground), messages=(), logprobs=body.logprobs, max_tokens=_capped(longest, ground)
    )
    found: list[Request] = []
    for prompt in prompts:
        key = body.prompt_cache_key or _digest([prompt[:KEY_CHARS]])
        found += _choices(replace(request, prompt=prompt, cache_key=key), body)
    return found


def wanted_tools(body: ChatBody) -> list[Tool]:
    """The tools the model may call, after `tool_choice`.

    Raises:
        BodyError: `tool_choice` names a tool that is not there.
    """
    tools, choice = body.tools or [], body.tool_choice
    if choice is None or choice == "auto":
        return tools
    if choice == "none":
        return []
    if isinstance(choice, NamedTool):
        tools = [t for t in tools if t.function.name == choice.function.name]
        if not tools:
            raise BodyError(
                f"`tool_choice` names `{choice.function.name}`, which is not in `tools`", param="tool_choice"
            )
    if not tools:
        raise BodyError("`tool_choice` needs `tools`", param="tool_choice")
    return tools


def _with_forced_call(
    sampling: SamplingSettings,
    body: ChatBody,
    tools: tuple[dict[str, Any], ...],
    format: ToolFormat | None,
    pair: str,
) -> SamplingSettings:
    if format is None or body.tool_choice in (None, "none", "auto"):
        return sampling
    if body.grammar is not None or isinstance(body.response_format, JsonObjectFormat | JsonSchemaFormat):
        raise BodyError("a forced tool call cannot follow another grammar as well", param="tool_choice")
    grammar = forced_call(format.name, tools)
    if grammar is None:
        raise BodyError(
            f"a tool call cannot be forced in the notation of `{pair}`",
            hint="use `auto`",
            param="tool_choice",
        )
    return replace(sampling, grammar=grammar, json_schema=None)


def _shared(body: GenerationBody, ground: Ground) -> Request:
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return replace(
        ground.base,
        sampling=_sampling(body, ground),
        speculation=_speculation(body, ground.base.speculation),
        stop=stop or ground.base.stop,
        prediction=_prediction(body),
        ignore_eog=ground.base.ignore_eog if body.ignore_eos is None else body.ignore_eos,
    )


def _sampling(body: GenerationBody, ground: Ground) -> SamplingSettings:
    given: dict[str, Any] = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    if "dry_sequence_breakers" in given:
        given["dry_sequence_breakers"] = tuple(given["dry_sequence_breakers"])
    if body.seed is not None:
        # Generators are keyed by 64 unsigned bits; -1 is llama.cpp's word for a random seed.
        given["seed"] = None if body.seed == -1 else body.seed % 2**64
    if body.logit_bias is not None:
        given["logit_bias"] = tuple(_biases(body.logit_bias, ground.info.n_vocab))
    form = body.response_format
    if body.grammar is not None and isinstance(form, JsonObjectFormat | JsonSchemaFormat):
        raise BodyError("`grammar` and `response_format` exclude each other", param="grammar")
    if body.grammar is not None:
        given |= {"grammar": body.grammar, "json_schema": None}
    elif isinstance(form, JsonObjectFormat):
        given |= {"json_schema": json.dumps(form.json_schema or {"type": "object"}), "grammar": None}
    elif isinstance(form, JsonSchemaFormat):
        given |= {"json_schema": json.dumps(form.json_schema.json_schema), "grammar": None}
    return replace(ground.base.sampling, **given)


def _biases(biases: dict[str, float], n_vocab: int) -> Iterable[tuple[int, float]]:
    for key, bias in biases.items():
        if int(key) >= n_vocab:
            raise BodyError(
                f"`logit_bias` has the token {key}, the model's last is {n_vocab - 1}", param="logit_bias"
            )
        yield int(key), bias


def _speculation(body: GenerationBody, base: SpeculationSettings) -> SpeculationSettings:
    asked = body.speculation
    if asked is None:
        return base
    if not asked.enabled or asked.k == 0:
        if asked.require:
            raise BodyError("`speculation` is required and switched off at once", param="speculation")
        return replace(base, method="off", k=None, require=False)
    given = asked.model_dump(exclude_none=True, exclude={"enabled"})
    return replace(base, **given)


def _prediction(body: GenerationBody) -> str | None:
    if body.prediction is None:
        return None
    content = body.prediction.content
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _template_args(body: ChatBody) -> dict[str, Any]:
    given = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        given["reasoning_effort"] = body.reasoning_effort
    return given


def _continues(body: ChatBody) -> bool:
    if not body.continue_final_message:
        return False
    if body.messages[-1].role != "assistant":
        raise BodyError(
            "`continue_final_message` needs an assistant message at the end", param="continue_final_message"
        )
    return True


def _messages(body: ChatBody, ground: Ground) -> tuple[Message, ...]:
    own = tuple(_message(message) for message in body.messages)
    # The operator's system prompt is a default like any other: a request that brings its own keeps it.
    return own if any(m.role in ("system", "developer") for m in own) else ground.base.messages + own


def _message(message: ChatMessage) -> Message:
    extra: dict[str, Any] = {}
    if message.name is not None:
        extra["name"] = message.name
    if message.reasoning_content is not None:
        extra["reasoning_content"] = message.reasoning_content
    if message.tool_call_id is not None:
        extra["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        extra["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    return Message(message.role, _text_of(message.content), tuple(extra.items()))


def _text_of(content: Content | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.refusal if isinstance(part, RefusalPart) else part.text for part in content)


def _capped(wanted: int | None, ground: Ground) -> int | None:
    if ground.max_tokens is None:
        return wanted
    return min(wanted or ground.max_tokens, ground.max_tokens)


def _choices(request: Request, body: GenerationBody) -> list[Request]:
    """`n` requests; with a seed each choice gets the next one, or all of them would be equal."""
    seed = request.sampling.seed
    if seed is None:
        return [request] * (body.n or 1)
    return [
        replace(request, sampling=replace(request.sampling, seed=(seed + i) % 2**64))
        for i in range(body.n or 1)
    ]


def _conversation(messages: list[ChatMessage], tools: list[Tool]) -> str:
    """A name for the conversation: what every later turn of it starts with, up to the first user message."""
    head: list[str] = [tool.model_dump_json() for tool in tools]
    for message in messages:
        head.append(message.model_dump_json(include={"role", "content"}))
        if message.role == "user":
            break
    return _digest(head)


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
