"""Which notation a model's tool calls are in, read from its chat template.

A table of the notations in use. A template that mentions none of them gets None: its replies stay text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.engine.text import notations
from localspec.engine.text.toolreaders import JsonCalls, NamedCall, Reader, Sink, WholeCalls, XmlCall, XmlSpec

ReaderFactory = Callable[[Sink, str], Reader]
"""(sink, marker that was found) → reader."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One notation."""

    name: str
    detected_by: tuple[str, ...]
    """Strings that a template of this format contains, all of them; `a¦b` = one of the two."""
    starts: tuple[tuple[str, ReaderFactory], ...]
    """Markers that start calls and what reads them."""
    noise: tuple[str, ...] = ()
    """Markers around calls that say nothing."""
    bare: ReaderFactory | None = None
    """Reads a reply that is itself an object, without any marker."""
    call_id: str = "call_"
    """How ids of calls begin; `9` = nine characters without a beginning."""
    headers: bool = False
    """Calls are told apart by message headers, which must stay in the text."""
    extra_markers: tuple[str, ...] = ()
    """Further control texts inside a call."""

    def detects(self, template: str) -> bool:
        return all(any(text in template for text in texts.split("¦")) for texts in self.detected_by)

    @property
    def markers(self) -> tuple[str, ...]:
        """Everything that must reach the parser as text."""
        return (*(marker for marker, _ in self.starts), *self.noise, *self.extra_markers)


def _json(close: str | None = None, *, known_only: bool = False) -> ReaderFactory:
    return lambda sink, marker: JsonCalls(sink, marker=marker, close=close, known_only=known_only)


def _named(head: str, *ends: str, free: bool = False) -> ReaderFactory:
    pattern = re.compile(head, re.DOTALL)
    return lambda sink, _: NamedCall(sink, head=pattern, ends=ends, free=free)


def _xml(call: str, parameter: str, value_end: str, call_end: str) -> ReaderFactory:
    spec = XmlSpec(call=call, parameter=parameter, value_end=value_end, call_end=call_end)
    return lambda sink, _: XmlCall(sink, spec)


def _whole(translate: Callable[[str], notations.Calls], close: str | None) -> ReaderFactory:
    return lambda sink, marker: WholeCalls(sink, marker=marker, close=close, translate=translate)


class _Either:
    """Two notations behind one marker, told apart by the first character after it."""

    def __init__(self, sink: Sink, marker: str, json_calls: ReaderFactory, other: ReaderFactory) -> None:
        self._sink, self._marker, self._factories = sink, marker, (json_calls, other)
        self._buffer = ""
        self._reader: Reader | None = None

    def feed(self, text: str) -> str | None:
        if self._reader is not None:
            return self._reader.feed(text)
        self._buffer += text
        body = self._buffer.removeprefix(self._marker).lstrip()
        if not body:
            return None
        self._reader = self._factories[body[0] not in "[{"](self._sink, self._marker)
        return self._reader.feed(self._buffer)

    def finish(self) -> None:
        if self._reader is not None:
            self._reader.finish()
        else:
            self._sink.text(self._buffer)


def _either(json_calls: ReaderFactory, other: ReaderFactory) -> ReaderFactory:
    return lambda sink, marker: _Either(sink, marker, json_calls, other)


def _invoke(prefix: str, attributes: str = "") -> ReaderFactory:
    tag = re.escape(prefix)
    return _xml(
        rf'<{tag}invoke name="([^"]+)">',
        rf'<{tag}parameter name="([^"]+)"{attributes}>',
        f"</{prefix}parameter>",
        f"</{prefix}invoke>",
    )


