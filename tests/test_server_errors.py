"""What the server refuses, in this process: wrong bodies, engine errors, hosts, keys, origins, sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localspec.server.settings import Limits
from tests.kit.api import CHAT, RAW, api, asked, says


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
            (says("x", stop=[""]), "stop[0]"),
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
        assert error["code"] == "unsupported_content" and "read text only" in error["message"]

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
