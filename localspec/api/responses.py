"""Answers of `POST /v1/responses`: the response object, and the events of its stream.

A stream names every step: an item (reasoning, message, call) is added, filled by deltas and closed, and the
last event repeats the whole response. One choice only, as OpenAI has it.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from localspec.api.assemble import Choice, Delta, usage_of
from localspec.api.faults import Fault
from localspec.api.replies import SpeculationReport

Item = dict[str, Any]
"""An output item as JSON: its fields depend on its `type`."""


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseObject(BaseModel):
    """The whole response; nothing of it is stored."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    model: str
    output: list[Item]
    usage: ResponseUsage | None
    incomplete_details: dict[str, str] | None
    error: None
    instructions: str | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    tools: list[Item]
    tool_choice: str | Item
    temperature: float | None
    top_p: float | None
    speculation: SpeculationReport | None


class ResponseEvent(BaseModel):
    """One event of the stream; further fields depend on `type`."""

    model_config = ConfigDict(extra="allow")

    type: str
    sequence_number: int


class ResponsesWriter:
    """One response, whole or as events: `opening`, `delta`*, `closing` (or `failed`)."""

    def __init__(self, model: str, asked: dict[str, Any]) -> None:
        """`asked` are the fields of the body that a response repeats: instructions, tools, temperature, …"""
        self._model = model
        self._asked = asked
        self._id = _id("resp")
        self._created = int(time.time())
        self._sent = 0
        self._items: list[Item] = []

    def whole(self, choice: Choice) -> ResponseObject:
        """The finished response."""
        self.delta(Delta(choice.content, choice.reasoning))
        for call in choice.tool_calls:
            self._add(_call(call.id, call.function.name, call.function.arguments))
        self._close()
        return self._finished(choice)

    def opening(self) -> list[ResponseEvent]:
        begun = self._object("in_progress")
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
        ]

    def delta(self, delta: Delta) -> list[ResponseEvent]:
        """Events for what a batch added; text of another kind closes the item before it."""
        events: list[ResponseEvent] = []
        if delta.reasoning:
            events += self._enter("reasoning", delta.reasoning)
        if delta.content:
            events += self._enter("message", delta.content)
        for call in delta.tool_calls:
            if call.id is not None:
                events += self._add(_call(call.id, call.function.name or "", ""))
            if call.function.arguments:
                self._items[-1]["arguments"] += call.function.arguments
                events.append(self._of_item("function_call_arguments.delta", delta=call.function.arguments))
        return events

    def closing(self, choice: Choice) -> list[ResponseEvent]:
        events = self._close() if self._items else [*self._add(_text_item("message")), *self._close()]
        done = self._finished(choice)
        return [*events, self._event(f"response.{done.status}", response=done)]

    def failed(self, fault: Fault) -> ResponseEvent:
        return self._event("error", message=fault.message, code=fault.code, param=fault.param)

    def _enter(self, kind: Literal["reasoning", "message"], text: str) -> list[ResponseEvent]:
        """Append text to the open item, opening one of this kind if need be."""
        events: list[ResponseEvent] = []
        if not self._items or self._items[-1]["type"] != kind:
            events += self._add(_text_item(kind))
        part = self._items[-1]["content"][0]
        part["text"] += text
        events.append(self._of_item(f"{part['type']}.delta", content_index=0, delta=text))
        return events

    def _add(self, item: Item) -> list[ResponseEvent]:
        events = self._close() if self._items else []
        self._items.append(item)
        events.append(self._of_item("output_item.added", item=_empty(item)))
        if item["type"] == "message":
            part = item["content"][0]
            events.append(self._of_item("content_part.added", content_index=0, part=dict(part)))
        return events

    def _close(self) -> list[ResponseEvent]:
        """End the open item."""
        item = self._items[-1] if self._items else None
        if item is None or item["status"] != "in_progress":
            return []
        item["status"] = "completed"
        if item["type"] == "function_call":
            arguments, name = item["arguments"], item["name"]
            events = [self._of_item("function_call_arguments.done", arguments=arguments, name=name)]
        else:
            part = item["content"][0]
            events = [self._of_item(f"{part['type']}.done", content_index=0, text=part["text"])]
            if item["type"] == "message":
                events.append(self._of_item("content_part.done", content_index=0, part=part))
        return [*events, self._of_item("output_item.done", item=item)]

    def _finished(self, choice: Choice) -> ResponseObject:
        cut = choice.finish_reason == "length"
        if not self._items:
            self._items.append(_text_item("message"))
        self._items[-1]["status"] = "incomplete" if cut else "completed"
        counts = usage_of([choice], 1)
        done = self._object("incomplete" if cut else "completed")
        done.incomplete_details = {"reason": "max_output_tokens"} if cut else None
        done.speculation = choice.report
        done.usage = ResponseUsage(
            input_tokens=counts.prompt_tokens,
            input_tokens_details=counts.prompt_tokens_details.model_dump(),
            output_tokens=counts.completion_tokens,
            output_tokens_details=counts.completion_tokens_details.model_dump(),
            total_tokens=counts.total_tokens,
        )
        return done

    def _object(self, status: Literal["in_progress", "completed", "incomplete"]) -> ResponseObject:
        usual: dict[str, Any] = {
            "instructions": None,
            "tools": [],
            "tool_choice": "auto",
            "temperature": None,
            "top_p": None,
        }
        return ResponseObject(
            id=self._id,
            object="response",
            created_at=self._created,
            status=status,
            model=self._model,
            output=list(self._items),
            usage=None,
            incomplete_details=None,
            error=None,
            metadata={},
            parallel_tool_calls=True,
            speculation=None,
            **(usual | self._asked),
        )

    def _of_item(self, type: str, **more: Any) -> ResponseEvent:
        """An event about the item that is open."""
        about = {"output_index": len(self._items) - 1}
        if "item" not in more:
            about["item_id"] = self._items[-1]["id"]
        return self._event(f"response.{type}", **about, **more)

    def _event(self, type: str, **more: Any) -> ResponseEvent:
        self._sent += 1
        return ResponseEvent(type=type, sequence_number=self._sent - 1, **more)


def _text_item(kind: Literal["reasoning", "message"]) -> Item:
    if kind == "reasoning":
        thought = {"type": "reasoning_text", "text": ""}
        return {"id": _id("rs"), "type": kind, "status": "in_progress", "summary": [], "content": [thought]}
    part: Item = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return {"id": _id("msg"), "type": kind, "status": "in_progress", "role": "assistant", "content": [part]}


def _call(call_id: str, name: str, arguments: str) -> Item:
    return {
        "id": _id("fc"),
        "type": "function_call",
        "status": "in_progress",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def _empty(item: Item) -> Item:
    """The item as it is announced, before its content."""
    return item | {"content": []} if item["type"] == "message" else dict(item)


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
