"""One schema out of several: references resolved, `allOf` and neighbouring keywords combined.

`flatten` returns a schema without `$ref`, `allOf`, `const` and `nullable`, its `anyOf` / `oneOf` gathered in
`choices`: a list of lists of which one member each must hold. Knows nothing of grammars.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from localspec.errors import UsageError

Schema = dict[str, Any]
_COMMENTS = frozenset({
    "$schema", "$id", "$comment", "$defs", "definitions", "$anchor", "title", "description", "default",
    "examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator", "contentMediaType",
    "contentEncoding", "strict", "name", "externalDocs", "xml",
})  # fmt: skip
"""Keywords that restrict nothing."""
_LARGER = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_SMALLER = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_COUNTS = frozenset({"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"})
_SHAPES: dict[str, type] = {
    "allOf": list, "anyOf": list, "oneOf": list, "enum": list, "required": list, "prefixItems": list,
    "properties": Mapping, "patternProperties": Mapping, "pattern": str, "format": str,
}  # fmt: skip
_MAX_REFS = 200


class Contradiction(UsageError):
    """No value can satisfy this part of the schema."""


def as_text(value: Any) -> str:
    """A JSON value as JSON text; decimals of the schema included."""
    return json.dumps(value, ensure_ascii=False, default=float)


def flatten(schema: Any, root: Any, seen: tuple[str, ...] = ()) -> Schema:
    """The schema with what it refers to and combines written into it.

    Raises:
        UsageError: a reference leads nowhere or round in a circle, or parts contradict each other.
    """
    if schema is True:
        return {}
    if not isinstance(schema, Mapping):
        raise UsageError(f"the schema has `{as_text(schema)[:80]}` where a schema is expected")
    flat: Schema = {key: _shaped(key, value) for key, value in schema.items() if key not in _COMMENTS}
    parts = [flatten(part, root, seen) for part in flat.get("allOf", [])]
    reference = flat.pop("$ref", None)
    if reference is not None:
        if reference in seen or len(seen) > _MAX_REFS:
            raise UsageError(f"the schema's reference `{reference}` leads to itself")
        parts.append(flatten(_resolve(reference, root), root, (*seen, reference)))
    flat.pop("allOf", None)
    _normalise(flat)
    for part in parts:
        flat = _merge(flat, part)
    return flat


def _shaped(key: str, value: Any) -> Any:
    """`value` if it is what keyword `key` takes."""
    if key in _COUNTS:
        if isinstance(value, bool) or not isinstance(value, int | Decimal) or value < 0 or value % 1:
            raise UsageError(f"the schema's `{key}` is `{as_text(value)[:80]}`, not a count")
        return int(value)
    shape = _SHAPES.get(key)
    if shape is not None and not isinstance(value, shape):
        raise UsageError(f"the schema's `{key}` is `{as_text(value)[:80]}`, which it cannot be")
    return value


def _normalise(flat: Schema) -> None:
    """Express keywords of other drafts and dialects by those that `json_schema` reads."""
    choices = [flat[key] for key in ("anyOf", "oneOf") if key in flat]
    for key in ("anyOf", "oneOf"):
        flat.pop(key, None)
    if any(not options for options in choices):
        raise UsageError("the schema has an `anyOf` or `oneOf` without members")
    if choices:
        flat["choices"] = choices
    if "const" in flat:
        flat["enum"] = [flat.pop("const")]
    if "type" in flat:
        flat["type"] = flat["type"] if isinstance(flat["type"], list) else [flat["type"]]
    if flat.pop("nullable", False) is True:
        if "type" in flat and "null" not in flat["type"]:
            flat["type"] = [*flat["type"], "null"]
        if "enum" in flat and None not in flat["enum"]:
            flat["enum"] = [*flat["enum"], None]
    for key, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(flat.get(key), bool) and flat.pop(key) and plain in flat:  # draft 4
            flat[key] = flat.pop(plain)
    if isinstance(flat.get("items"), list):  # before draft 2020
        flat["prefixItems"] = flat.pop("items")
        if "additionalItems" in flat:
            flat["items"] = flat.pop("additionalItems")


def _merge(one: Schema, other: Schema) -> Schema:
    merged = dict(one)
    for key, value in other.items():
        merged[key] = _both(key, merged[key], value) if key in merged else value
    return merged


def _both(key: str, a: Any, b: Any) -> Any:
    """What holds for a keyword that two parts of a schema give."""
    if a == b and type(a) is type(b):
        return a
    if key == "choices":
        return [*a, *b]
    if key in _LARGER:
        return max(a, b)
    if key in _SMALLER:
        return min(a, b)
    if key == "required":
        return list(dict.fromkeys([*a, *b]))
    if key == "properties":
        return {**a, **b, **{name: {"allOf": [a[name], b[name]]} for name in a if name in b}}
    if key in ("items", "additionalProperties"):
        return False if a is False or b is False else {"allOf": [a, b]}
    if key == "enum":
        common = [value for value in a if any(same(value, other) for other in b)]
        if common:
            return common
    if key == "type":
        common = [t for t in a if t in b or (t == "integer" and "number" in b)]
        common += [t for t in b if t == "integer" and "number" in a and t not in common]
        if common:
            return common
    raise Contradiction(f"the schema combines two different values of `{key}`")


def same(a: Any, b: Any) -> bool:
    """Equal JSON values: `1` is not `true`."""
    return type(a) is type(b) and bool(a == b)


def _resolve(reference: Any, root: Any) -> Any:
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise UsageError(
            f"the schema refers to `{reference}`",
            hint="references must point into the schema itself, like `#/$defs/name`",
        )
    target = root
    for step in reference.split("/")[1:]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and step.isdecimal() and int(step) < len(target):
            target = target[int(step)]
        elif isinstance(target, Mapping) and step in target:
            target = target[step]
        else:
            raise UsageError(f"the schema refers to `{reference}`, which it does not contain")
    return target
