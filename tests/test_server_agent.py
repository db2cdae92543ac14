"""An agent on a model behind the server, through OpenAI's client: what a growing prompt costs, tool calls.

The models are tiny but real: template, tokenizer, caches, grammar and parser are those of any model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import openai
import pytest

from localspec.engine.text.encode import common_start
from localspec.interfaces import Companion
from tests.kit.ggufs import syn, syn_with
from tests.kit.serving import Served, metric, served_model

TURNS = 20
REPLY = 12
KINDS = {
    "full attention": ("syn",),
    "sliding window": ("syn-swa",),
    "hybrid with snapshots": ("syn-hyb",),
    "hybrid without snapshots": ("syn-hyb-nosnap",),
    "recurrent": ("syn-rec",),
    "draft model": ("syn", Companion("draft", syn("syn-near"))),
    "EAGLE-3": ("syn", Companion("eagle3", syn("eagle3"))),
    "hybrid with EAGLE-3": ("syn-hyb-few", Companion("eagle3", syn("eagle3-few"))),
}  # fmt: skip
HERMES = """\
{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def function(name: str, **properties: Any) -> Any:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


WEATHER = function("weather", city={"enum": ["Oslo", "Rome"]}, days={"enum": [1, 2]})
TOOLS = [function("clock"), WEATHER]
NAMED = {"type": "function", "function": {"name": "weather"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
SAID = f"Let me see.\n{CALL}"
SAYS = {"grammar": f"root ::= {json.dumps(SAID)}"}
"""Lets a model without knowledge say what one with knowledge would say by itself."""


def turn(client: openai.OpenAI, messages: list[Any], **options: Any) -> Any:
    return client.chat.completions.create(model="toy", messages=messages, temperature=0, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_each_turn_of_an_agent_reads_only_what_is_new(kind: str) -> None:
    """The prompt of a turn and its reply stay in the cache, but for the reply's last token, which no pass
    has read yet; that holds for every kind of memory, because nothing has to be taken back."""
    target, *companions = KINDS[kind]
    with served_model(syn(target), *companions) as server, server.openai() as client:
        before = tokens_read(server)
        messages: list[Any] = [{"role": "user", "content": "Plan the work."}]
        cached, prompts, reused = 0, 0, 0
        for number in range(TURNS):
            reply = turn(client, messages, max_tokens=REPLY, extra_body={"ignore_eos": True})
            usage = reply.usage
            if number == 0:
                cached = usage.prompt_tokens_details.cached_tokens
                assert cached <= 1, "a BOS may be left of the server's own trial"
            assert (number, usage.prompt_tokens_details.cached_tokens) == (number, cached)
            assert metric(server, "localspec_last_prompt_tokens_prefilled") == usage.prompt_tokens - cached
            assert usage.completion_tokens == REPLY
            prompts, reused = prompts + usage.prompt_tokens, reused + cached
            cached = usage.prompt_tokens + REPLY - 1
            messages += [
                {"role": "assistant", "content": reply.choices[0].message.content},
                {"role": "user", "content": f"Result {number}: done. Next?"},
            ]
        assert tokens_read(server) == tuple(
            a + b for a, b in zip(before, (prompts, reused, prompts - reused), strict=True)
        )
        assert reused > 0.8 * prompts


def tokens_read(server: Served) -> tuple[float, ...]:
    """Prompt tokens, those found in the cache, those that had to be read."""
    names = ("", "_reused", "_prefilled")
    return tuple(metric(server, f"localspec_prompt_tokens{name}_total") for name in names)


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    """Of a server whose model has a draft and a template with tools."""
    draft = Companion("draft", syn("syn-near"))
    with served_model(syn_with(HERMES), draft) as server, server.openai() as made:
        yield made


def said(client: openai.OpenAI, messages: list[Any], *, stream: bool, **options: Any) -> Any:
    """The one choice of a reply, read whole or put together by the client's own stream helper."""
    options = {"temperature": 0, "max_tokens": 300} | options
    if not stream:
        return client.chat.completions.create(model="toy", messages=messages, **options).choices[0]
    with client.chat.completions.stream(model="toy", messages=messages, **options) as events:
        return events.get_final_completion().choices[0]


USER = [{"role": "user", "content": "Will it rain?"}]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
class TestTools:
    @pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
    def test_a_forced_call_follows_the_schema(self, client: openai.OpenAI, choice: Any, stream: bool) -> None:
        forced = said(client, USER, stream=stream, tools=TOOLS, tool_choice=choice)
        assert (forced.finish_reason, forced.message.content or "") == ("tool_calls", "")
        (call,) = forced.message.tool_calls
        assert call.id.startswith("call_") and call.type == "function"
        arguments = json.loads(call.function.arguments)
        if choice == NAMED or call.function.name == "weather":
            assert call.function.name == "weather"
            assert arguments["city"] in ("Oslo", "Rome") and arguments["days"] in (1, 2)
        else:
            assert (call.function.name, arguments) == ("clock", {})

    @pytest.mark.parametrize("choice", [openai.omit, "auto"], ids=["unsaid", "auto"])
    def test_a_call_that_the_model_chose_is_parsed(
        self, client: openai.OpenAI, choice: Any, stream: bool
    ) -> None:
        free = said(client, USER, stream=stream, tools=TOOLS, tool_choice=choice, extra_body=SAYS)
        assert (free.message.content, free.finish_reason) == ("Let me see.", "tool_calls")
        (call,) = free.message.tool_calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments) == {"city": "Oslo", "days": 2}

    def test_none_leaves_the_text_alone(self, client: openai.OpenAI, stream: bool) -> None:
        none = said(client, USER, stream=stream, tools=TOOLS, tool_choice="none", extra_body=SAYS)
        assert (none.message.content, none.finish_reason) == (SAID, "stop")
        assert not none.message.tool_calls

    def test_a_call_with_drafts_is_the_plain_one(self, client: openai.OpenAI, stream: bool) -> None:
        arguments = [
            said(
                client, USER, stream=stream, tools=TOOLS, tool_choice="required",
                extra_body={"speculation": speculation},
            ).message.tool_calls[0].function
            for speculation in ({"method": "draft", "k": 4}, {"method": "off"})
        ]  # fmt: skip
        assert len({(call.name, call.arguments) for call in arguments}) == 1


@pytest.mark.parametrize("rewritten", [False, True], ids=["as written", "rewritten"])
def test_turns_with_tool_results_read_only_what_is_new(client: openai.OpenAI, rewritten: bool) -> None:
    """A call that the template writes as the model did keeps its ids; else reading goes on inside the call,
    at the latest where the text differs."""
    text = CALL.replace(", ", ",  ") if rewritten else CALL
    messages: list[Any] = [{"role": "user", "content": f"Will it rain? {rewritten}"}]
    least = most = 0
    for number in range(6):
        saying = {"grammar": f"root ::= {json.dumps(text)}"}
        reply = turn(client, messages, tools=TOOLS, max_tokens=300, logprobs=True, extra_body=saying)
        message, usage = reply.choices[0].message, reply.usage
        if number:
            assert least <= usage.prompt_tokens_details.cached_tokens <= most
        shared = common_start(text, CALL)
        ends = accumulate(len(token.token) for token in reply.choices[0].logprobs.content)
        most = usage.prompt_tokens + sum(end <= shared for end in ends)
        least = usage.prompt_tokens if rewritten else most
        (call,) = message.tool_calls
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": f"{number} mm of rain"}]
    final = turn(client, messages, tools=TOOLS, tool_choice="auto", max_tokens=REPLY)
    assert least <= final.usage.prompt_tokens_details.cached_tokens <= most
    assert final.choices[0].message.content and not final.choices[0].message.tool_calls


@pytest.mark.parametrize("choice", ["auto", "required", NAMED], ids=["auto", "required", "named"])
def test_a_model_without_tools_refuses_them(choice: Any) -> None:
    with served_model(syn("syn")) as server, server.openai() as client:
        with pytest.raises(openai.BadRequestError, match="knows no tools") as refused:
            turn(client, USER, tools=TOOLS, tool_choice=choice)
        assert refused.value.param == "tools"
        assert turn(client, USER, tools=TOOLS, tool_choice="none", max_tokens=4).usage.completion_tokens == 4
