"""Grammars are read as llama.cpp reads them, and those that would harm it are refused."""

from __future__ import annotations

import time

import pytest

from localspec.engine.text.gbnf import CharClass, Group, Literal, Ref, Repeat, Token, parse_grammar
from localspec.engine.text.grammar import check_grammar
from localspec.errors import UsageError
from tests.kit.gbnf_walk import Walker

ARITHMETIC = r"""
# from llama.cpp's examples
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""


def test_a_grammar_is_parsed_into_its_parts():
    rules = parse_grammar(
        'root ::= "a\\n\\x41\\u00e9" [^a-c\\]-] | (x .)? y{2} <[12]> !<think>\nx ::= "" # c\ny::=x{1,}'
    )
    first, second = rules["root"]
    assert first == (Literal("a\nAé"), CharClass(((97, 99), (93, 93), (45, 45)), negated=True))
    assert second == (
        Repeat(Group(((Ref("x"), CharClass((), negated=True)),)), 0, 1),
        Repeat(Ref("y"), 2, 2),
        Token("[12]", False),
        Token("think", True),
    )
    assert rules["y"] == ((Repeat(Ref("x"), 1, None),),)


def test_what_llama_cpp_accepts_passes():
    check_grammar(ARITHMETIC)
    walker = Walker(ARITHMETIC)
    assert walker.matches("a + 1*(b)=3\n".replace(" ", ""))
    assert walker.allows("(a") and not walker.allows("(*")
    check_grammar('root ::= "a" |\n  "b"\r\nx ::= (\n "c"\n # c\n)\n')


UNROLLED = "".join(f'r{i} ::= r{i + 1}{{500}} "x"\n' for i in range(300)) + 'r300 ::= "y"\nroot ::= r0'


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= "a" foo', "`root` uses `foo`, which is not defined"),
        ('main ::= "a"', "no rule `root`"),
        ("", "no rule `root`"),
        ('root ::= root "a" | "b"', "left-recursive: `root` → `root`"),
        ('root ::= x\nx ::= y root "b"\ny ::= z | "c"\nz ::= ""', "left-recursive"),
        ('root ::= ("a"?)*', "repeats without end something that may be empty"),
        ('root ::= "b" (x*)+\nx ::= "a"', "repeats without end"),
        ('root ::= "a"{5,2}', "bounds swapped"),
        ('root ::= "a"{0,2001}', "more than 2000"),
        ('root ::= "a"{3000}', "more than 2000"),
        ('root ::= ("a"{100}){100}', "repeats too much"),
        ('root ::= ""{3}', "repeats nothing"),
        ('root ::= "a"{0}{2}', "repeats nothing"),
        ('root ::= "a"????', "in a row"),
        ("root ::= *", "nothing stands before `*`"),
        ('root ::= "a', "not closed"),
        ("root ::= [a", "not closed"),
        ('root ::= ("a"', "expected `)`"),
        ('root ::= "\\q"', "unknown escape"),
        ('root ::= "\\U00110000"', "unknown escape"),
        ('root = "a"', "line 1: expected `::=`"),
        ('root ::= "a"\n\nb_c ::= "x"', "line 3"),
        ('root ::= a_b\na ::= "x"', "expected the end of the rule"),
        ("root ::= <think", "expected a token"),
        ("root ::= " + "(" * 200, "nested more than"),
        ('root ::= "\0"', "no text"),
        ('root ::= "\ud800"', "no text"),
        ("x" * (1 << 20), "characters"),
        ("root ::= " + " | ".join(['"a"'] * 6000), "more than 5000 ways"),
        ("root ::= " + " ".join(["[a]?"] * 6000), "more than 5000 ways"),
        ("root ::= " + '"' + "a" * 110_000 + '"', "unrolls to more"),
        (UNROLLED, "unrolls to more"),
    ],
)  # fmt: skip
def test_a_harmful_or_wrong_grammar_is_refused_in_a_sentence(grammar, words):
    start = time.monotonic()
    with pytest.raises(UsageError) as error:
        check_grammar(grammar)
    assert words in error.value.message
    assert len(error.value.message) < 300
    assert time.monotonic() - start < 10


def test_an_undefined_rule_comes_with_the_nearest_name():
    with pytest.raises(UsageError) as error:
        check_grammar("root ::= numbr\nnumber ::= [0-9]")
    assert error.value.hint == "did you mean `number`?"


def test_long_chains_of_rules_need_no_recursion():
    chain = "".join(f"r{i} ::= r{i + 1}\n" for i in range(5000))
    check_grammar("root ::= r0\n" + chain + 'r5000 ::= "a"?')
