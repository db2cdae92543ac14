"""The HTTP surface in this process: bodies, models, health, metrics, the OpenAPI document."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from localspec.engine.events import Done, Prefill
from localspec.engine.settings import Message, Request, SamplingSettings, SpeculationSettings
from localspec.server.settings import Limits
from tests.kit.api import CHAT, RAW, Scripted, api, asked, says, token
from tests.kit.scripted import ScriptedReply, summary
from tests.kit.toy import ToySession


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

    async def test_an_integral_float_is_an_integer(self) -> None:
        async with api() as (client, session):
            assert (await client.post(CHAT, json=says("hi", max_tokens=5.0, seed=3.0))).status_code == 200
            assert (await client.post(CHAT, json=says("hi", max_tokens=5.5))).status_code == 400
            (request,) = asked(session)
        assert (request.max_tokens, request.sampling.seed) == (5, 3)

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
