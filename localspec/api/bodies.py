"""Typed request bodies of the OpenAI-compatible API.

Field names are OpenAI's; sampling extensions carry the names of `SamplingSettings`, so that they map one
to one. Unknown fields are kept in `model_extra`, where the caller counts them. What a field means for the
engine is `requests`' business.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from localspec.engine.settings import Method, VerifyRule

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_CHARS = 1_000
MAX_TOP_LOGPROBS = 20
MAX_MESSAGES = 4_096
MAX_TOOLS = 256
TOKEN_LIMIT = 2**31 - 1

Unit = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _integral(value: Any) -> Any:
    """JSON knows one kind of number: 5.0 is an integer there."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_INTEGRAL = BeforeValidator(_integral)
_Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=TOKEN_LIMIT), _INTEGRAL]
_Window = Annotated[int, Field(ge=-1, le=TOKEN_LIMIT), _INTEGRAL]
_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
_TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
_Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1, le=TOKEN_LIMIT), _INTEGRAL]


class StrictModel(BaseModel):
    """JSON types are taken literally: `"5"` is not 5 and `true` is not 1."""

    model_config = ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)


TEXT_PARTS = ("text", "input_text", "output_text")


class TextPart(StrictModel):
    type: Literal["text", "input_text", "output_text"]
    text: str


class RefusalPart(StrictModel):
    type: Literal["refusal"]
    refusal: str


def _part_kind(part: Any) -> str | None:
    """The tag of a part; tags are no identifiers, so that they do not show in the paths of errors."""
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return "<refusal>" if kind == "refusal" else "<text>" if kind in TEXT_PARTS else None


Part = Annotated[
    Annotated[TextPart, Tag("<text>")] | Annotated[RefusalPart, Tag("<refusal>")],
    Discriminator(
        _part_kind,
        custom_error_type="unsupported_content",
        custom_error_message="the models here read text only, so parts are of type `text`",
    ),
]
Content = str | list[Part]


class FunctionCall(StrictModel):
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


class ToolCallItem(StrictModel):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(StrictModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCallItem], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(StrictModel):
    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionName(StrictModel):
    name: str


class NamedTool(StrictModel):
    type: Literal["function"] = "function"
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class TextFormat(StrictModel):
    type: Literal["text"]


class JsonObjectFormat(StrictModel):
    type: Literal["json_object"]
    json_schema: dict[str, Any] | None = Field(None, alias="schema")
    """llama-server's short form."""


class NamedSchema(StrictModel):
    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(StrictModel):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StreamOptions(StrictModel):
    include_usage: bool = False


class Prediction(StrictModel):
    """Text the reply will resemble: it feeds the n-gram drafter."""

    type: Literal["content"] = "content"
    content: str | list[TextPart]


class Speculation(BaseModel):
    """How this one request speculates; a misspelt key is an error, because it would change nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", hide_input_in_errors=True)

    enabled: bool = True
    """False decodes plainly."""
    method: Method | None = None
    k: Annotated[int, Field(ge=0, le=64), _INTEGRAL] | None = None
    """Fixed draft length, never paused; 0 decodes plainly."""
    p_min: Unit | None = None
    verify: VerifyRule | None = None
    tuned: bool | None = None
    """False: `auto` starts afresh, not from what `localspec bench --tune` stored."""
    require: bool | None = None
    """Fail instead of decoding plainly when speculation is impossible."""


class GenerationBody(BaseModel):
    """Fields shared by every operation that generates."""

    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)

    model: Annotated[str, Field(max_length=1_000)] | None = None
    max_tokens: Positive | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES), _INTEGRAL] | None = None
    stop: _Stop | Annotated[list[_Stop], Field(max_length=MAX_STOPS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1), _INTEGRAL] | None = None
    """-1 draws a seed."""
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_p: Unit | None = None
    top_k: _Count | None = None
    min_p: Unit | None = None
    typical_p: Unit | None = None
    repeat_last_n: _Window | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    dry_multiplier: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    dry_base: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] | None = None
    dry_allowed_length: _Count | None = None
    dry_penalty_last_n: _Window | None = None
    dry_sequence_breakers: Annotated[list[str], Field(max_length=64)] | None = None
    xtc_probability: Unit | None = None
    xtc_threshold: Unit | None = None
    logit_bias: dict[_TokenId, _Bias] | None = None
    response_format: ResponseFormat | None = None
    grammar: str | None = None
    """GBNF; exclusive with `response_format`."""
    ignore_eos: bool | None = None
    """Go on after an end-of-generation token."""
    prediction: Prediction | None = None
    speculation: Speculation | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    """Conversation whose prompt cache this request continues."""


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), _INTEGRAL] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """Handed to the model's template under the same name."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the model's template."""
    continue_final_message: bool | None = None
    """The last message is an unfinished assistant turn to be continued."""


class CompletionBody(GenerationBody):
    """`POST /v1/completions`: a raw prompt without a template."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS), _INTEGRAL] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES), _INTEGRAL] | None = None
