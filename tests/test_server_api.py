"""The HTTP surface in this process: bodies, replies, errors, guards, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from localspec.engine.events import Done, Notice, Prefill, Round, Text, Token
from localspec.engine.settings import Message, Request, SamplingSettings, SpeculationSettings
from localspec.server.app import create_app
from localspec.server.dispatch import Dispatcher
from localspec.server.metrics import Metrics
from localspec.server.settings import READY_TOKENS, Limits, ServerSettings
from tests.kit.scripted import INFO, ScriptedReply, summary
from tests.kit.toy import ToySession, words_for

CHAT, RAW = "/v1/chat/completions", "/v1/completions"


@contextlib.asynccontextmanager
async def api(session: Any = None, **options: Any) -> AsyncIterator[tuple[httpx2.AsyncClient, ToySession]]:
    session = session or ToySession()
    settings = ServerSettings(**options)
    metrics = Metrics()
    dispatcher = Dispatcher(session, settings.limits, metrics)
    dispatcher.start()
    try:
        await asyncio.to_thread(dispatcher.wait_settled)
        transport = httpx2.ASGITransport(create_app(dispatcher, settings, metrics))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client, session
    finally:
        await asyncio.to_thread(dispatcher.close)


def says(text: str, **body: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]} | body


def asked(session: ToySession) -> list[Request]:
    """The requests that reached the engine, without its own trial."""
    return [r for r in session.requests if r.max_tokens != READY_TOKENS]


def events_of(response: httpx2.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


class TestBodies:
    async def test_every_field_reaches_the_engine(self) -> None:
        body = {
            "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "typical_p": 0.8, "repeat_last_n": -1,
            "repeat_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": -0.3, "dry_multiplier": 0.4,
            "dry_base": 1.5, "dry_allowed_length": 3, "dry_penalty_last_n": 9, "dry_sequence_breakers": ["."],
            "xtc_probability": 0.25, "xtc_threshold": 0.2, "logit_bias": {"5": -100, "6": 1.5}, "seed": 11,
        }  # fmt: skip
        async with api() as (client, session):
            reply = await client.post(CHAT, json=says("hi", **body, max_completion_tokens=9, stop=["x", "y"]))
            assert reply.status_code == 200
            (request,) = asked(session)
        for name, value in body.items():
            if name == "logit_bias":
                value = ((5, -100.0), (6, 1.5))
            assert getattr(request.sampling, name) == (tuple(value) if isinstance(value, list) else value), (
                name
            )
        assert (request.max_tokens, request.stop) == (9, ("x", "y"))

    async def test_what_the_body_does_not_say_comes_from_the_operator(self) -> None:
        base = Request(
            messages=(Message("system", "be brief"),),
            sampling=SamplingSettings(temperature=0.1, top_k=3),
            speculation=SpeculationSettings(method="ngram", k=4),
            max_tokens=12,
        )
        async with api(base=base) as (client, session):
            await client.post(CHAT, json=says("hi", top_k=5, speculation={"k": 2}))
            await client.post(
                CHAT, json={"messages": [{"role": "system", "content": "own"}, *says("hi")["messages"]]}
            )
            await client.post(RAW, json={"prompt": "p"})
            first, second, raw = asked(session)
        assert [m.content for m in first.messages] == ["be brief", "hi"]
        assert (first.sampling.temperature, first.sampling.top_k, first.max_tokens) == (0.1, 5, 12)
        assert (first.speculation.method, first.speculation.k) == ("ngram", 2)
        assert [m.content for m in second.messages] == ["own", "hi"]
        assert (raw.messages, raw.prompt) == ((), "p")

    @pytest.mark.parametrize("off", [{"enabled": False}, {"method": "off"}, {"k": 0}])
    async def test_speculation_is_chosen_per_request(self, off: dict[str, Any]) -> None:
        """Known fault 109: one server, two requests, two settings."""
        async with api() as (client, session):
            await client.post(CHAT, json=says("hi", speculation=off))
            await client.post(CHAT, json=says("hi", speculation={"method": "ngram", "k": 5, "p_min": 0.5}))
            first, second = asked(session)
        assert first.speculation.method == "off"
        assert second.speculation == SpeculationSettings("ngram", 5, p_min=0.5)

    async def test_structured_output(self) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        named = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
        async with api() as (client, session):
            for body in (
                {"response_format": {"type": "json_object"}},
                {"response_format": named},
                {"grammar": 'root ::= "a"'},
                {"response_format": {"type": "text"}},
            ):
                assert (await client.post(CHAT, json=says("hi", **body))).status_code == 200
            found = [r.sampling for r in asked(session)]
        assert json.loads(found[0].json_schema or "") == {"type": "object"}
        assert json.loads(found[1].json_schema or "") == schema
        assert (found[2].grammar, found[2].json_schema) == ('root ::= "a"', None)
        assert (found[3].grammar, found[3].json_schema) == (None, None)

    async def test_messages_keep_their_parts_and_tool_calls(self) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
        messages = [
            {"role": "developer", "content": "rules"},
            {
                "role": "user",
                "name": "ann",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "42"},
        ]
        async with api() as (client, session):
            assert (await client.post(CHAT, json={"messages": messages})).status_code == 200
            (request,) = asked(session)
        system, user, assistant, tool = request.messages
        assert (system.role, system.content) == ("developer", "rules")
        assert (user.content, dict(user.extra)["name"]) == ("a\nb", "ann")
        assert assistant.content == ""
        assert dict(assistant.extra)["tool_calls"] == [call]
        assert dict(tool.extra)["tool_call_id"] == "c1"

    async def test_turns_of_a_conversation_share_a_cache_key(self) -> None:
        turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "first"}]
        more = [*turns, {"role": "assistant", "content": "r"}, {"role": "user", "content": "second"}]
        async with api() as (client, session):
            for messages in (turns, more, [*turns[:1], {"role": "user", "content": "other"}]):
                await client.post(CHAT, json={"messages": messages})
            await client.post(CHAT, json={"messages": turns, "prompt_cache_key": "mine"})
            keys = [r.cache_key for r in asked(session)]
        assert keys[0] == keys[1] != keys[2]
        assert keys[3] == "mine"

    async def test_choices_get_seeds_of_their_own(self) -> None:
        async with api() as (client, session):
            reply = await client.post(CHAT, json=says("hi", n=3, seed=5, max_tokens=4))
            assert [r.sampling.seed for r in asked(session)] == [5, 6, 7]
        choices = reply.json()["choices"]
        assert [c["index"] for c in choices] == [0, 1, 2]
        assert len({c["message"]["content"] for c in choices}) == 3
        usage = reply.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1, 12)

    async def test_a_seed_of_minus_one_is_none_and_negative_ones_count(self) -> None:
        async with api() as (client, session):
            for seed in (-1, -2):
                await client.post(CHAT, json=says("hi", seed=seed))
            assert [r.sampling.seed for r in asked(session)] == [None, 2**64 - 2]

    async def test_the_operator_caps_replies(self) -> None:
        async with api(limits=Limits(reply_tokens=5)) as (client, session):
            await client.post(CHAT, json=says("hi", max_tokens=50))
            await client.post(CHAT, json=says("hi"))
            await client.post(CHAT, json=says("hi", max_tokens=2))
            assert [r.max_tokens for r in asked(session)] == [5, 5, 2]

    async def test_unknown_fields_are_ignored_and_counted(self) -> None:
        async with api() as (client, _):
            for _i in range(2):
                assert (
                    await client.post(CHAT, json=says("hi", logit_biases={}, store=True))
                ).status_code == 200
            many = {f"field{i}": 1 for i in range(300)}
            await client.post(CHAT, json=says("hi", **many))
            metrics = (await client.get("/metrics")).text
        assert 'localspec_ignored_body_fields_total{field="store"} 2.0' in metrics
        assert 'localspec_ignored_body_fields_total{field="(other)"}' in metrics
        assert metrics.count("localspec_ignored_body_fields_total{") <= 101, "clients cannot grow the metrics"


class TestReplies:
    async def test_a_whole_reply(self) -> None:
        async with api() as (client, _):
            reply = (await client.post(CHAT, json=says("hi there", max_tokens=7))).json()
        words = words_for(Request(messages=(Message("user", "hi there"),)))
        (choice,) = reply["choices"]
        assert choice["message"] == {"role": "assistant", "content": "".join(words[:7])}
        assert choice["finish_reason"] == "length"
        assert reply["usage"] == {
            "prompt_tokens": 2, "completion_tokens": 7, "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
            },
        }  # fmt: skip
        report = choice["speculation"]
        assert (report["methods"], report["drafted"], report["accepted"]) == (["draft"], 4, 4)
        assert report["accepted_per_tested"] == report["accepted_per_drafted"] == 1.0

    async def test_a_stream_says_the_same_as_a_whole_reply(self) -> None:
        async with api() as (client, _):
            whole = (
                await client.post(CHAT, json=says("hi", max_tokens=8, logprobs=True, top_logprobs=2))
            ).json()
            body = says(
                "hi",
                max_tokens=8,
                logprobs=True,
                top_logprobs=2,
                stream=True,
                stream_options={"include_usage": True},
            )
            response = await client.post(CHAT, json=body)
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = events_of(response)
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        deltas = [c["choices"][0] for c in chunks[:-1]]
        assert (
            "".join(d["delta"].get("content", "") for d in deltas)
            == whole["choices"][0]["message"]["content"]
        )
        assert [d["finish_reason"] for d in deltas] == [None] * (len(deltas) - 1) + ["length"]
        entries = [entry for d in deltas if d["logprobs"] for entry in d["logprobs"]["content"]]
        assert entries == whole["choices"][0]["logprobs"]["content"]
        assert deltas[-1]["speculation"] == whole["choices"][0]["speculation"]
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
        assert all(c["usage"] is None for c in chunks[:-1])
        assert len({c["id"] for c in chunks}) == 1

    async def test_usage_in_a_stream_only_when_asked(self) -> None:
        async with api() as (client, _):
            chunks = events_of(await client.post(CHAT, json=says("hi", stream=True)))
        assert not any("usage" in chunk for chunk in chunks)

    async def test_several_streamed_choices_keep_apart(self) -> None:
        async with api() as (client, _):
            whole = (await client.post(CHAT, json=says("hi", n=2, seed=1))).json()
            chunks = events_of(await client.post(CHAT, json=says("hi", n=2, seed=1, stream=True)))
        texts = ["", ""]
        for chunk in chunks:
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
        assert texts == [c["message"]["content"] for c in whole["choices"]]

    async def test_raw_completions(self) -> None:
        async with api() as (client, session):
            body = {"prompt": ["a", "b"], "n": 2, "seed": 1, "echo": True, "logprobs": 2, "max_tokens": 2}
            reply = (await client.post(RAW, json=body)).json()
            default = (await client.post(RAW, json={"prompt": "a"})).json()
            assert sorted(str(r.prompt) for r in session.requests[1:5]) == ["a", "a", "b", "b"]
        assert [c["text"][0] for c in reply["choices"]] == ["a", "a", "b", "b"]
        columns = reply["choices"][0]["logprobs"]
        assert "a" + "".join(columns["tokens"]) == reply["choices"][0]["text"]
        assert columns["text_offset"] == [1, 1 + len(columns["tokens"][0])]
        assert columns["token_logprobs"] == [-0.25, -0.5]
        assert [len(top) for top in columns["top_logprobs"]] == [2, 2]
        assert reply["usage"]["prompt_tokens"] == 2 and reply["usage"]["completion_tokens"] == 8
        assert default["usage"]["completion_tokens"] == 16

    async def test_raw_streams_echo_once(self) -> None:
        async with api() as (client, _):
            body = {"prompt": "ab", "echo": True, "logprobs": 0, "max_tokens": 4, "stream": True}
            chunks = events_of(await client.post(RAW, json=body))
            whole = (await client.post(RAW, json=body | {"stream": False})).json()["choices"][0]
        parts = [c["choices"][0] for c in chunks]
        assert "".join(p["text"] for p in parts) == whole["text"]
        offsets = [n for p in parts if p["logprobs"] for n in p["logprobs"]["text_offset"]]
        assert offsets == whole["logprobs"]["text_offset"]

    async def test_a_stop_string_ends_with_stop(self) -> None:
        async with api() as (client, _):
            reply = (await client.post(CHAT, json=says("!say one two three four", stop="three"))).json()
        assert reply["choices"][0]["message"]["content"] == "one two"
        assert reply["choices"][0]["finish_reason"] == "stop"

    async def test_a_prediction_is_counted(self) -> None:
        prediction = {"type": "content", "content": "a b c d e f"}
        async with api() as (client, session):
            reply = (await client.post(CHAT, json=says("hi", prediction=prediction))).json()
            assert asked(session)[0].prediction == "a b c d e f"
        details = reply["usage"]["completion_tokens_details"]
        assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (4, 0)


class Scripted(ToySession):
    """Answers every request with the same events."""

    def __init__(self, *events: Any) -> None:
        super().__init__()
        self.events = events

    def reply(self, request: Request) -> Any:
        self.requests.append(request)
        return ScriptedReply([Prefill(3, 5, 2), *self.events])


def token(n: int, text: str, channel: Any = "content", **rest: Any) -> Token:
    return Token(n, text, channel, False, "draft", 0, **rest)


class TestEvents:
    async def test_reasoning_is_a_field_of_its_own(self) -> None:
        session = Scripted(
            token(0, "hm", "reasoning"), Text("!", "reasoning"), token(1, "yes"), Done("stop", summary(2))
        )
        async with api(session) as (client, _):
            reply = (await client.post(CHAT, json=says("hi"))).json()
            chunks = events_of(await client.post(CHAT, json=says("hi", stream=True)))
        message = reply["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("hm!", "yes")
        assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 1
        assert "".join(c["choices"][0]["delta"].get("reasoning_content", "") for c in chunks) == "hm!"

    async def test_a_full_context_counts_as_length(self) -> None:
        async with api(Scripted(token(0, "a"), Done("context", summary(1)))) as (client, _):
            reply = (await client.post(CHAT, json=says("hi"))).json()
        assert reply["choices"][0]["finish_reason"] == "length"

    async def test_half_characters_and_impossible_tokens_have_a_logprob_entry(self) -> None:
        """Known fault 42 and 49: one entry per token, also where no text was released."""
        emoji = "🦔".encode()
        session = Scripted(
            token(0, "", logprob=-1.0, piece=emoji[:2], top=((0, -1.0),), top_pieces=(emoji[:2],)),
            token(1, "🦔", logprob=float("-inf"), piece=emoji[2:], top=((1, -2.0),), top_pieces=(emoji[2:],)),
            Round("draft", 0, 0, 0, 1, 5, 0, 0, 0, 2),
            Done("stop", summary(2)),
        )
        async with api(session) as (client, _):
            reply = (await client.post(CHAT, json=says("hi", logprobs=True, top_logprobs=1))).json()
        assert reply["choices"][0]["message"]["content"] == "🦔"
        entries = reply["choices"][0]["logprobs"]["content"]
        assert bytes(entries[0]["bytes"] + entries[1]["bytes"]) == emoji
        assert entries[1]["logprob"] == -9999.0

    async def test_speculation_that_is_off_says_why(self) -> None:
        """Known fault 105: never a silent plain reply."""
        session = Scripted(
            Notice("off", "the draft failed in round 3"), token(0, "a"), Done("stop", summary(1))
        )
        async with api(session) as (client, _):
            report = (await client.post(CHAT, json=says("hi"))).json()["choices"][0]["speculation"]
        assert report["off_reason"] == "the draft failed in round 3"
        assert report["notices"] == [{"kind": "off", "reason": "the draft failed in round 3"}]

    async def test_a_pair_that_cannot_speculate_says_why(self) -> None:
        session = Scripted(token(0, "a"), Done("stop", summary(1)))
        session.info = replace(INFO, off_reason="the vocabularies differ")
        async with api(session) as (client, _):
            report = (await client.post(CHAT, json=says("hi"))).json()["choices"][0]["speculation"]
        assert report["off_reason"] == "the vocabularies differ"


HERMES = "{% if tools %}<tool_call>{% endif %}"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


class TestTools:
    """Known fault 41: calls are parsed from committed text, however it is cut into tokens and rounds."""

    def session(self, pieces: list[str]) -> Scripted:
        tokens = [token(n, piece) for n, piece in enumerate(pieces)]
        rounds = [Round("draft", 0, 0, 0, 1, 5, 0, 0, 0, 1) for _ in tokens]
        events = [event for pair in zip(tokens, rounds, strict=True) for event in pair]
        session = Scripted(*events, Done("stop", summary(len(tokens))))
        session.info = replace(INFO, chat_template=HERMES)
        return session

    @pytest.mark.parametrize("size", [1, 3, 1000])
    async def test_calls_are_parsed_whole_and_streamed(self, size: int) -> None:
        pieces = [CALL[i : i + size] for i in range(0, len(CALL), size)]
        async with api(self.session(pieces)) as (client, session):
            whole = (await client.post(CHAT, json=says("hi", tools=[WEATHER]))).json()["choices"][0]
            chunks = events_of(await client.post(CHAT, json=says("hi", tools=[WEATHER], stream=True)))
            assert asked(session)[0].tools == (WEATHER,)
        (call,) = whole["message"]["tool_calls"]
        assert (whole["message"]["content"], whole["finish_reason"]) == ("Let me see.", "tool_calls")
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
        deltas = [c["choices"][0]["delta"] for c in chunks]
        parts = [part for d in deltas for part in d.get("tool_calls", [])]
        assert "".join(d.get("content", "") for d in deltas) == "Let me see."
        assert [p["index"] for p in parts] == [0] * len(parts)
        assert parts[0]["id"].startswith("call_") and parts[0]["function"]["name"] == "weather"
        assert not any("id" in p or "name" in p["function"] for p in parts[1:])
        assert "".join(p["function"]["arguments"] for p in parts) == call["function"]["arguments"]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"

    async def test_without_tools_the_text_is_left_alone(self) -> None:
        async with api(self.session([CALL])) as (client, session):
            for choice in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
                reply = (await client.post(CHAT, json=says("hi", **choice))).json()["choices"][0]
                assert reply["message"]["content"] == CALL
                assert reply["finish_reason"] == "stop"
            assert [r.tools for r in asked(session)] == [(), ()]

    async def test_tools_that_the_template_does_not_show_are_told(self) -> None:
        async with api() as (client, _):
            reply = await client.post(CHAT, json=says("hi", tools=[WEATHER]))
            assert "knows no tools" in reply.headers["x-localspec-warning"]
            forced = await client.post(CHAT, json=says("hi", tools=[WEATHER], tool_choice="required"))
            assert (forced.status_code, forced.json()["error"]["param"]) == (400, "tool_choice")

    async def test_a_named_choice_offers_and_forces_only_that_tool(self) -> None:
        other = {"type": "function", "function": {"name": "other"}}
        async with api(self.session([CALL])) as (client, session):
            choice = {"type": "function", "function": {"name": "weather"}}
            body = says("hi", tools=[other, WEATHER], tool_choice=choice)
            assert (await client.post(CHAT, json=body)).status_code == 200
            missing = says("hi", tools=[other], tool_choice=choice)
            assert (await client.post(CHAT, json=missing)).json()["error"]["param"] == "tool_choice"
            (request,) = asked(session)
            assert request.tools == (WEATHER,)
            assert request.sampling.grammar is not None and "weather" in request.sampling.grammar
            clash = says("hi", tools=[WEATHER], tool_choice="required", grammar='root ::= "a"')
            assert (await client.post(CHAT, json=clash)).json()["error"]["param"] == "tool_choice"


class TestErrors:
    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({}, "messages"),
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
            (says("x", max_tokens="5"), "max_tokens"),
            (says("x", max_tokens=True), "max_tokens"),
            (says("x", max_tokens=0), "max_tokens"),
            (says("x", max_tokens=10**30), "max_tokens"),
            (says("x", temperature=-1), "temperature"),
            (says("x", n=1000), "n"),
            (says("x", stop=[""]), "stop"),
            (says("x", stop=["a"] * 99), "stop"),
            (says("x", seed=2**64), "seed"),
            (says("x", top_logprobs=3), "top_logprobs"),
            (says("x", logprobs=True, top_logprobs=21), "top_logprobs"),
            (says("x", logit_bias={"a": 1}), "logit_bias.a"),
            (says("x", logit_bias={"1000": 1}), "logit_bias"),
            (says("x", logit_bias={"²": 1}), "logit_bias"),
            (says("x", response_format={"type": "xml"}), "response_format"),
            (says("x", response_format={"type": "json_object"}, grammar="g"), "grammar"),
            (says("x", speculation={"metod": "off"}), "speculation.metod"),
            (says("x", speculation={"method": "magic"}), "speculation.method"),
            (says("x", speculation={"enabled": False, "require": True}), "speculation"),
            (says("x", tools=[{"type": "function", "function": {"name": "a b"}}]), "tools[0].function.name"),
            (says("x", tool_choice="required"), "tool_choice"),
            (says("x", continue_final_message=True), "continue_final_message"),
            ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]},
             "messages[0].content[0]"),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("stream", [False, True])
    async def test_wrong_bodies_are_400_and_name_the_field(
        self, body: dict[str, Any], param: str, stream: bool
    ) -> None:
        async with api() as (client, session):
            reply = await client.post(CHAT, json=body | {"stream": stream})
            assert asked(session) == []
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["type"], error["param"]) == ("invalid_request_error", param)

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"prompt": [1, 2]}, "prompt"),
            ({"prompt": []}, "prompt"),
            ({"prompt": "a", "suffix": "b"}, "suffix"),
            ({"prompt": "a", "best_of": 4, "n": 2}, "best_of"),
        ],
    )
    async def test_raw_bodies_too(self, body: dict[str, Any], param: str) -> None:
        async with api() as (client, _):
            reply = await client.post(RAW, json=body)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"].startswith(param)

    async def test_images_are_refused_with_the_reason(self) -> None:
        """Known fault 21: an image never silently loses its drafter, or its image."""
        image = {
            "messages": [
                {"role": "user", "content": [{"type": "input_image"}, {"type": "text", "text": "?"}]}
            ]
        }
        async with api() as (client, _):
            error = (await client.post(CHAT, json=image)).json()["error"]
        assert error["code"] == "unsupported_content" and "text only" in error["message"]

    @pytest.mark.parametrize(
        "body",
        [
            b"", b"[]", b"nonsense", b"\xff\xfe", b'{"messages": NaN}', b'{"a":' * 100_000, b"[" * 100_000,
            b'{"messages":[{"role":"user","content":"\\ud800"}]}', b'{"seed":' + b"9" * 10_000 + b"}",
        ],
    )  # fmt: skip
    async def test_bodies_that_are_no_json_object(self, body: bytes) -> None:
        async with api() as (client, _):
            reply = await client.post(CHAT, content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == 400
        assert reply.json()["error"]["type"] == "invalid_request_error"

    async def test_other_content_types_are_refused(self) -> None:
        """A web page may post text/plain to this machine without asking; JSON it may not."""
        async with api() as (client, session):
            reply = await client.post(
                CHAT, content=json.dumps(says("x")), headers={"Content-Type": "text/plain"}
            )
            assert reply.status_code == 415 and asked(session) == []

    @pytest.mark.parametrize("stream", [False, True])
    async def test_engine_errors_have_their_status(self, stream: bool) -> None:
        async with api() as (client, _):
            long = await client.post(CHAT, json=says("!long", stream=stream))
            refused = await client.post(CHAT, json=says("!refuse", stream=stream))
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith("the grammar does not parse at line 1")

    async def test_an_error_after_the_first_words(self) -> None:
        async with api() as (client, _):
            whole = await client.post(CHAT, json=says("!error"))
            streamed = await client.post(CHAT, json=says("!error", stream=True))
        assert (whole.status_code, whole.json()["error"]["message"]) == (500, "a row was not finite")
        assert streamed.status_code == 200
        last = streamed.text.rstrip().split("\n\n")[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["message"] == "a row was not finite"

    async def test_a_full_queue_says_when_to_come_back(self) -> None:
        async with api(limits=Limits(queued=1)) as (client, _):
            reply = await client.post(CHAT, json=says("hi", n=8))
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "queue_full")
        assert int(reply.headers["retry-after"]) > 0

    async def test_paths_and_methods(self) -> None:
        async with api() as (client, _):
            replies = [await client.get("/nope"), await client.get(CHAT), await client.get("/v1/models/none")]
        assert [r.status_code for r in replies] == [404, 405, 404]
        assert all(r.json()["error"]["type"] == "invalid_request_error" for r in replies)


class TestModels:
    async def test_the_loaded_pair_is_listed(self) -> None:
        async with api() as (client, _):
            listed = (await client.get("/v1/models")).json()
            one = (await client.get("/v1/models/scripted")).json()
        assert listed == {"object": "list", "data": [one]}
        assert (one["id"], one["object"], one["owned_by"]) == ("scripted", "model", "localspec")

    async def test_another_name_is_served_with_a_warning(self) -> None:
        async with api() as (client, _):
            reply = await client.post(CHAT, json=says("hi", model="gpt-4o"))
            same = await client.post(CHAT, json=says("hi", model="scripted"))
            odd = await client.post(CHAT, json=says("hi", model="a\r\nSet-Cookie: x=1"))
        assert reply.headers["x-localspec-warning"] == "model `gpt-4o` is not loaded; served by `scripted`"
        assert reply.json()["model"] == "scripted"
        assert "x-localspec-warning" not in same.headers
        assert odd.status_code == 200 and "set-cookie" not in odd.headers

    async def test_strict_model_names(self) -> None:
        async with api(strict_model=True) as (client, session):
            reply = await client.post(CHAT, json=says("hi", model="gpt-4o"))
            named = await client.post(CHAT, json=says("hi", model="scripted-target"))
            assert len(asked(session)) == 1
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
        assert named.status_code == 200


class TestGuards:
    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("localhost", 200), ("LOCALHOST:8080", 200), ("127.0.0.1:1", 200), ("127.9.9.9", 200),
            ("[::1]:80", 200),
            ("evil.example", 403), ("localhost.evil.example", 403), ("127.0.0.1.evil.example", 403),
            ("10.0.0.5", 403), ("my.box", 200), ("MY.BOX.:99", 200), ("", 403),
        ],
    )  # fmt: skip
    async def test_host_names(self, host: str, status: int) -> None:
        """DNS rebinding: a page whose name points at 127.0.0.1 still sends its own name."""
        async with api(allow_hosts=("my.box",)) as (client, _):
            assert (await client.get("/health", headers={"Host": host})).status_code == status

    async def test_the_key(self) -> None:
        async with api(api_key="s3cret") as (client, session):
            for path in ("/v1/models", "/metrics", "/openapi.json"):
                assert (await client.get(path)).status_code == 401
                assert (await client.get(path, headers={"Authorization": "Bearer wrong"})).status_code == 401
                assert (await client.get(path, headers={"Authorization": "Bearer s3cret"})).status_code == 200
            refused = await client.post(
                CHAT, json=says("hi"), headers={"Authorization": "Bearer ä".encode("latin-1")}
            )
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert (await client.get("/health")).status_code == 200
            assert asked(session) == []

    async def test_cross_origin_is_off_by_default(self) -> None:
        origin = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
        async with api() as (client, _):
            reply = await client.options(CHAT, headers=origin)
            assert "access-control-allow-origin" not in reply.headers
        async with api(cors_origins=("http://page.example",), api_key="k") as (client, _):
            reply = await client.options(CHAT, headers=origin)
            assert reply.headers["access-control-allow-origin"] == "http://page.example"
            other = await client.options(CHAT, headers=origin | {"Origin": "http://other.example"})
            assert "access-control-allow-origin" not in other.headers

    async def test_large_bodies(self) -> None:
        async with api(limits=Limits(body_bytes=1000)) as (client, session):
            reply = await client.post(CHAT, json=says("x" * 2000))
            assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")
            assert (await client.post(CHAT, json=says("x" * 500))).status_code == 200
            assert len(asked(session)) == 1


class TestObservation:
    async def test_health_tells_why_not(self) -> None:
        class Broken(ToySession):
            def reply(self, request: Request) -> Any:
                return ScriptedReply([Prefill(1, 1, 0), Done("error", summary(0), error="no memory")])

        async with api(Broken()) as (client, _):
            reply = await client.get("/health")
            assert (reply.status_code, reply.json()["status"]) == (503, "failed")
            assert reply.json()["reason"] == "no memory"

    async def test_metrics_add_up(self) -> None:
        done = Done(
            "stop",
            replace(
                summary(9, prompt=30, drafted=8, accepted=6, rounds=3), reused_tokens=20, speedup=2.5,
                tested_at=(3, 3, 2), accepted_at=(3, 2, 1),
            ),
        )  # fmt: skip
        async with api(Scripted(token(0, "a"), done)) as (client, _):
            before = await _metrics(client)
            for _i in range(2):
                await client.post(CHAT, json=says("hi"))
            after = await _metrics(client)
        grown = {name: after[name] - before.get(name, 0.0) for name in after}
        assert grown["localspec_prompt_tokens_total"] == 60
        assert grown["localspec_prompt_tokens_reused_total"] == 40
        assert grown["localspec_prompt_tokens_prefilled_total"] == 20
        assert grown["localspec_completion_tokens_total"] == 18
        assert grown["localspec_draft_tokens_total"] == 16
        assert grown["localspec_draft_tokens_accepted_total"] == 12
        assert grown['localspec_draft_position_tested_total{position="2"}'] == 4
        assert grown['localspec_draft_position_accepted_total{position="2"}'] == 2
        assert grown['localspec_replies_total{reason="stop"}'] == 2
        assert grown["localspec_time_to_first_token_seconds_count"] == 2
        assert grown["localspec_queue_wait_seconds_count"] == 2
        assert after["localspec_speedup"] == 2.5
        assert after["localspec_last_prompt_tokens_prefilled"] == 10
        assert after["localspec_queue_length"] == after["localspec_replies_running"] == 0
        assert after[f'localspec_requests_total{{operation="{CHAT}",status="200"}}'] == 2

    async def test_the_document_names_every_field(self) -> None:
        names = {
            "model", "messages", "stop", "seed", "temperature", "top_p", "top_k", "min_p", "presence_penalty",
            "frequency_penalty", "repeat_penalty", "logit_bias", "max_tokens", "max_completion_tokens", "n",
            "logprobs", "top_logprobs", "response_format", "grammar", "tools", "tool_choice", "stream",
            "stream_options", "prediction", "speculation", "user",
        }  # fmt: skip
        async with api() as (client, _):
            document = (await client.get("/openapi.json")).json()
        schemas = document["components"]["schemas"]
        assert names <= set(schemas["ChatBody"]["properties"])
        assert {"prompt", "echo", "logprobs"} <= set(schemas["CompletionBody"]["properties"])
        assert {"enabled", "method", "k", "p_min"} <= set(schemas["Speculation"]["properties"])
        for operation in (document["paths"][CHAT]["post"], document["paths"][RAW]["post"]):
            assert "422" not in operation["responses"]
            assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}


async def _metrics(client: httpx2.AsyncClient) -> dict[str, float]:
    text = (await client.get("/metrics")).text
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in rows}
