"""A JSON schema as a GBNF grammar: whatever the grammar lets through is valid for the schema.

Stricter than the schema in a few ways that suit a model: properties come in the order they are declared,
only declared ones appear unless `additionalProperties` allows others, space is bounded. What a grammar
cannot express and what changes the shape of a value (`not`, `if`) is refused; what only narrows a value
(`multipleOf`, `uniqueItems`) is left out with a note. Time and size are bounded. Knows no vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn

from localspec.engine.text import schema_leaves as leaves
from localspec.engine.text.encode import common_start
from localspec.engine.text.grammar import check_grammar
from localspec.engine.text.schema_merge import Contradiction, Schema, as_text, flatten, same
from localspec.engine.text.schema_pattern import pattern_to_gbnf
from localspec.engine.text.schema_rules import MAX_BOUND, NOTHING, RuleBook, char_class, either, quote
from localspec.errors import UsageError

MAX_CHARS = 1 << 18
MAX_DEPTH = 64
MAX_VISITS = 20_000
"""Sub-schemas looked at, references followed anew each time."""
MAX_READ = 20_000_000
"""Characters of all sub-schemas looked at."""
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")

_WS = '| " " | "\\n"{1,2} [ \\t]{0,20}'
_REFUSED = frozenset({
    "not", "if", "then", "else", "contains", "dependentSchemas", "dependentRequired", "dependencies",
    "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
})  # fmt: skip
_NOTED = {
    "multipleOf": (1,),
    "uniqueItems": (False,),
    "minProperties": (0,),
    "maxProperties": (),
    "propertyNames": (True,),
}
"""Keywords that only narrow a value, with the values that narrow nothing."""
_HINTS: dict[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties", "patternProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "minLength", "maxLength", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
"""Keywords that say which type is meant when `type` does not."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar made from a schema."""

    text: str
    """GBNF, checked."""
    notes: tuple[str, ...]
    """What the schema asks for and the grammar does not enforce, one clause each."""


def schema_to_grammar(schema: str) -> Grammar:
    """The grammar of the values that JSON text `schema` describes.

    Raises:
        UsageError: it is no JSON, no schema, contradicts itself, or is beyond a grammar.
    """
    if len(schema) > MAX_CHARS:
        raise UsageError(f"the schema has {len(schema)} characters, at most {MAX_CHARS} are possible")
    try:
        parsed = json.loads(schema, parse_float=Decimal, parse_constant=_no_constant)
        converter = _Converter(parsed)
        text = converter.text()
    except json.JSONDecodeError as error:
        raise UsageError(f"the schema is no JSON: {error.msg} at line {error.lineno}") from error
    except RecursionError as error:
        raise UsageError("the schema is nested too deeply") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UsageError(f"the schema is malformed: {error}") from error
    check_grammar(text)
    return Grammar(text, tuple(converter.notes))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


