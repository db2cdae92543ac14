# ruff: noqa: E501 (replies as models write them)
"""Tool calls are read out of replies, whatever the pieces they arrive in."""

from __future__ import annotations

import json
import random

import pytest

from localspec.engine.text.notations import gemma_calls, python_calls
from localspec.engine.text.toolcalls import CallDelta, ContentDelta, Delta, ToolParser
from localspec.engine.text.toolformats import FORMATS, detect_tools

BY_NAME = {known.name: known for known in FORMATS}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "n": {"type": "integer"}, "l": {"type": "array"}}}}},
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
        "a": {"type": "integer"}, "b": {"type": "integer"}}}}},
]  # fmt: skip
W = ("get_weather", {"city": "Paris", "n": 2})
REPLIES = [
    (
        "hermes",
        'Sure.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "n": 2}}\n</tool_call>',
        "Sure.",
        [W],
    ),
    (
        "hermes",
        '<tool_call>{"arguments": {"city": "Paris", "n": 2}, "name": "get_weather"}</tool_call>\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>\n',
        "",
        [W, ("add", {})],
    ),
    ("hermes", '<tool_call>{"name": "add"}</tool_call>after', "after", [("add", {})]),
    (
        "hermes",
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        [("add", {"a": 1})],
    ),
    ("hermes", "a <tool_call> b {x} <tool_calls", "a <tool_call> b {x} <tool_calls", []),
    ("hermes", 'text <tool_call>{"x": 1}</tool_call> more', 'text <tool_call>{"x": 1}</tool_call> more', []),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris", "n": 2}}, {"name": "add", "arguments": {"a": 1}, "id": "123456789"}]',
        "",
        [W, ("add", {"a": 1})],
    ),
    (
        "mistral",
        'Hi[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "n": 2}[TOOL_CALLS]add[CALL_ID]x1[ARGS]{"a": 1}',
        "Hi",
        [W, ("add", {"a": 1})],
    ),
    ("mistral", '[TOOL_CALLS]get_weather{"city": "Paris", "n": 2}', "", [W]),
    ("llama", '{"name": "get_weather", "parameters": {"city": "Paris", "n": 2}}', "", [W]),
    (
        "llama",
        '{"name": "get_weather", "parameters": {"city": "Paris", "n": 2}}; {"name": "add", "parameters": {"a": 1}}',
        "",
        [W, ("add", {"a": 1})],
    ),
    (
        "llama",
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris", "n": 2}}',
        "",
        [W],
    ),
    (
        "llama",
        '{"type": "function", "function": "get_weather", "parameters": {"city": "Paris", "n": 2}}',
        "",
        [W],
    ),
    ("llama", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris", "n": 2}}', "", [W]),
    ("llama", '<|python_tag|>get_weather.call(city="Paris", n=2)', "", [W]),
    (
        "llama",
        '{"answer": 42, "name": "get_weather"} is JSON',
        '{"answer": 42, "name": "get_weather"} is JSON',
        [],
    ),
    (
        "llama",
        '{"name": "unknown", "parameters": {"a": 1}}',
        '{"name": "unknown", "parameters": {"a": 1}}',
        [],
    ),
    ("llama", "[1, 2] is a list", "[1, 2] is a list", []),
    (
        "deepseek",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris", "n": 2}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "",
        [W, ("add", {"a": 1})],
    ),
    (
        "deepseek",
        'ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris", "n": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "ok",
        [W],
    ),
    (
        "kimi",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris", "n": 2}<|tool_call_end|><|tool_calls_section_end|>',
        "",
        [W],
    ),
    (
        "harmony",
        'Let me.<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris", "n": 2}<|end|>',
        "Let me.",
        [W],
    ),
    (
        "harmony",
        '<|start|>assistant to=functions.get_weather<|channel|>commentary<|message|>{"city": "Paris", "n": 2}',
        "",
        [W],
    ),
    (
        "gemma",
        '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,n:2}<tool_call|><|tool_call>call:add{a:1,b:-2}<tool_call|>',
        "",
        [W, ("add", {"a": 1, "b": -2})],
    ),
    (
        "gemma",
        '<|tool_call>call:get_weather{l:[<|"|>a<|"|>,{x:true,<|"|>y z<|"|>:null}]}<tool_call|>',
        "",
        [("get_weather", {"l": ["a", {"x": True, "y z": None}]})],
    ),
    ("gemma", "<|tool_call>nonsense<tool_call|>x", "<|tool_call>nonsense<tool_call|>x", []),
    (
        "qwen-xml",
        "I will.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nPa<b>ris\n</parameter>\n<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>",
        "I will.",
        [("get_weather", {"city": "Pa<b>ris", "n": 2})],
    ),
    (
        "qwen-xml",
        "<function=get_weather>\n<parameter=city>\n12\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=add>\n</function>\n</tool_call>",
        "",
        [("get_weather", {"city": "12"}), ("add", {})],
    ),
    (
        "glm",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n<tool_call>add\n</tool_call>",
        "",
        [W, ("add", {})],
    ),
    (
        "seed",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=n>2</parameter>\n</function>\n</seed:tool_call>",
        "",
        [W],
    ),
    (
        "minimax",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n<parameter name="n">2</parameter>\n</invoke>\n<invoke name="add">\n</invoke>\n</minimax:tool_call>',
        "",
        [W, ("add", {})],
    ),
    (
        "atem",
        '<atem:function_calls>\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Paris</atem:parameter>\n<atem:parameter name="n">2</atem:parameter>\n</atem:invoke>\n</atem:function_calls>',
        "",
        [W],
    ),
    (
        "dsml",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="n" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        "",
        [W],
    ),
    (
        "lfm2",
        '<|tool_call_start|>[get_weather(city="Paris", n=2), add(a=1)]<|tool_call_end|>done',
        "done",
        [W, ("add", {"a": 1})],
    ),
    (
        "lfm2",
        '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Paris", "n": 2}}]<|tool_call_end|>',
        "",
        [W],
    ),
    (
        "nemotron",
        '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris", "n": 2}}]</TOOLCALL>',
        "",
        [W],
    ),
    (
        "command",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris", "n": 2}}\n]<|END_ACTION|>',
        "",
        [W],
    ),
    ("granite", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "n": 2}}]', "", [W]),
    ("functools", 'functools[{"name": "get_weather", "arguments": {"city": "Paris", "n": 2}}]', "", [W]),
    ("function-tag", '<function=get_weather>{"city": "Paris", "n": 2}</function>', "", [W]),
]


