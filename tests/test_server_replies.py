"""What clients read, in this process: whole replies, streams, log-probabilities, tool calls."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from localspec.engine.events import Done, Notice, Round, Text
from localspec.engine.settings import Message, Request
from tests.kit.api import CHAT, RAW, Scripted, api, asked, events_of, says, token
from tests.kit.scripted import INFO, summary
from tests.kit.toy import words_for


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

    async def test_tools_that_the_template_does_not_show_are_refused(self) -> None:
        session = self.session([CALL])
        session.info = INFO
        async with api(session) as (client, _):
            for choice in (None, "auto", "required"):
                reply = await client.post(CHAT, json=says("hi", tools=[WEATHER], tool_choice=choice))
                error = reply.json()["error"]
                assert (reply.status_code, error["param"]) == (400, "tools")
                assert "knows no tools" in error["message"] and "`none`" in error["message"]
            unused = await client.post(CHAT, json=says("hi", tools=[WEATHER], tool_choice="none"))
            assert unused.status_code == 200

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
