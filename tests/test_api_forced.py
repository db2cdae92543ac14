"""Forced tool calls: what the grammar lets through is a call that the parser reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localspec.api.forced import CALL_STARTS, JSON_CALLS, forced_call
from localspec.engine.text.gbnf import parse_grammar
from localspec.engine.text.grammar import check_grammar
from localspec.engine.text.toolcalls import ToolParser
from localspec.engine.text.toolformats import FORMATS, detect_tools
from localspec.errors import UsageError

POINT = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/point"}, "say": {"type": "string"}},
    "required": ["at"],
    "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
}


def tool(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name} | ({"parameters": parameters} if parameters else {}),
    }


@pytest.mark.parametrize("name", [*JSON_CALLS, *CALL_STARTS])
def test_every_grammar_is_one_that_llama_cpp_takes(name: str) -> None:
    grammar = forced_call(name, [tool("root-string", POINT), tool("string", POINT), tool("plain")])
    assert grammar is not None
    check_grammar(grammar)
    assert "root-string" in grammar


@pytest.mark.parametrize("name", JSON_CALLS)
def test_the_fixed_text_is_a_call_for_the_parser(name: str) -> None:
    """The opening, the key and the closing of the table are those that the model's notation is read with."""
    tools = [tool("f", POINT)]
    opening, key, closing = JSON_CALLS[name]
    text = f'{opening}{{"name": "f", "{key}": {{"at": {{"x": 1}}}}}}{closing}'
    format = next((known for known in FORMATS if known.name == name), detect_tools("{{ tools }}"))
    assert format is not None
    parser = ToolParser(format, tools)
    parser.feed(text)
    parser.finish()
    (call,) = parser.calls
    assert (call.name, json.loads(call.arguments)) == ("f", {"at": {"x": 1}})
    # The grammar begins and ends with that text.
    rules = parse_grammar(forced_call(name, tools) or "")
    (call_rule,) = rules["tool-0-call"]
    assert call_rule[0].text == f'{opening}{{"name": "f", "{key}": '  # type: ignore[union-attr]
    assert call_rule[-1].text == "}" + closing  # type: ignore[union-attr]


def test_a_forced_start_is_a_call_for_the_parser() -> None:
    formats = {known.name: known for known in FORMATS}
    bodies = {
        "qwen-xml": "<parameter=say>\nhi\n</parameter>\n</function>\n</tool_call>",
        "glm": "<arg_key>say</arg_key>\n<arg_value>hi</arg_value>\n</tool_call>",
    }
    for name, (before, after) in CALL_STARTS.items():
        parser = ToolParser(formats[name], [tool("f", POINT)])
        parser.feed(f"{before}f{after}{bodies[name]}")
        parser.finish()
        assert [(call.name, json.loads(call.arguments)) for call in parser.calls] == [("f", {"say": "hi"})]


def test_names_of_rules_do_not_mix_and_terminals_stay() -> None:
    grammar = forced_call("hermes", [tool("a", POINT), tool("b", {"type": "object", "properties": {}})])
    rules = parse_grammar(grammar or "")
    assert len(rules["root"]) == 2
    assert "tool-0-root" in rules and "tool-1-root" in rules
    assert not any(name in rules for name in ("value", "string", "ws"))
    assert '\\"at\\"' in (grammar or ""), "what stands in quotes keeps its name"


def test_other_notations_and_bad_schemas() -> None:
    assert forced_call("kimi", [tool("f")]) is None
    with pytest.raises(UsageError):
        forced_call("hermes", [tool("f", {"type": "objekt"})])