_DEEPSEEK = _named(
    r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>([^\n`]+?)\s*```(?:json)?|([^<]+?)<｜tool▁sep｜>)\s*(?=\{)",
    "<｜tool▁call▁end｜>",
)
_KIMI = _named(
    r"<\|tool_call_begin\|>\s*(?:functions\.)?([\w.-]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*(?=\{)",
    "<|tool_call_end|>",
)
_HARMONY = _named(
    r"<\|start\|>assistant.*?\bto=(?:functions\.)?([^\s<]+).*?<\|message\|>\s*",
    "<|end|>",
    "<|call|>",
    free=True,
)
_MISTRAL = _named(r"\[TOOL_CALLS\]\s*([\w.-]+)\s*(?:\[CALL_ID\]\w*)?\s*(?:\[ARGS\])?\s*(?=\{)")
_GLM = _xml(
    r"<tool_call>\s*([^\s<]+)\s*(?=<)",
    r"<arg_key>\s*(.*?)\s*</arg_key>\s*<arg_value>",
    "</arg_value>",
    "</tool_call>",
)
_QWEN = _xml(
    r"(?:<(?:seed:)?tool_call>\s*)?<function=([^>\n]+)>",
    r"<parameter=([^>\n]+)>",
    "</parameter>",
    "</function>",
)

FORMATS: tuple[ToolFormat, ...] = (
    ToolFormat("harmony", ("<|channel|>", "<|message|>"), (("<|start|>assistant", _HARMONY),), headers=True),
    ToolFormat(
        "atem",
        ("<atem:function_calls>",),
        (("<atem:invoke", _invoke("atem:")),),
        ("<atem:function_calls>", "</atem:function_calls>"),
    ),
    ToolFormat(
        "dsml",
        ("｜DSML｜", "invoke"),
        (("<｜DSML｜invoke", _invoke("｜DSML｜", r'(?: string="\w+")?')),),
        tuple(f"<{end}｜DSML｜{name}>" for end in ("", "/") for name in ("function_calls", "tool_calls")),
    ),
    ToolFormat(
        "deepseek",
        ("<｜tool▁call▁begin｜>",),
        (("<｜tool▁call▁begin｜>", _DEEPSEEK),),
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        extra_markers=("<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
    ),
    ToolFormat(
        "kimi",
        ("<|tool_call_begin|>",),
        (("<|tool_call_begin|>", _KIMI),),
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        call_id="functions.",
        extra_markers=("<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    ),
    ToolFormat(
        "gemma",
        ("<|tool_call>",),
        (("<|tool_call>", _whole(notations.gemma_calls, "<tool_call|>")),),
        extra_markers=("<tool_call|>", '<|"|>'),
    ),
    ToolFormat(
        "mistral",
        ("[TOOL_CALLS]",),
        (("[TOOL_CALLS]", _either(_json(), _MISTRAL)),),
        call_id="9",
        extra_markers=("[CALL_ID]", "[ARGS]"),
    ),
    ToolFormat("seed", ("<seed:tool_call>",), (("<seed:tool_call>", _QWEN),), ("</seed:tool_call>",)),
    ToolFormat(
        "minimax",
        ("minimax:tool_call", "<invoke"),
        (("<invoke", _invoke("")),),
        ("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    ToolFormat("glm", ("<tool_call>", "<arg_key>"), (("<tool_call>", _GLM),)),
    ToolFormat(
        "qwen-xml",
        ("<tool_call>", "<function=", "<parameter="),
        (("<tool_call>", _QWEN), ("<function=", _QWEN)),
        ("</tool_call>",),
    ),
    ToolFormat(
        "lfm2",
        ("<|tool_call_start|>¦<|tool_list_start|>¦List of tools: [",),
        (("<|tool_call_start|>", _whole(notations.python_calls, "<|tool_call_end|>")),),
        extra_markers=("<|tool_call_end|>",),
    ),
    ToolFormat("nemotron", ("<TOOLCALL>",), (("<TOOLCALL>", _json("</TOOLCALL>")),)),
    ToolFormat("hermes", ("<tool_call>",), (("<tool_call>", _json("</tool_call>")),)),
    ToolFormat(
        "command",
        ("<|START_ACTION|>",),
        (("<|START_ACTION|>", _json("<|END_ACTION|>")),),
        extra_markers=("<|END_ACTION|>",),
    ),
    ToolFormat("granite", ("<|tool_call|>",), (("<|tool_call|>", _json()),), ("<|/tool_call|>",)),
    ToolFormat("functools", ("functools",), (("functools", _json()),)),
    ToolFormat(
        "function-tag",
        ("<function=",),
        (("<function=", _named(r"<function=([^>\n]+)>\s*(?=\{)", "</function>")),),
    ),
    ToolFormat(
        "llama",
        ("ipython", "parameters"),
        (("<|python_tag|>", _either(_json(known_only=True), _whole(notations.python_calls, None))),),
        bare=_json(known_only=True),
    ),
)
"""From the most to the least specific; the first whose strings a template contains is its format."""

_PLAIN = ToolFormat("json", (), (), bare=_json(known_only=True))
"""For a template that shows tools without a notation of its own: a reply that is a call object."""


def detect_tools(template: str) -> ToolFormat | None:
    """The format of a template's tool calls; None when it knows no tools."""
    found = next((known for known in FORMATS if known.detects(template)), None)
    if found is None and "tools" in template:
        return _PLAIN
    return found


def known_names(tools: Sequence[object]) -> dict[str, dict[str, object]]:
    """Name → JSON schema properties of its arguments, of OpenAI tool definitions."""
    names: dict[str, dict[str, object]] = {}
    for tool in tools:
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, dict) else None
            names[function["name"]] = properties if isinstance(properties, dict) else {}
    return names
