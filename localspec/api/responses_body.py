"""The body of `POST /v1/responses` and what it means as a chat body.

Stateless: the whole conversation comes with every call, nothing is stored. Everything after the translation
is the chat's own code.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError

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


class MessageItem(StrictModel):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class CallItem(StrictModel):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CallOutputItem(StrictModel):
    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningItem(StrictModel):
    """What a model thought in an earlier turn: accepted, and not shown to it again."""

    type: Literal["reasoning"]


def _kind(item: Any) -> Any:
    """The tag of an item; a message need not say that it is one.

    Tags are no identifiers, so that they do not show in the paths of errors.
    """
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)
    return f"<{kind}>"


InputItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[CallItem, Tag("<function_call>")]
    | Annotated[CallOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")],
    Discriminator(_kind),
]


def _stored(value: Any) -> None:
    if value is not None:
        raise ValueError("nothing is stored here: send the whole conversation as `input`")


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
    previous_response_id: Annotated[None, BeforeValidator(_stored)] = None
    prediction: Prediction | None = None
    speculation: Speculation | None = None
    user: str | None = None
    prompt_cache_key: str | None = None


def as_chat(body: ResponsesBody) -> ChatBody:
    """The same request as a chat body.

    Raises:
        BodyError: a field is out of range or contradicts another.
    """
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        for item in body.input:
            _add(messages, item)
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


def _add(
    messages: list[dict[str, Any]], item: MessageItem | CallItem | CallOutputItem | ReasoningItem
) -> None:
    """Append an item; calls belong to the assistant's message before them."""
    match item:
        case MessageItem():
            messages.append({"role": item.role, "content": _dumped(item.content)})
        case CallItem():
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        case CallOutputItem():
            output = _dumped(item.output)
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": output})


def _dumped(content: Content) -> Any:
    return content if isinstance(content, str) else [part.model_dump() for part in content]