def parse(format: str, pieces: list[str]) -> tuple[str, list[tuple[str, object]], list[Delta]]:
    parser = ToolParser(BY_NAME[format], TOOLS)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
    text = "".join(d.text for d in deltas if isinstance(d, ContentDelta))
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        if isinstance(delta, CallDelta):
            assert (delta.name is None) == (delta.id is None) == (delta.index in arguments)
            arguments.setdefault(delta.index, [delta.name or "", ""])[1] += delta.arguments
    assert [[call.name, call.arguments] for call in parser.calls] == list(arguments.values())
    return text, [(call.name, json.loads(call.arguments)) for call in parser.calls], deltas


@pytest.mark.parametrize(("format", "reply", "content", "calls"), REPLIES)
def test_a_reply_is_split_into_text_and_calls_whatever_its_pieces(format, reply, content, calls):
    """Known fault 41: the parser is fed with committed text only, in any number of rounds."""
    rng = random.Random(0)
    for trial in range(30):
        cuts = sorted(rng.sample(range(1, len(reply)), min(len(reply) - 1, trial)))
        if trial == 29:
            cuts = list(range(1, len(reply)))
        pieces = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
        assert parse(format, pieces)[:2] == (content, calls)


def test_a_call_streams_its_name_first_and_its_arguments_as_they_come():
    reply = 'Sure.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": {"c": "}"}}}\n</tool_call>'
    deltas = parse("hermes", list(reply))[2]
    text = [d for d in deltas if isinstance(d, ContentDelta)]
    calls = [d for d in deltas if isinstance(d, CallDelta)]
    assert "".join(d.text for d in text) == "Sure."
    assert (calls[0].name, calls[0].arguments) == ("add", "")
    assert len(calls) == 1 + len('{"a": 1, "b": {"c": "}"}}')
    assert deltas.index(calls[0]) == len(text)


def test_space_before_a_call_is_dropped_and_space_before_text_is_kept():
    assert parse("hermes", ["a \n", " b \n"])[0] == "a \n b \n"
    assert parse("hermes", ["a \n", '<tool_call>{"name": "add"}</tool_call>', " \n"])[0] == "a"