class _Converter:
    """Visits a schema and collects rules."""

    def __init__(self, root: Any) -> None:
        self.notes: dict[str, None] = {}
        self._root = root
        self._rules = RuleBook()
        self._known: dict[str, str] = {}  # canonical schema → rule name
        self._visits = self._read = 0
        self._depth = 0

    def text(self) -> str:
        root = self._visit(self._root, "value")
        return self._rules.text(root)

    # --- shared rules

    def _ws(self) -> str:
        return self._rules.add("ws", _WS)

    # --- dispatch

    def _visit(self, schema: Any, hint: str) -> str:
        """Name of the rule for a schema."""
        self._visits += 1
        if self._visits > MAX_VISITS or self._depth > MAX_DEPTH:
            raise UsageError("the schema is too large or nested too deeply for a grammar")
        flat = flatten(schema, self._root)
        key = json.dumps(flat, sort_keys=True, default=str)
        self._read += len(key)
        if self._read > MAX_READ:
            raise UsageError("the schema repeats too much of itself for a grammar")
        if key not in self._known:
            # Known before it is built, so that a schema may contain itself.
            name = self._known[key] = self._rules.reserve(hint)
            self._rules.define(name, NOTHING)  # what a contradiction leaves behind
            self._depth += 1
            try:
                self._rules.define(name, self._body(flat, hint))
            finally:
                self._depth -= 1
        return self._known[key]

    def _body(self, flat: Schema, hint: str) -> str:
        for key in flat:
            if key in _REFUSED:
                raise UsageError(f"the schema uses `{key}`, which a grammar cannot express")
            if key in _NOTED and not any(same(flat[key], harmless) for harmless in _NOTED[key]):
                self._note(f"`{key}`")
        if "choices" in flat:
            return self._choices(flat, hint)
        if "enum" in flat:
            return self._enum(flat)
        types = flat["type"] if "type" in flat else self._meant(flat)
        unknown = [t for t in types if t not in TYPES]
        if unknown or not types:
            raise UsageError(
                f"the schema has the type `{as_text(unknown)}`", hint=f"types: {', '.join(TYPES)}"
            )
        return either(self._typed(kind, flat, hint) for kind in types)

    def _meant(self, flat: Schema) -> list[str]:
        hinted = [kind for kind, keys in _HINTS.items() if any(key in flat for key in keys)]
        return hinted or [*TYPES[:4], "boolean", "null"]

    def _choices(self, flat: Schema, hint: str) -> str:
        """One alternative of the first choice, everything else still to hold."""
        options, *more = flat["choices"]
        base = {key: value for key, value in flat.items() if key != "choices"}
        if more:
            base["choices"] = more
        names: list[str] = []
        errors: list[Contradiction] = []
        for number, option in enumerate(options, 1):
            both = {"allOf": [option, *_unflattened(base)]} if base else option
            try:
                names.append(self._visit(both, f"{hint}-{number}"))
            except Contradiction as error:
                errors.append(error)  # with what stands beside it, this alternative never applies
        if not names:
            raise errors[0]
        return " | ".join(dict.fromkeys(names))

    def _enum(self, flat: Schema) -> str:
        types = flat.get("type")
        values = [value for value in flat["enum"] if types is None or _type_of(value) & set(types)]
        if not values:
            raise Contradiction("the schema has an `enum` without a value of its `type`")
        return self._words([as_text(value) for value in values])

    def _words(self, words: Sequence[str]) -> str:
        """One of many literals; long lists share their beginnings, which costs the sampler less."""
        words = list(dict.fromkeys(words))
        if len(words) <= 16:
            return " | ".join(map(quote, words))
        groups: dict[str, list[str]] = {}
        for word in words:
            groups.setdefault(word[:1], []).append(word)
        if len(groups) == 1:
            shared = len(_common(words))
            return f"{quote(words[0][:shared])} ({self._words([word[shared:] for word in words])})"
        return " | ".join(
            self._rules.add("words", self._words(group)) if len(group) > 1 else quote(group[0])
            for group in groups.values()
        )

    def _typed(self, kind: str, flat: Schema, hint: str) -> str:
        if kind == "object":
            return self._object(flat, hint)
        if kind == "array":
            return self._array(flat, hint)
        if kind == "string":
            return leaves.string(flat, self._rules, self._note)
        if kind in ("number", "integer"):
            return leaves.number(flat, kind)
        return '"null"' if kind == "null" else '("true" | "false")'

    # --- arrays

    def _array(self, flat: Schema, hint: str) -> str:
        ws = self._ws()
        least, most = flat.get("minItems", 0), flat.get("maxItems")
        if most is not None and most < least:
            raise Contradiction(f"the schema wants at least {least} and at most {most} items")
        if most is not None and most > MAX_BOUND:
            self._note(f"`maxItems` {most}")
        first = [self._visit(item, f"{hint}-{i}") for i, item in enumerate(flat.get("prefixItems", []), 1)]
        first = first if most is None else first[:most]
        items = flat.get("items", {} if not first or least > len(first) else False)
        separator = f'"," {ws} '
        if items is False:
            if least > len(first):
                raise Contradiction(f"the schema wants {least} items and allows {len(first)}")
            return f'"[" {ws} {" ".join(_joined(first, separator))} {ws} "]"'
        item = self._visit(items, f"{hint}-item")
        more = self._rules.add(f"{hint}-more", separator + item)
        if first:
            rest = self._rules.repeat(
                more, max(0, least - len(first)), None if most is None else most - len(first), hint
            )
            return f'"[" {ws} {" ".join(_joined(first, separator))} {rest} {ws} "]"'
        if most == 0:
            return f'"[" {ws} "]"'
        inside = (
            f"{item} {self._rules.repeat(more, max(0, least - 1), None if most is None else most - 1, hint)}"
        )
        return f'"[" {ws} {f"({inside} {ws})?" if not least else f"{inside} {ws}"} "]"'

    # --- objects

    def _object(self, flat: Schema, hint: str) -> str:
        ws = self._ws()
        properties: dict[str, Any] = flat.get("properties", {})
        required = set(flat.get("required", []))
        others = self._other_members(flat, hint)
        undeclared = sorted(required - properties.keys())
        if undeclared and others is None:
            raise Contradiction(f"the schema requires `{undeclared[0]}`, which it does not allow")
        # A required name that is not declared has the schema of all others.
        declared = {**properties, **{name: flat.get("additionalProperties", True) for name in undeclared}}
        members = [
            (self._member(quote(as_text(name)), schema, f"{hint}-{name}"), name in required)
            for name, schema in declared.items()
            if schema is not False
        ]
        body = self._members(members, others, hint)
        return f'"{{" {ws} {body} {ws} "}}"' if body else f'"{{" {ws} "}}"'

    def _member(self, key: str, schema: Any, hint: str) -> str:
        return self._rules.add(f"{hint}-kv", f'{key} ":" {self._ws()} {self._visit(schema, hint)}')

    def _other_members(self, flat: Schema, hint: str) -> str | None:
        """The rule of a member that is not declared; None when there may be none."""
        declared = [name for name in flat.get("properties", {})]
        found: list[str] = []
        for pattern, schema in flat.get("patternProperties", {}).items():
            key = pattern_to_gbnf(pattern, self._rules, leaves.char(self._rules))
            found.append(self._member(f'"\\"" {key} "\\""', schema, f"{hint}-pattern"))
        allowed = flat.get("additionalProperties", not declared and not found)
        if allowed is not False:
            names = [*declared, *flat.get("required", [])]
            found.append(self._member(self._other_key(names), allowed, f"{hint}-other"))
        return either(found) if found else None

    def _other_key(self, names: Sequence[str]) -> str:
        """Strings that are none of `names`: they part from every name at some character."""
        if not names:
            return leaves.any_string(self._rules)
        return f'"\\"" {self._unlike([name for name in names], "")} "\\""'

    def _unlike(self, names: Sequence[str], done: str) -> str:
        """A rule for what may follow `done` so that the whole is none of `names`."""
        going_on = sorted(
            {name[len(done)] for name in names if name.startswith(done) and len(name) > len(done)}
        )
        plain = self._rules.add("plain", leaves.PLAIN_CHAR)
        # No escapes: an escaped spelling of a declared name would be that name again.
        away = char_class(tuple((ord(char), ord(char)) for char in going_on) + leaves.NOT_PLAIN)
        parts = [f"[^{away[1:-1]}] {plain}*"]
        parts += [
            f"{quote(char)} {self._unlike([n for n in names if n.startswith(done + char)], done + char)}"
            for char in going_on
            if leaves.is_plain(char)
        ]
        body = f"({' | '.join(parts)}){'' if done in names else '?'}"
        return self._rules.add("key", body)

    def _members(self, members: Sequence[tuple[str, bool]], others: str | None, hint: str) -> str:
        """Members in their order, optional ones left out or not, others after them.

        Two chains of rules, linear in the members: `first` while none was written, `next` after one.
        """
        separator = f'"," {self._ws()} '
        first = f"({others} ({separator}{others})*)?" if others else ""
        next_ = f"({separator}{others})*" if others else ""
        for member, required in reversed(members):
            tail = self._rules.add(f"{hint}-rest", next_) if next_ else ""
            started = f"{member} {tail}".rstrip()
            first = started if required else f"({started} | {first})" if first else f"({started})?"
            first = self._rules.add(f"{hint}-members", first)
            next_ = f"{separator}{started}" if required else f"({separator}{member})? {tail}".rstrip()
        return first

    def _note(self, what: str) -> None:
        self.notes[f"{what} of the schema is not enforced"] = None


def _unflattened(flat: Schema) -> list[Schema]:
    """A flattened schema as schemas that hold together."""
    plain = {key: value for key, value in flat.items() if key != "choices"}
    return [plain, *({"anyOf": options} for options in flat.get("choices", []))]


def _joined(rules: Sequence[str], separator: str) -> list[str]:
    return [rule if i == 0 else separator + rule for i, rule in enumerate(rules)]


def _common(words: Sequence[str]) -> str:
    """The longest common beginning."""
    low, high = min(words), max(words)
    return low[: common_start(low, high)]


def _type_of(value: Any) -> set[str]:
    """The schema types that a JSON value belongs to."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, Decimal):
        return {"number", "integer"} if value == value.to_integral_value() else {"number"}
    kinds: list[tuple[type, str]] = [(str, "string"), (list, "array"), (dict, "object")]
    return {name for kind, name in kinds if isinstance(value, kind)} or {"null"}
