"""Models to bytes: JSON replies, server-sent events, error replies."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel
from starlette.responses import Response

from localspec.api.faults import Fault

EVENT_STREAM = "text/event-stream"
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Keep proxies from holding back a stream."""
DONE = b"data: [DONE]\n\n"


def json_response(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = model.model_dump_json(exclude_unset=True).encode()
    return Response(body, status, headers, media_type="application/json")


def fault_response(fault: Fault, headers: Mapping[str, str] | None = None) -> Response:
    return json_response(fault.reply(), fault.status, headers)


def sse(model: BaseModel, name: str | None = None) -> bytes:
    """One server-sent event, with a name if its kind is told that way."""
    line = b"data: " + model.model_dump_json(exclude_unset=True).encode() + b"\n\n"
    return line if name is None else f"event: {name}\n".encode() + line
