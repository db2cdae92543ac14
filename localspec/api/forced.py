"""Grammars that make a reply a tool call, for `tool_choice` `required` and named tools.

Only for notations whose text is fixed up to the arguments. Arguments that are JSON in the reply follow the
tool's schema; where a notation writes them otherwise, the grammar forces the start of the call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from localspec.engine.text.json_schema import schema_to_grammar
from localspec.engine.text.schema_rules import quote

JSON_CALLS = {
    "hermes": ("<tool_call>\n", "arguments", "\n</tool_call>"),
    "nemotron": ("<TOOLCALL>[", "arguments", "]</TOOLCALL>"),
    "granite": ("<|tool_call|>[", "arguments", "]"),
    "llama": ("", "parameters", ""),
    "json": ("", "arguments", ""),
}
"""Name of a `ToolFormat` → (what opens a call, the key of its arguments, what closes it)."""
CALL_STARTS = {
    "qwen-xml": ("<tool_call>\n<function=", ">\n"),
    "glm": ("<tool_call>", "\n"),
}
"""Name of a `ToolFormat` → what is before and after the tool's name; the rest of the call is free."""
ANY_ARGUMENTS = {"type": "object"}
_TERMINAL_OR_NAME = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|[a-zA-Z][a-zA-Z0-9-]*')


def forced_call(format: str, tools: Sequence[dict[str, Any]]) -> str | None:
    """GBNF of one call of one of these tools; None when the notation has no fixed text.

    Raises:
        UsageError: the schema of a tool's parameters is malformed or beyond a grammar.
    """
    functions = [tool["function"] for tool in tools]
    if format in CALL_STARTS:
        before, after = CALL_STARTS[format]
        names = " | ".join(quote(function["name"]) for function in functions)
        return f"root ::= {quote(before)} ({names}) {quote(after)} .*\n"
    if format not in JSON_CALLS:
        return None
    opening, key, closing = JSON_CALLS[format]
    rules: list[str] = []
    for number, function in enumerate(functions):
        head = f'{opening}{{"name": {json.dumps(function["name"])}, "{key}": '
        prefix = f"tool-{number}-"
        rules.append(f"{prefix}call ::= {quote(head)} {prefix}root {quote('}' + closing)}")
        schema = json.dumps(function.get("parameters") or ANY_ARGUMENTS)
        rules.append(_renamed(schema_to_grammar(schema).text, prefix))
    calls = " | ".join(f"tool-{number}-call" for number in range(len(functions)))
    return "\n".join([f"root ::= {calls}", *rules])


def _renamed(grammar: str, prefix: str) -> str:
    """The same rules under other names, so that several grammars can stand in one."""

    def rename(match: re.Match[str]) -> str:
        return match[0] if match[0][0] in '"[' else prefix + match[0]

    return _TERMINAL_OR_NAME.sub(rename, grammar)
