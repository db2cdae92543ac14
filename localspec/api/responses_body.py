"""The body of `POST /v1/responses` and what it means as a chat body.

Stateless: the whole conversation comes with every call, nothing is stored. Everything after the translation
is the chat's own code.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from localspec.api.bodies import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ChatBody,
    Content,
    FunctionDefinition,
    Positive,
    Prediction,
    Speculation,
    StrictModel,
    Unit,
)
from localspec.api.faults import BodyError, validation_fault


class InputItem(StrictModel):
    """A message, or a call of a tool, or what it returned; which fields it needs depends on `type`."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Content | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Content | None = None


class FlatTool(FunctionDefinition):
    type: Literal["function"] = "function"


class FlatToolName(StrictModel):
    type: Literal["function"] = "function"
    name: str


class OutputFormat(StrictModel):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Annotated[str, Field(min_length=1, max_length=64)] = "reply"
    json_schema: dict[str, Any] | None = Field(None, alias="schema")


class TextOptions(StrictModel):
    format: OutputFormat | None = None


class ReasoningOptions(StrictModel):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class ResponsesBody(BaseModel):
    """`POST /v1/responses`."""

    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)

    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    model: Annotated[str, Field(max_length=1_000)] | None = None
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_p: Unit | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    tools: Annotated[list[FlatTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatToolName | None = None
    reasoning: ReasoningOptions | None = None
    previous_response_id: str | None = None
    prediction: Prediction | None = None
    speculation: Speculation | None = None
    user: str | None = None
    prompt_cache_key: str | None = None


def as_chat(body: ResponsesBody) -> ChatBody:
    """The same request as a chat body.

    Raises:
        BodyError: it refers to stored state, or an item lacks what its type needs.
    """
    if body.previous_response_id is not None:
        raise BodyError(
            "nothing is stored here: send the whole conversation as `input`", param="previous_response_id"
        )
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        for index, item in enumerate(body.input):
            _add(messages, item, f"input[{index}]")
    chat: dict[str, Any] = {
        "messages": messages,
        "model": body.model,
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "response_format": _format(body),
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "user": body.user,
        "prompt_cache_key": body.prompt_cache_key,
        "tools": [{"type": "function", "function": _function(tool)} for tool in body.tools or ()] or None,
        "tool_choice": body.tool_choice,
        "prediction": body.prediction,
        "speculation": body.speculation,
    }
    if isinstance(body.tool_choice, FlatToolName):
        chat["tool_choice"] = {"type": "function", "function": {"name": body.tool_choice.name}}
    try:
        return ChatBody.model_validate({name: value for name, value in chat.items() if value is not None})
    except ValidationError as error:
        fault = validation_fault(error.errors())
        raise BodyError(fault.message, param=fault.param, code=fault.code) from error


def repeated(body: ResponsesBody) -> dict[str, Any]:
    """The fields of the body that the response repeats."""
    fields = {"instructions", "tools", "tool_choice", "temperature", "top_p"}
    return body.model_dump(include=fields, exclude_none=True)


def _function(tool: FlatTool) -> dict[str, Any]:
    return tool.model_dump(exclude={"type"}, exclude_unset=True)


def _format(body: ResponsesBody) -> dict[str, Any] | None:
    wanted = body.text.format if body.text else None
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "json_object"}
    if wanted.json_schema is None:
        raise BodyError("`text.format` of type `json_schema` needs a `schema`", param="text.format.schema")
    return {"type": "json_schema", "json_schema": {"name": wanted.name, "schema": wanted.json_schema}}


def _add(messages: list[dict[str, Any]], item: InputItem, path: str) -> None:
    """Append an item; calls belong to the assistant's message before them."""
    match item.type:
        case "message":
            role = _needed(item, "role", path)
            messages.append({"role": role, "content": _dumped(_needed(item, "content", path))})
        case "function_call":
            function = {"name": _needed(item, "name", path), "arguments": _needed(item, "arguments", path)}
            call = {"id": _needed(item, "call_id", path), "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            output = _dumped(_needed(item, "output", path))
            messages.append(
                {"role": "tool", "tool_call_id": _needed(item, "call_id", path), "content": output}
            )
        case "reasoning":
            pass  # what a model thought in an earlier turn is not shown to it again


def _needed(item: InputItem, name: str, path: str) -> Any:
    value = getattr(item, name)
    if value is None:
        raise BodyError(
            f"`{path}` of type `{item.type}` needs `{name}`", param=f"{path}.{name}", code="missing"
        )
    return value


def _dumped(content: Content) -> Any:
    return content if isinstance(content, str) else [part.model_dump() for part in content]
