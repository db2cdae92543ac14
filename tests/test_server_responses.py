"""`/v1/responses`: OpenAI's newer shape over the same replies, stateless."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from localspec.engine.events import Done, Round
from localspec.engine.settings import Message, Request
from tests.kit.api import Scripted, api, asked, token
from tests.kit.scripted import INFO, summary
from tests.kit.serving import Served, served, solo
from tests.kit.toy import words_for
from tests.test_server_replies import CALL, HERMES, WEATHER

PATH = "/v1/responses"
FLAT = {"type": "function"} | WEATHER["function"]  # type: ignore[operator]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with server.openai() as made:
        yield made


class TestClient:
    def test_a_whole_response(self, client: openai.OpenAI) -> None:
        response = client.responses.create(model="toy", input="hi")
        assert response.output_text == solo("hi")
        assert response.status == "completed" and response.usage is not None
        assert (response.usage.output_tokens, response.usage.input_tokens) == (24, 1)
        assert response.usage.total_tokens == 25

    def test_a_stream_ends_with_the_whole_response(self, client: openai.OpenAI) -> None:
        events = list(client.responses.create(model="toy", input="hi", stream=True, instructions="be brief"))
        kinds = [event.type for event in events]
        assert kinds[:4] == [
            "response.created", "response.in_progress", "response.output_item.added",
            "response.content_part.added",
        ]  # fmt: skip
        assert kinds[-4:] == [
            "response.output_text.done", "response.content_part.done", "response.output_item.done",
            "response.completed",
        ]  # fmt: skip
        assert [event.sequence_number for event in events] == list(range(len(events)))
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        conversation = (Message("system", "be brief"), Message("user", "hi"))
        assert text == "".join(words_for(Request(messages=conversation)))
        final = events[-1]
        assert final.type == "response.completed"
        assert final.response.output_text == text and final.response.instructions == "be brief"

    def test_the_client_s_own_stream_helper(self, client: openai.OpenAI) -> None:
        with client.responses.stream(model="toy", input="hi") as stream:
            for _ in stream:
                pass
            assert stream.get_final_response().output_text == solo("hi")

    def test_a_limit_makes_it_incomplete(self, client: openai.OpenAI) -> None:
        response = client.responses.create(model="toy", input="hi", max_output_tokens=2)
        assert response.status == "incomplete" and response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"

    def test_errors(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as long:
            client.responses.create(model="toy", input="!long")
        assert long.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="nothing is stored here"):
            client.responses.create(model="toy", input="hi", previous_response_id="resp_1")
        *_, last = client.responses.create(model="toy", input="!error", stream=True)
        assert last.type == "error" and last.message == "a row was not finite"


async def test_items_become_messages() -> None:
    items = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "wait"}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call", "call_id": "c3", "name": "weather", "arguments": "{}"},
    ]
    schema = {"type": "object", "properties": {}}
    body = {
        "input": items, "instructions": "be brief", "max_output_tokens": 3, "temperature": 0.5,
        "store": False,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}},
        "reasoning": {"effort": "low"}, "prompt_cache_key": "mine", "speculation": {"method": "ngram"},
    }  # fmt: skip
    async with api() as (client, session):
        assert (await client.post(PATH, json=body)).status_code == 200
        (request,) = asked(session)
    assert [(m.role, m.content) for m in request.messages] == [
        ("system", "be brief"), ("developer", "rules"), ("user", "weather?"), ("assistant", "wait"),
        ("tool", "rain"), ("assistant", ""),
    ]  # fmt: skip
    calls = [[call["id"] for call in dict(m.extra).get("tool_calls", [])] for m in request.messages]
    assert calls == [[], [], [], ["c1", "c2"], [], ["c3"]]
    assert (request.max_tokens, request.sampling.temperature, request.cache_key) == (3, 0.5, "mine")
    assert json.loads(request.sampling.json_schema or "") == schema
    assert request.speculation.method == "ngram"
    assert dict(request.template_args) == {"reasoning_effort": "low"}


def events_of(text: str) -> list[dict[str, Any]]:
    blocks = [block.split("\n") for block in text.split("\n\n") if block]
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [name for name, _ in blocks] == [f"event: {event['type']}" for event in events]
    return events


class TestItems:
    def session(self) -> Scripted:
        rounds = Round("draft", 0, 0, 0, 1, 5, 0, 0, 0, 1)
        tokens = [
            token(0, "hm", "reasoning"),
            rounds,
            token(1, CALL[:30]),
            rounds,
            token(2, CALL[30:]),
            rounds,
        ]
        session = Scripted(*tokens, Done("stop", summary(3)))
        session.info = replace(INFO, chat_template=HERMES)
        return session

    async def test_reasoning_text_and_calls_are_items_in_order(self) -> None:
        async with api(self.session()) as (client, _):
            whole = (await client.post(PATH, json={"input": "x", "tools": [FLAT]})).json()
            stream = await client.post(PATH, json={"input": "x", "tools": [FLAT], "stream": True})
        assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
        reasoning, message, call = whole["output"]
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
        assert message["content"][0]["text"] == "Let me see."
        assert call["name"] == "weather" and json.loads(call["arguments"]) == {"city": "Oslo"}
        assert call["call_id"].startswith("call_") and call["status"] == "completed"
        assert whole["tools"][0]["name"] == "weather" and whole["speculation"]["rounds"] == 1

        events = events_of(stream.text)
        added = [e["item"]["type"] for e in events if e["type"] == "response.output_item.added"]
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        assert added == [item["type"] for item in done] == ["reasoning", "message", "function_call"]
        arguments = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
        assert "".join(arguments) == done[2]["arguments"] == call["arguments"]
        final = events[-1]["response"]["output"]
        assert final == done

    @pytest.mark.parametrize(
        ("item", "param"),
        [
            ({"type": "message", "content": "x"}, "input[0].role"),
            ({"role": "user"}, "input[0].content"),
            ({"type": "function_call", "name": "f", "arguments": "{}"}, "input[0].call_id"),
            ({"type": "function_call_output", "call_id": "c"}, "input[0].output"),
        ],
    )
    async def test_items_that_lack_a_field(self, item: dict[str, Any], param: str) -> None:
        async with api() as (client, _):
            reply = await client.post(PATH, json={"input": [item]})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)

    async def test_tools_that_are_no_functions(self) -> None:
        async with api() as (client, _):
            reply = await client.post(PATH, json={"input": "x", "tools": [{"type": "web_search"}]})
        assert reply.status_code == 400 and reply.json()["error"]["param"].startswith("tools[0]")