@pytest.mark.parametrize(
    "reply",
    [
        '<tool_call>{"name": "add", "arguments": {"a": ',
        '[TOOL_CALLS]add[ARGS]{"a": ',
        "<tool_call>\n<function=add>\n<parameter=a>\n1",
    ],
)
def test_a_call_cut_off_by_the_length_limit_stays_a_call(reply):
    format = detect_tools("<tool_call><function=<parameter=") if "<function" in reply else None
    format = format or BY_NAME["mistral" if "[TOOL" in reply else "hermes"]
    parser = ToolParser(format, TOOLS)
    deltas = [*parser.feed(reply), *parser.finish()]
    assert [call.name for call in parser.calls] == ["add"]
    assert not any(isinstance(delta, ContentDelta) for delta in deltas)


@pytest.mark.parametrize(
    "reply", ['<tool_call>{"na', "<tool_ca", '<tool_call>{"name": "a', '{"name": "add', "[TOOL_CALLS]"]
)
def test_a_reply_that_ends_before_a_name_is_text(reply):
    format = "mistral" if "[T" in reply else "hermes" if reply.startswith("<") else "llama"
    assert parse(format, list(reply))[:2] == (reply, [])


def test_an_endless_head_is_given_back_as_text():
    reply = "<tool_call>" + "x" * 5000
    for format in ("qwen-xml", "glm"):
        assert parse(format, [reply])[0] == reply
    reply = "[TOOL_CALLS]" + "x" * 5000
    assert parse("mistral", [reply[:100], reply[100:]])[0] == reply


def test_ids_look_like_those_of_the_models_own_conversations():
    def first_id(format: str, reply: str) -> str:
        parser = ToolParser(BY_NAME[format], TOOLS, random="z".__mul__)
        parser.feed(reply)
        return parser.calls[0].id

    assert first_id("hermes", '<tool_call>{"name": "add"}') == "call_" + "z" * 24
    assert first_id("mistral", '[TOOL_CALLS]add{"a": 1}') == "z" * 9
    kimi = "<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    assert first_id("kimi", kimi) == "functions.add:0"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<tool_call>{{ tools }}</tool_call>", "hermes"),
        ("<tool_call><function={{ name }}><parameter=x>{{ tools }}", "qwen-xml"),
        ("<tool_call>{{ tools }}<arg_key>", "glm"),
        ("[TOOL_CALLS]{{ tools }}", "mistral"),
        ("<|python_tag|> ipython parameters {{ tools }}", "llama"),
        ("<｜tool▁call▁begin｜>{{ tools }}", "deepseek"),
        ("<|start|><|channel|><|message|>{{ tools }}", "harmony"),
        ("<|tool_call>call:{{ tools }}", "gemma"),
        ("List of tools: [{{ tools }}]", "lfm2"),
        ("{{ tools }}", "json"),
    ],
)
def test_the_format_is_read_from_the_template(template, name):
    found = detect_tools(template)
    assert found is not None and found.name == name
    assert detect_tools("{{ messages }}") is None


def test_a_template_with_tools_and_no_notation_reads_a_bare_call():
    format = detect_tools("{{ tools }}")
    assert format is not None
    parser = ToolParser(format, TOOLS)
    assert [type(d) for d in parser.feed('{"name": "add", "arguments": {"a": 1}}')] == [CallDelta] * 2
    assert ToolParser(format, TOOLS).feed('{"city": 1}') == [ContentDelta('{"city": 1}')]


@pytest.mark.parametrize(
    "text",
    [
        "f(1)",
        "f(a=g())",
        "f(a=open)",
        "1 + 1",
        "__import__('os')",
        "f(a={1})",
        "f(",
        "[f(a=1), 2]",
        "x" * 100_001,
        "(" * 500,
    ],
)
def test_python_notation_evaluates_nothing(text):
    with pytest.raises(ValueError):
        python_calls(text)


@pytest.mark.parametrize(
    "text", ["call:f", "call:f{a", "call:f{a:}", "call:f[1]", "f{}", "call:f{a:[1}", "call:f{a:" + "[" * 99]
)
def test_malformed_gemma_calls_are_refused(text):
    with pytest.raises(ValueError):
        gemma_calls(text)
