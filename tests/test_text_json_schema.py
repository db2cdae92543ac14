# ruff: noqa: E501 (schemas on one line)
"""Schemas become grammars: everything a grammar lets through is valid, and what a model would say is let through."""

from __future__ import annotations

import json
import random
import re
import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.text.json_schema import schema_to_grammar
from localspec.engine.text.schema_numbers import integer_between, number_between
from localspec.errors import UsageError
from tests.kit.gbnf_walk import Walker


def walker(schema: object) -> Walker:
    return Walker(schema_to_grammar(schema if isinstance(schema, str) else json.dumps(schema)).text)


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
        "nick": {"type": ["string", "null"]},
    },
    "required": ["name", "age"],
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "number"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["v"],
        }
    },
    "$ref": "#/$defs/node",
}
SHAPES = {"oneOf": [
    {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["kind", "r"]},
    {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "number"}}, "required": ["kind", "side"]},
]}  # fmt: skip

CASES = [
    (PERSON, ['{"name": "Bo", "age": 7}', '{"name":"Bo","age":130,"tags":["a","b"],"nick":null}'],
     ['{"age": 7, "name": "Bo"}', '{"name": "", "age": 7}', '{"name": "abcdef", "age": 7}', '{"name": "Bo"}',
      '{"name": "Bo", "age": 131}', '{"name": "Bo", "age": 7, "tags": []}', '{"name": "Bo", "age": 7, "x": 1}', "[]"]),
    (TREE, ['{"v": 1}', '{"v": 1, "kids": [{"v": 2.5, "kids": []}, {"v": -3e5}]}'], ['{"kids": []}', '{"v": "1"}', '{"v": 01}']),
    (SHAPES, ['{"kind": "circle", "r": 1}', '{"kind": "square", "side": 2}'], ['{"kind": "circle", "side": 2}', '{"kind": "x"}']),
    ({}, ["1", '"x"', "null", "true", '{"a": [1, {"b": null}]}', "[]"], ["", "nul", "{a: 1}", "[1,]", "'x'"]),
    (True, ["1"], []),
    ({"type": "object"}, ["{}", '{"a": 1, "b": {"c": []}}', '{\n  "a": 1\n}'], ["[]", '{"a"}', '{"a": 1,}']),
    ({"type": "array"}, ["[]", '[1, "x", [null]]'], ["{}", "[1 2]"]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", '{"a": 1, "b": 2}'], ['{"a": "x"}']),
    ({"type": "object", "properties": {"name": {"type": "integer"}, "nam": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}},
     ['{"name": 1, "nam": 2}', '{"name": 1, "n": true, "namex": false, "": true}', '{"x": true}'],
     ['{"name": true}', '{"nam": true}', '{"name": 1, "name": true}', '{"n\\u0061m": true}', '{"n": 1}']),
    ({"type": "object", "patternProperties": {"^x-[a-z]+$": {"type": "integer"}}, "additionalProperties": False}, ["{}", '{"x-a": 1}'], ['{"y": 1}', '{"x-1": 1}']),
    ({"type": "object", "required": ["x"]}, ['{"x": 1}', '{"x": [], "y": 2}'], ["{}", '{"y": 2}']),
    ({"type": "object", "properties": {}, "additionalProperties": False}, ["{}", "{ }"], ['{"a": 1}']),
    ({"type": "object", "properties": {k: {"type": "integer"} for k in "abcd"}, "required": ["c"]},
     ['{"c": 1}', '{"a": 1, "c": 2}', '{"b": 1, "c": 2, "d": 3}', '{"a":1,"b":2,"c":3,"d":4}'],
     ['{"a": 1}', '{"c": 1, "a": 2}', '{"a": 1,}', '{, "c": 1}', '{"a": 1 "c": 2}']),
    ({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, ["[]", "[true]", "[true, false]"], ["[true, true, true]", "[1]"]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, ["[true, false]", "[true,true,true]"], ["[]", "[true]"]),
    ({"type": "array", "items": {"type": "boolean"}, "maxItems": 0}, ["[]"], ["[true]"]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}, ['[1, "a"]'], ["[1]", '[1, "a", 2]', '["a", 1]']),
    ({"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "boolean"}, "maxItems": 3}, ["[1]", "[1, true, false]"], ["[true]", "[1, true, true, true]"]),
    ({"enum": [1, "a", None, True, 2.5, {"k": []}]}, ["1", '"a"', "null", "true", "2.5", '{"k": []}'], ["2", '"b"', "false"]),
    ({"enum": [1, "a", 2.0], "type": "integer"}, ["1", "2.0"], ['"a"']),
    ({"const": 'é"\n\\'}, ['"é\\"\\n\\\\"'], ['"e"']),
    ({"enum": [f"item {i}" for i in range(100)] + ["item"]}, ['"item 7"', '"item 99"', '"item"'], ['"item 100"', '"ite"', '"item 7', '"item 0 "']),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"é漢😀"', '"\\n\\u00e9"'], ['"a"', '"abcd"']),
    ({"type": "string"}, ['""', '"a \\" \\\\ \\/ \\b"', '"é漢😀"'], ['"\n"', '"\\x"', '"\\ud800"', '"a', "a"]),
    ({"type": "string", "pattern": "^[A-Z]{2}-\\d{3,4}(x|y\\.z)?$"}, ['"AB-123"', '"AB-1234y.z"'], ['"AB-12"', '"ab-123"', '"AB-123yXz"', '"AB-123 "']),
    ({"type": "string", "pattern": "ab+"}, ['"ab"', '"xxabbbyy"'], ['"a"', '"ba"']),
    ({"type": "string", "pattern": "^a|b$"}, ['"a..."', '"...b"'], ['"xax"']),
    ({"type": "string", "pattern": "^[^a-z\\\\]*$"}, ['"A1 é\\""', '""', '"\\n"'], ['"a"', '"\\\\"']),
    ({"type": "string", "pattern": "^\\u0041\\x42(?:c)(?<d>d)\\/\\.$"}, ['"ABcd/."'], ['"ABcd/x"']),
    ({"type": "string", "format": "date"}, ['"2026-12-01"', '"2024-02-29"'], ['"2026-13-01"', '"2026-04-31"', '"26-1-1"']),
    ({"type": "string", "format": "date-time"}, ['"2026-12-01T10:20:30Z"', '"2026-12-01T10:20:30.5+02:00"'], ['"2026-12-01 10:20:30"', '"2026-12-01T25:00:00Z"']),
    ({"type": "string", "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123e4567"']),
    ({"type": "integer"}, ["0", "-7", "123"], ["1.5", "01", "+1", "1e5"]),
    ({"type": "number"}, ["0", "-7.25", "1e5", "1.5E-3"], [".5", "1.", "01", "NaN"]),
    ({"type": "boolean"}, ["true", "false"], ["True", "1"]),
    ({"type": "null"}, ["null"], ["None"]),
    ({"type": "string", "nullable": True}, ['"a"', "null"], ["1"]),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["1", "null"], ['"a"']),
    ({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "string"}, "a": {"minimum": 3, "maximum": 5}}}]},
     ['{"a": 4}', '{"a": 3, "b": "x"}'], ['{"b": "x"}', '{"a": 6}']),
    ({"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"], "anyOf": [{"properties": {"k": {"const": "a"}, "x": {"type": "integer"}}, "required": ["x"]}, {"properties": {"k": {"const": "b"}}}, {"type": "string"}]},
     ['{"k": "a", "x": 1}', '{"k": "b"}'], ['{"k": "a"}', '{"k": "c"}', '"a"']),
    ({"$ref": "#/definitions/a~1b%20c", "definitions": {"a/b c": {"type": "null"}}}, ["null"], ["1"]),
    ({"minimum": 3}, ["3", "4.5"], ["2", '"a"']),
    ({"type": "integer", "exclusiveMinimum": True, "minimum": 3}, ["4"], ["3"]),
    ({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
     ['{"next": null}', '{"next": {"next": {"next": null}}}'], ['{"next": 1}', "{}"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES)
def test_valid_values_pass_and_invalid_ones_do_not(schema, valid, invalid):
    found = walker(schema)
    for text in valid:
        json.loads(text)
        assert found.matches(text), text
    for text in invalid:
        assert not found.matches(text), text


@pytest.mark.parametrize("schema", [case[0] for case in CASES])
def test_everything_the_grammar_produces_is_json(schema):
    found, rng = walker(schema), random.Random(0)
    for _ in range(25):
        text = found.produce(rng)
        json.loads(text)
        assert found.matches(text)


def test_a_string_pattern_lets_through_exactly_what_the_expression_finds():
    rng = random.Random(1)
    for pattern in ("^(a|bc)*d?$", "[ab]{2,3}", "^\\w+@\\w+\\.(com|org)$", "^[\\d\\s-]+$", "x.y", "^$", ""):
        found = walker({"type": "string", "pattern": pattern})
        for _ in range(60):
            value = json.loads(found.produce(rng))
            assert re.search(pattern, value, re.ASCII | re.DOTALL), (pattern, value)
        for _ in range(60):
            value = "".join(rng.choice("abcdxy .@-1\n") for _ in range(rng.randrange(5)))
            # ECMA's `.` and `$` stop at fewer characters than Python's, so line ends are left out there.
            if "\n" not in value:
                assert found.matches(json.dumps(value)) == bool(re.search(pattern, value, re.ASCII)), (
                    pattern,
                    value,
                )


@given(st.integers(-1200, 1200), st.integers(0, 1500), st.booleans(), st.booleans())
def test_integers_between_bounds(low, span, has_low, has_high):
    high = low + span
    expression = integer_between(low if has_low else None, high if has_high else None)
    assert expression is not None
    found = Walker(f"root ::= {expression}")
    for value in {
        low - 1,
        low,
        low + 1,
        high - 1,
        high,
        high + 1,
        0,
        9,
        10,
        -1,
        99,
        100,
        -100,
        (low + high) // 2,
    }:
        inside = (not has_low or value >= low) and (not has_high or value <= high)
        assert found.matches(str(value)) == inside, value


decimals = st.decimals(-20, 20, places=2)


@given(decimals, decimals, st.booleans(), st.booleans(), st.lists(st.decimals(-21, 21, places=3), max_size=8))
def test_decimals_between_bounds(a, b, low_open, high_open, values):
    low, high = sorted((a, b))
    expression = number_between((low, low_open), (high, high_open))
    near = [edge + Decimal(step) / 1000 for edge in (low, high) for step in (-10, -1, 0, 1, 10)]
    inside = [
        v
        for v in [*values, *near]
        if low <= v <= high and not (low_open and v == low) and not (high_open and v == high)
    ]
    if expression is None:
        assert low == high or not inside
        return
    found = Walker(f"root ::= {expression}")
    for value in [*values, *near]:
        text = f"{value:f}"
        if not (value == 0 and text.startswith("-")):
            assert found.matches(text) == (value in inside), text


@given(decimals, st.booleans(), st.lists(st.decimals(-21, 21, places=3), max_size=8))
def test_decimals_with_one_bound(bound, is_open, values):
    above, below = number_between((bound, is_open), None), number_between(None, (bound, is_open))
    assert above is not None and below is not None
    for value in [*values, bound, bound + Decimal("0.001"), bound - Decimal("0.001")]:
        if value:
            text = f"{value:f}"
            assert Walker(f"root ::= {above}").matches(text) == (
                value > bound or (value == bound and not is_open)
            )
            assert Walker(f"root ::= {below}").matches(text) == (
                value < bound or (value == bound and not is_open)
            )


@pytest.mark.parametrize(("least", "most"), [(0, 499), (0, 500), (3, 1201), (1000, None), (1999, 2300)])
def test_long_strings_are_counted_beyond_what_llama_cpp_repeats(least, most):
    schema = {"type": "string", "minLength": least, **({} if most is None else {"maxLength": most})}
    found = walker(schema)
    for length in {0, least - 1, least, (least + (most or 3000)) // 2, most or 3000, (most or 3000) + 1}:
        if length >= 0:
            wanted = length >= least and (most is None or length <= most)
            assert found.matches('"' + "a" * length + '"') == wanted, length


def test_space_is_bounded():
    found = walker({"type": "object", "properties": {"a": {}}, "required": ["a"]})
    assert found.allows("{\n" + " " * 20) and not found.allows("{\n" + " " * 21)
    assert found.allows("{\n\n") and not found.allows("{\n\n\n") and not found.allows("{  ")


def test_what_narrows_a_value_but_no_grammar_can_say_is_noted():
    schema = {"type": "array", "uniqueItems": True, "items": {"type": "integer", "multipleOf": 3}}
    assert schema_to_grammar(json.dumps(schema)).notes == (
        "`uniqueItems` of the schema is not enforced",
        "`multipleOf` of the schema is not enforced",
    )
    length = schema_to_grammar('{"type": "string", "pattern": "a", "minLength": 3, "format": "email"}')
    assert len(length.notes) == 2
    assert schema_to_grammar('{"type": "string", "maxLength": 2147483647}').notes == (
        "`maxLength` 2147483647 of the schema is not enforced",
    )
    assert schema_to_grammar(json.dumps(PERSON)).notes == ()


def nested(depth: int) -> str:
    return '{"type": "array", "items": ' * depth + '{"type": "integer"}' + "}" * depth


def doubling(depth: int) -> str:
    rules = {f"r{depth}": {"type": "integer"}}
    for i in range(depth):
        inner = {"$ref": f"#/$defs/r{i + 1}"}
        rules[f"r{i}"] = {
            "anyOf": [{"allOf": [inner, {"minimum": 2 * i}]}, {"allOf": [inner, {"minimum": 2 * i + 1}]}]
        }
    return json.dumps({"$defs": rules, "$ref": "#/$defs/r0"})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('{"a":', "no JSON: "),
        ("5", "where a schema is expected"),
        ("false", "where a schema is expected"),
        ('{"type": "foo"}', 'the type `["foo"]`'),
        ('{"type": []}', "the type"),
        ('{"properties": [1]}', "`properties` is `[1]`"),
        ('{"required": 5}', "`required` is `5`"),
        ('{"enum": []}', "`enum` without a value"),
        ('{"enum": ["a"], "type": "integer"}', "`enum` without a value"),
        ('{"anyOf": []}', "without members"),
        ('{"anyOf": [{"type": "string"}], "type": "integer"}', "two different values of `type`"),
        ('{"type": "integer", "minimum": 5, "maximum": 3}', "no number between"),
        ('{"type": "integer", "minimum": "5"}', "`minimum` is no number"),
        ('{"type": "integer", "minimum": 1' + "0" * 5000 + "}", "malformed"),
        ('{"type": "number", "minimum": 1e999999}', "more than 40 digits"),
        ('{"minimum": Infinity}', "Infinity is no JSON"),
        ('{"type": "string", "minLength": -1}', "not a count"),
        ('{"type": "string", "minLength": 3, "maxLength": 2}', "at least 3 and at most 2"),
        ('{"type": "string", "minLength": 3000000}', "at most 200000"),
        ('{"type": "array", "minItems": 2, "maxItems": 1}', "at least 2 and at most 1"),
        ('{"type": "object", "properties": {"a": {}}, "required": ["b"]}', "requires `b`"),
        ('{"not": {}}', "uses `not`"),
        ('{"if": {}, "then": {}}', "uses `if`"),
        ('{"$ref": "#"}', "leads to itself"),
        ('{"allOf": [{"$ref": "#"}]}', "leads to itself"),
        ('{"anyOf": [{"$ref": "#"}, {"type": "null"}]}', "left-recursive"),
        ('{"$ref": "#/x"}', "which it does not contain"),
        ('{"$ref": "https://example.org/s"}', "refers to `https://example.org/s`"),
        ('{"allOf": [{"type": "string"}, {"type": "integer"}]}', "two different values of `type`"),
        ('{"allOf": [{"pattern": "a"}, {"pattern": "b"}]}', "two different values of `pattern`"),
        ('{"pattern": "(?=a)"}', "look-around"),
        ('{"pattern": "(a"}', "not closed"),
        ('{"pattern": "a)"}', "too many"),
        ('{"pattern": "[z-a]"}', "range that is none"),
        ('{"pattern": "\\\\1"}', "`\\1`"),
        ('{"pattern": "\\\\bx"}', "`\\b`"),
        ('{"pattern": "a{3,1}"}', "bounds swapped"),
        ('{"pattern": "*"}', "nothing before `*`"),
        ('{"pattern": "(a*)*"}', "may be empty"),
        ('{"pattern": "' + "(" * 100 + '"}', "nested more than"),
        (nested(500), "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        (doubling(40), "more than 5000 ways"),
        ('{"x": "' + "a" * (1 << 18) + '"}', "characters"),
    ],
)
def test_a_schema_that_cannot_become_a_grammar_is_refused_in_a_sentence_and_in_time(schema, words):
    start = time.monotonic()
    with pytest.raises(UsageError) as error:
        schema_to_grammar(schema)
    assert words in error.value.message
    assert time.monotonic() - start < 10


def test_large_schemas_stay_linear():
    wide = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(300)}}
    start = time.monotonic()
    text = schema_to_grammar(json.dumps(wide)).text
    assert time.monotonic() - start < 5
    assert len(text) < 300 * 250
    assert Walker(text).matches('{"p7": 1, "p299": 2}')
    assert len(schema_to_grammar(json.dumps({"enum": [f"value {i}" for i in range(5000)]})).text) < 10_000
    schema_to_grammar(nested(50))
