"""Runs a model's chat template as Hugging Face transformers does, but within limits.

A template is code from a file somebody downloaded. It runs in jinja2's immutable sandbox with the same
extensions, filters and functions as `transformers.utils.chat_template_utils`, so it renders the same text;
every loop, call, literal, filter and operator is under the budget of `limits`. A template that exceeds it is
refused; none can hang or exhaust the process. Knows nothing of tokens or roles.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2.ext
from jinja2 import nodes, pass_eval_context
from jinja2.exceptions import TemplateError
from jinja2.filters import do_indent, do_join, do_replace
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from localspec.engine.text import limits
from localspec.engine.text.limits import LimitError, bounded, budget

MAX_SOURCE = 1 << 20
"""Characters of a template."""


class RaisedError(TemplateError):
    """The template called `raise_exception`: it refuses these messages."""


FAILURES = (
    LimitError, TemplateError, ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError,
    RecursionError, SyntaxError, TypeError, ValueError,
)  # fmt: skip
"""What compiling or rendering may raise: a template is a program that can go wrong in all these ways."""


@pass_eval_context
def _join(
    ctx: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> Any:
    return do_join(ctx, limits.check_join(d, value), d, attribute)


@pass_eval_context
def _replace(ctx: nodes.EvalContext, s: str, old: str, new: str, count: int | None = None) -> Any:
    limits.check_replace(str(s), str(old), str(new))
    return do_replace(ctx, s, old, new, count)


def _indent(s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> Any:
    columns = len(width) if isinstance(width, str) else width
    limits.check_width(columns)
    limits.check_replace(str(s), "\n", " " * columns)
    return do_indent(s, width, first, blank)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja's own filter escapes HTML characters, which no model was trained on.
    limits.check_width(indent)
    bounded(value)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )  # fmt: skip
    chunks: list[str] = []
    for chunk in encoder.iterencode(value):
        budget().charge(len(chunk))
        budget().tick()
        chunks.append(chunk)
    return "".join(chunks)


def _raise_exception(message: Any) -> NoReturn:
    raise RaisedError(str(message))


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


class _Namespace(Namespace):
    """jinja's namespace without private names and without a spelling of its contents."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args  # so that `namespace(self=…)` works, as in jinja
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise LimitError(f"it stores the private name {name!r}")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; here it renders."""

    tags = {"generation"}  # noqa: RUF012 (jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Macro) -> str:
        return caller()


class _Bounds(NodeTransformer):
    """Puts loops, literals, filters and concatenations of a template under the budget."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_ticking", node.lineno)
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = _filtered(node.filter, "_bounded", node.lineno)
        return node

    def _bound(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, "_bounded", node.lineno)

    visit_Filter = visit_Concat = _bound

    def _bound_literal(self, node: nodes.List | nodes.Dict | nodes.Tuple) -> nodes.Node:
        target = isinstance(node, nodes.Tuple) and node.ctx != "load"
        return node if target or node.find(nodes.Name) is None else self._bound(node)

    visit_List = visit_Dict = visit_Tuple = _bound_literal


def _filtered(node: nodes.Node | None, name: str, line: int) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            limits.check_times(left, right)
        elif operator == "**":
            limits.check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            limits.check_format(left)
        result = super().call_binop(context, operator, left, right)
        if operator == "+" and isinstance(result, list | tuple):
            budget().joined(left, right, result)
        return bounded(result)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            limits.check_format(value.__self__)
            limits.check_width(*args, *kwargs.values())
            return wrapped(*args, **kwargs)

        return checked

    # jinja's own parameter names, so that a template may pass `self=` or `context=`.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        budget().tick()
        owner, check = getattr(__obj, "__self__", None), limits.METHODS.get(getattr(__obj, "__name__", ""))
        if isinstance(owner, str) and check is not None:
            check(owner, *args, *kwargs.values())
        return bounded(super().call(__context, __obj, *args, **kwargs))


def _environment(clock: Callable[[], datetime]) -> _Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )

    def strftime_now(format: str) -> str:
        limits.check_format(format)
        return clock().strftime(format)

    filters = environment.filters
    filters |= {
        "tojson": _tojson, "join": _join, "replace": _replace, "indent": _indent,
        "_bounded": bounded, "_ticking": limits.ticking,
    }  # fmt: skip
    for name in ("center", "format", "batch", "slice"):
        filters[name] = limits.width_checked(filters[name])
    for name in ("wordwrap", "urlize", "pprint", "striptags", "xmlattr"):
        filters[name] = limits.length_checked(filters[name])
    del environment.globals["lipsum"]
    environment.globals |= {
        "raise_exception": _raise_exception, "strftime_now": strftime_now, "dict": _dict,
        "namespace": _Namespace,
    }  # fmt: skip
    return environment


class Program:
    """A compiled chat template."""

    def __init__(self, source: str, *, clock: Callable[[], datetime], limit_s: float) -> None:
        """
        Raises:
            LimitError: the source is too long.
            any of `FAILURES`: it does not compile.
        """
        if len(source) > MAX_SOURCE:
            raise LimitError(f"it has {len(source)} characters")
        self._limit_s = limit_s
        environment = _environment(clock)
        tree = _Bounds().visit(environment.parse(source))
        tree.set_environment(environment)
        with limits.spending(limit_s):  # constants are folded while compiling
            code = environment.compile(tree)
        names = environment.make_globals(None)
        self._template = environment.template_class.from_code(environment, code, names)

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text for these variables: plain JSON types, nothing with methods of its own.

        Raises:
            RaisedError: the template refuses the messages.
            LimitError: it exceeds a limit.
            any of `FAILURES`: it cannot cope with the messages.
        """
        with limits.spending(self._limit_s) as spent:
            chunks: list[str] = []
            for chunk in self._template.generate(**variables):
                spent.charge(len(chunk))
                spent.tick()
                chunks.append(chunk)
            return str(bounded("".join(chunks)))
