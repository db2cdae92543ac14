"""Engine options as fields of a request body, for servers that get them with every request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

REQUEST_FIELDS = {
    "max_tokens": "max_tokens",
    "stop": "stop",
    "ignore_eog": "ignore_eos",
    "template_args": "chat_template_kwargs",
}


def body_fields(
    sampling: Mapping[str, Any], speculation: Mapping[str, Any], request: Mapping[str, Any]
) -> dict[str, Any]:
    """Body fields that say the same as these settings.

    Args:
        sampling: Fields of `SamplingSettings`, only those that somebody set; likewise below.
        speculation: Fields of `SpeculationSettings`.
        request: Fields of `Request`; a system prompt is none of them.
    """
    fields = {name: _json(value) for name, value in sampling.items() if value is not None}
    if "logit_bias" in fields:
        # JSON has no infinity; -100 is OpenAI's word for a ban.
        fields["logit_bias"] = {str(token): max(bias, -100.0) for token, bias in sampling["logit_bias"]}
    if "json_schema" in fields:
        schema = json.loads(fields.pop("json_schema"))
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": schema},
        }
    for name, value in request.items():
        if name in REQUEST_FIELDS and value:
            fields[REQUEST_FIELDS[name]] = dict(value) if name == "template_args" else _json(value)
    if speculation:
        fields["speculation"] = {name: value for name, value in speculation.items() if value is not None}
    return fields


def _json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
