"""Reasoning apart from the answer, whatever the pieces the text arrives in."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.text.reasoning import Headers, ReasoningFormat, Tags, detect_reasoning

THINK = Tags("<think>", "</think>")
ANYWHERE = Tags("[THINK]", "[/THINK]", anywhere=True)


def split(
    format: ReasoningFormat, text: str, *, lead: str = "", cuts: tuple[int, ...] = (), tools: bool = False
):
    splitter = format.splitter(lead, tools=tools)
    edges = [0, *sorted(c % (len(text) + 1) for c in cuts), len(text)]
    found = {"reasoning": "", "content": ""}
    for a, b in itertools.pairwise(edges):
        for part, channel in splitter.feed(text[a:b]):
            assert part
            found[channel] += part
    for part, channel in splitter.flush():
        found[channel] += part
    return found["reasoning"], found["content"]


@pytest.mark.parametrize(
    ("text", "lead", "reasoning", "content"),
    [
        ("<think>\nhm\n</think>\n\nHello", "", "hm", "Hello"),
        ("\n <think>hm</think>Hello", "", "hm", "Hello"),
        ("hm\n</think>\n\nHello", "<|im_start|>assistant\n<think>\n", "hm", "Hello"),
        ("Hello", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "", "Hello"),
        ("<think>\n\n</think>\n\nHello", "", "", "Hello"),
        ("<think>never closed </thi", "", "never closed </thi", ""),
        ("  plain", "", "", "  plain"),
        ("<thin air", "", "", "<thin air"),
        ("<thin", "", "", "<thin"),
        ("what does <think>x</think> mean", "", "", "what does <think>x</think> mean"),
        ("<think>a</think>b<think>c</think>", "", "a", "b<think>c</think>"),
    ],
)
def test_think_tags(text, lead, reasoning, content):
    for cuts in ((), tuple(range(len(text)))):
        assert split(THINK, text, lead=lead, cuts=cuts) == (reasoning, content)


def test_markers_that_are_control_tokens_open_reasoning_anywhere():
    text = "[THINK]a[/THINK]b[THINK]\nc\n[/THINK]\nd"
    for cuts in ((), tuple(range(len(text)))):
        assert split(ANYWHERE, text, cuts=cuts) == ("ac", "bd")


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "th", "\n", "a", " ", "[THINK]", "[/THINK]"])).map(
        "".join
    ),
    st.lists(st.integers(0, 40)).map(tuple),
    st.sampled_from([THINK, ANYWHERE]),
    st.sampled_from(["", "<think>\n", "[THINK]"]),
)
def test_the_split_does_not_depend_on_the_pieces(text, cuts, format, lead):
    assert split(format, text, lead=lead, cuts=cuts) == split(format, text, lead=lead)


HARMONY = (
    "<|channel|>analysis<|message|>Hm.\nSo.<|end|>"  # the reasoning
    "<|start|>assistant<|channel|>final<|message|>Hello!<|return|>"
)
CALL = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
    '<|constrain|>json<|message|>{"a": 1}<|call|>'
)


@pytest.mark.parametrize("cuts", [(), tuple(range(len(HARMONY)))])
def test_harmony_channels(cuts):
    assert split(Headers(), HARMONY, lead="<|start|>assistant", cuts=cuts) == ("Hm.\nSo.", "Hello!")
    final = "<|start|>assistant<|channel|>final<|message|>Hel"
    assert split(Headers(), "lo!<|return|>", lead=final) == ("", "lo!")
    assert split(Headers(), "<|channel|>commentary<|message|>First.<|end|>", cuts=cuts) == ("", "First.")


@pytest.mark.parametrize("cuts", [(), tuple(range(len(CALL)))])
def test_harmony_tool_calls_keep_their_header_only_for_a_tool_parser(cuts):
    reasoning, content = split(Headers(), CALL, lead="<|start|>assistant", cuts=cuts, tools=True)
    assert reasoning == "Hm."
    header = "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    assert content == header + '{"a": 1}<|end|>'
    assert split(Headers(), CALL, lead="<|start|>assistant", cuts=cuts) == ("Hm.", '{"a": 1}')


def test_recipients_separate_reasoning_in_models_that_name_them():
    muse = detect_reasoning("<|start|>assistant to=self<|message|> … <|eom|>")
    assert muse == Headers(("<|eom|>", "<|eot|>"))
    text = " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Hello!"
    assert split(muse, text, lead="<|start|>assistant", cuts=tuple(range(len(text)))) == ("Hm.", "Hello!")


def test_a_reply_without_headers_is_shown_as_it_is():
    assert split(Headers(), "Just text.", lead="<|start|>assistant") == ("", "Just text.")
    long = "word " * 300
    assert split(Headers(), long, lead="<|start|>assistant", cuts=tuple(range(0, 1500, 7))) == ("", long)
    assert split(Headers(), "<|channel|>ana", lead="<|start|>assistant") == ("", "")


@pytest.mark.parametrize(
    ("template", "open"),
    [
        ("{% set content = content.split('</think>')[-1] %}", "<think>"),
        ("[THINK]{{ x }}[/THINK]", "[THINK]"),
        ("{{ '<|channel>thought\\n' + x + '\\n<channel|>' }}", "<|channel>thought"),
        ("<reasoning>x</reasoning>", "<reasoning>"),
    ],
)
def test_the_format_is_read_from_the_template(template, open):
    found = detect_reasoning(template)
    assert isinstance(found, Tags) and found.open == open


def test_a_template_that_knows_no_reasoning_has_no_format():
    assert detect_reasoning("{{ messages }}") is None
    assert isinstance(detect_reasoning("<|start|>x<|channel|>y<|message|>"), Headers)
