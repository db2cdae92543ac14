"""Chat templates run as in transformers, and hostile ones are stopped in bounded time and memory."""

# ruff: noqa: E501 (a template with its blocks on lines of their own is another template)

from __future__ import annotations

import time
from datetime import datetime

import pytest

from localspec.engine.text.limits import LimitError
from localspec.engine.text.sandbox import FAILURES, MAX_SOURCE, Program, RaisedError


def render(source: str, *, limit_s: float = 5.0, **variables: object) -> str:
    program = Program(source, clock=lambda: datetime(2026, 3, 4, 5, 6), limit_s=limit_s)
    return program.render({"messages": [{"role": "user", "content": "hi"}], **variables})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\n  x\n{% endif %}\ny", "  x\ny"),  # trim_blocks
        ("a\n   {% if true %}b{% endif %}", "a\nb"),  # lstrip_blocks
        ("{{ {'a': 'é<b>', 'n': none} | tojson }}", '{"a": "é<b>", "n": null}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% elif i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "02"),
        ("{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{{ loop.length }}{% endfor %}", "0True1"),
        ("{% generation %}{{ 'x' }}{% endgeneration %}", "x"),
        ("{{ strftime_now('%d %b %Y') }}", "04 Mar 2026"),
        ("{% set ns = namespace(n=1) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "4"),
        ("{{ dict(a=1).items() | list }}", "[('a', 1)]"),
        ("{{ ['a', 'b'] | join(', ') }}{{ 'aXb' | replace('X', '-') }}{{ 'a\nb' | indent(2) }}", "a, ba-ba\n  b"),
        ("{{ '%s=%d' % ('a', 1) }}{{ 'x' * 3 }}{{ '{:>3}'.format('y') }}{{ 'z'.ljust(2) }}|", "a=1xxx  yz |"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') ~ m(1) }}", "<a><1>"),
        ("{% set x %}block {{ 1 }}{% endset %}{{ x }}", "block 1"),
        ("{{ missing }}{{ missing is defined }}", "False"),
        ("{% for x in [[1, [2]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}", "12"),
    ],
)  # fmt: skip
def test_what_templates_use(source, text):
    assert render(source) == text


def test_a_template_may_refuse_the_messages():
    with pytest.raises(RaisedError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


DOUBLE = (
    "{% set ns = namespace(s='aa', x=[1]) %}{% for i in range(200) %}{% set BODY %}{% endfor %}{{ ns.x }}"
)
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"

HOSTILE = {
    "loops": LOOP + "{% endfor %}" * 3,
    "loops that print": LOOP + "{{ a }}" + "{% endfor %}" * 3,
    "loops over sorted lists": "{% for a in range(99999) %}{% set x = range(99999) | list | sort %}{% endfor %}",
    "recursive loop": "{% for a in range(99999) recursive %}{% if loop.depth < 5 %}{{ loop(range(99999)) }}{% endif %}{% endfor %}",
    "recursive macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "multiplied text": "{{ 'a' * 10 ** 10 }}",
    "multiplied list": "{{ [1] * 10 ** 10 }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "squares": DOUBLE.replace("BODY", "ns.s = 3 if ns.s == 'aa' else ns.s * ns.s"),
    "added text": DOUBLE.replace("BODY", "ns.s = ns.s + ns.s"),
    "joined text": DOUBLE.replace("BODY", "ns.s = ns.s ~ ns.s"),
    "block of text": DOUBLE.replace("{% set BODY %}", "{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
    "list in a list": DOUBLE.replace("BODY", "ns.x = [ns.x, ns.x]"),
    "tuple in a tuple": DOUBLE.replace("BODY", "ns.x = (ns.x, ns.x)"),
    "dict in a dict": DOUBLE.replace("BODY", "ns.x = {'a': ns.x, 'b': ns.x}"),
    "dict calls": DOUBLE.replace("BODY", "ns.x = dict(a=ns.x, b=ns.x)"),
    "summed lists": DOUBLE.replace("BODY", "ns.x = [ns.x, ns.x] | sum(start=[])"),
    "format operator": "{{ '%1000000000d' % 1 }}",
    "format star": "{{ '%*d' % (1000000000, 1) }}",
    "format method": "{{ '{:>1000000000}'.format('x') }}",
    "format width": "{{ '{:>{w}}'.format('x', w=1000000000) }}",
    "format map": "{{ '{a:>1000000000}'.format_map({'a': 1}) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "center": "{{ 'a' | center(1000000000) }}",
    "ljust": "{{ 'a'.ljust(1000000000) }}",
    "tabs": "{{ ('\t' * 1000000).expandtabs(1000) }}",
    "indent": "{{ ('a\n' * 1000000) | indent(999) }}",
    "replace": "{% set s = 'a' * 1000000 %}{{ s.replace('', s) }}",
    "replace filter": "{% set s = 'a' * 1000000 %}{{ s | replace('a', s) }}",
    "join": "{% set s = 'a' * 1000000 %}{{ range(99999) | join(s) }}",
    "join method": "{% set s = 'a' * 1000000 %}{{ s.join(range(99999) | map('string')) }}",
    "batch": "{{ [1] | batch(1000000000, 'x') | list }}",
    "slice": "{{ [1] | slice(1000000000) | list }}",
    "range": "{{ range(1000000000) | list }}",
    "wordwrap": "{{ ('a' * 1000000) | wordwrap(1) }}",
    "deep json": "{% set ns = namespace(x=1) %}{% for i in range(900) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson(indent=900) }}",
    "date": "{{ strftime_now('%1000000000Y') }}",
    "parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "nested blocks": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "size": "x" * (MAX_SOURCE + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_stopped(name):
    start = time.monotonic()
    with pytest.raises((LimitError, RecursionError, OverflowError)):
        render(HOSTILE[name], limit_s=0.2)
    assert time.monotonic() - start < 5  # the limit, plus one step of a slow machine


def test_containers_that_share_parts_are_weighed_once():
    """A long conversation in a loop must not look like an attack."""
    messages = [{"role": "user", "content": "word " * 50}] * 2000
    source = (
        "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [m] %}"
        "{{ ns.all | length }}{{ messages | length }}{% endfor %}"
    )
    assert render(source, messages=messages, limit_s=20).endswith("20002000")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ '{0.__class__}'.format(1).x.y }}",
        "{{ namespace(_private=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
        "{{ lipsum() }}",
    ],
)
def test_the_sandbox_has_no_way_out(source):
    with pytest.raises(FAILURES):
        render(source)


def test_a_namespace_does_not_spell_its_contents():
    doubled = DOUBLE.replace("BODY", "ns.x = namespace(a=ns.x, b=ns.x)")
    assert render(doubled) == "<Namespace>"
