"""Two notations for tool calls that are not JSON: Python calls and Gemma's braces.

Each function turns the text of complete calls into (name, arguments) pairs and raises ValueError for anything
else. Nothing is evaluated.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

Calls = list[tuple[str, Mapping[str, Any]]]
MAX_TEXT = 100_000
MAX_DEPTH = 50


def python_calls(text: str) -> Calls:
    """`[f(a=1, b="x"), g()]`, `f.call(a=1)`, or a list of `{"name": …, "arguments": {…}}`."""
    if len(text) > MAX_TEXT:
        raise ValueError("too long")
    try:
        body = ast.parse(text.strip(), mode="eval").body
        nodes = body.elts if isinstance(body, ast.List) else [body]
        calls = [_python_call(node) for node in nodes]
        json.dumps(calls)  # a literal that JSON has no word for raises here
    except (SyntaxError, TypeError, KeyError, MemoryError) as error:
        raise ValueError(str(error)) from error
    return calls


def _python_call(node: ast.expr) -> tuple[str, Mapping[str, Any]]:
    if isinstance(node, ast.Dict):
        call = ast.literal_eval(node)
        return call["name"], call.get("arguments") or {}
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return ast.unparse(node.func).removesuffix(".call"), arguments


_GEMMA_CALL = re.compile(r"\s*call:([^{\s]+)\s*")
_GEMMA_KEY = re.compile(r'\s*(?:<\|"\|>)?([^:{}\[\],<]+?)(?:<\|"\|>)?\s*:')
_GEMMA_TEXT = re.compile(r'<\|"\|>(.*?)<\|"\|>', re.DOTALL)
_GEMMA_WORD = re.compile(r"[^,\]}]+")


def gemma_calls(text: str) -> Calls:
    """`call:name{key:<|"|>text<|"|>,n:42,list:[…],map:{…}}`."""
    if len(text) > MAX_TEXT:
        raise ValueError("too long")
    call = _GEMMA_CALL.match(text)
    if call is None:
        raise ValueError("not a call")
    arguments, _ = _gemma_value(text, call.end(), 0)
    if not isinstance(arguments, dict):
        raise ValueError("no arguments")
    return [(call[1], arguments)]


def _gemma_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value at `at` and where it ends."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")
    at = _skip(text, at)
    if text[at : at + 1] == "{":
        return _gemma_items(text, at + 1, depth, closing="}")
    if text[at : at + 1] == "[":
        return _gemma_items(text, at + 1, depth, closing="]")
    if (quoted := _GEMMA_TEXT.match(text, at)) is not None:
        return quoted[1], quoted.end()
    if (word := _GEMMA_WORD.match(text, at)) is None:
        raise ValueError("a value is missing")
    try:
        return json.loads(word[0].strip()), word.end()
    except ValueError:
        return word[0].strip(), word.end()


def _gemma_items(text: str, at: int, depth: int, *, closing: str) -> tuple[Any, int]:
    keyed: dict[str, Any] = {}
    items: list[Any] = []
    while True:
        at = _skip(text, at)
        if text[at : at + 1] == closing:
            return (keyed if closing == "}" else items), at + 1
        key = None
        if closing == "}":
            if (key := _GEMMA_KEY.match(text, at)) is None:
                raise ValueError("a key is missing")
            at = key.end()
        value, at = _gemma_value(text, at, depth + 1)
        if key is not None:
            keyed[key[1]] = value
        else:
            items.append(value)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != closing:
            raise ValueError("not closed")


def _skip(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at
