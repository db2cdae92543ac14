"""The prompts whose answers become training data: templates crossed with topics, and code to edit.

Everything here was written for this project, except the Python functions, which come from the standard
library of the running interpreter (PSF licence). Half of the topics are words of the target's own
vocabulary: written lists alone leave most of its ids unseen, and a draft cannot propose what it never saw.
Same seed, words and interpreter, same prompts. The held-out prompts live in `heldout.py`.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence

from training import topics

SOURCES = (
    "bisect", "calendar", "cmd", "colorsys", "configparser", "copy", "csv", "difflib", "fnmatch", "fractions",
    "functools", "getopt", "glob", "heapq", "html", "imaplib", "ipaddress", "json.decoder", "keyword",
    "linecache",
    "mimetypes", "numbers", "pprint", "queue", "random", "sched", "shlex", "shutil", "statistics", "string",
    "tempfile", "textwrap", "threading", "turtle", "urllib.parse", "uuid", "zipfile",
)  # fmt: skip
"""Standard library modules whose short functions are edited and explained."""

WORD = re.compile("[Ġ▁]([a-z]{4,})")
NAME = re.compile("[Ġ▁]([A-Z][a-z]{3,})")
"""Tokens that look like an English word or a name, with the space mark of BPE or SentencePiece."""


class _Draw(random.Random):
    """Choices from the written lists and, half of the time, from the target's vocabulary."""

    def __init__(self, seed: int, tokens: Sequence[str]) -> None:
        super().__init__(seed)
        self._words = [found[1] for token in tokens if (found := WORD.fullmatch(token))]
        self._names = [found[1] for token in tokens if (found := NAME.fullmatch(token))]

    def _topic(self, written: Sequence[str], pattern: str = "{}") -> str:
        """One of `written`, or `pattern` filled with words."""
        if self._words and self.random() < 0.5:
            return pattern.format(*(self.choice(self._words) for _ in range(pattern.count("{}"))))
        return self.choice(written)

    def _named(self, written: Sequence[str]) -> str:
        return self.choice(self._names) if self._names and self.random() < 0.5 else self.choice(written)

    def task(self) -> str:
        return self._topic(topics.TASKS, "computes the {} of a {}")

    def concept(self) -> str:
        return self._topic(topics.CONCEPTS)

    def pair(self) -> str:
        return self._topic(topics.PAIRS, "{} and {}")

    def goal(self) -> str:
        return self._topic(topics.GOALS, "find a {} {}")

    def thing(self) -> str:
        return self._topic(topics.THINGS, "a {}")

    def field(self) -> str:
        return self._topic(topics.FIELDS)

    def subject(self) -> str:
        return self._topic(topics.SUBJECTS, "a {} and a {}")

    def variable(self) -> str:
        return self._topic(topics.VARIABLES, "{}_{}")

    def name(self) -> str:
        return self._named(topics.NAMES)

    def city(self) -> str:
        return self._named(topics.CITIES)


def _code(r: _Draw) -> str:
    task, language = r.task(), r.choice(topics.LANGUAGES)
    return r.choice(
        (
            f"Write a {language} function that {task}.",
            f"Write a {language} program that {task}.",
            f"Show me {language} code that {task}, with comments.",
            f"Create a short {language} script that {task} and explain how it works.",
            f"In {language}, how do I write something that {task}?",
            f"Write a Python class that {task}. Include type hints.",
            f"Write a {language} function that {task}, and add three unit tests.",
            f"Give me a simple {language} example that {task}.",
        )
    )


def _edit_code(r: _Draw) -> str:
    source = r.choice(functions())
    old, new = r.choice(_names(source)), r.variable()
    order = r.choice((
        f"Rename `{old}` to `{new}` everywhere in this code and show the complete result.",
        "Add a docstring to this function and repeat the complete code.",
        "Add type hints to the following code. Return all of it.",
        "Add comments to each step of this code.",
        "Fix any bugs you can find in this code and print the corrected version.",
        "Rewrite this code so that it is easier to read.",
        "Repeat this code exactly.",
        "Add a print statement at the start of this function. Show everything.",
        "What does the following code do? Explain it line by line.",
        "Convert this code to a method of a class called Helper.",
        f"Add a parameter called `{new}` to this function and keep the rest unchanged.",
    ))  # fmt: skip
    return f"{order}\n\n```python\n{source}```"


def _edit_text(r: _Draw) -> str:
    text = _note(r)
    order = r.choice(
        (
            f"Change the day to {r.choice(('Tuesday', 'Friday', 'Sunday'))} and leave the rest as it is:",
            f"Replace the name in this note by {r.name()}:",
            "Correct the grammar of the following text and give it back:",
            "Make this text more formal:",
            "Repeat the following text in full:",
            "Rewrite this as a friendly email:",
            "Shorten the text below to two sentences:",
            "Turn the following note into a list of bullet points:",
        )
    )
    return f"{order}\n\n{text}"


def _note(r: _Draw) -> str:
    name, city = r.name(), r.city()
    day = r.choice(("Monday", "Thursday", "Saturday"))
    need = r.choice(("a projector", "two tables", "a microphone"))
    parts = [
        f"Hello {name}, I hope that you arrived well in {city}.",
        f"The workshop begins on {day} at {r.randint(8, 11)} o'clock in room {r.randint(2, 40)}.",
        f"We still need {r.randint(3, 30)} chairs and {need}.",
        f"{r.name()} wants to {r.goal()} and would like to talk about it.",
        f"Please bring the notes on {r.concept()} that you wrote last week.",
        f"The bus from {r.city()} was late, so dinner was cold but the mood was good.",
        f"After lunch there will be a talk about {r.concept()}.",
        f"The bill was {r.randint(20, 400)} euros, which {r.name()} paid in cash.",
        "Let me know whether that suits you.",
        "Many thanks and see you soon.",
    ]  # fmt: skip
    keep = sorted(r.sample(range(len(parts)), r.randint(4, 7)))
    return " ".join(parts[i] for i in keep)


def _chat(r: _Draw) -> str:
    concept, goal, pair = r.concept(), r.goal(), r.pair()
    return r.choice((
        f"What is {concept}?", f"How does {concept} work?", f"Why is {concept} important?",
        f"Explain {concept} in simple words.", f"Tell me three facts about {concept}.",
        f"Give a short history of {concept}.", f"What should a beginner know about {concept}?",
        f"Summarize what you know about {concept} in one paragraph.",
        f"What are the advantages and disadvantages of {concept}?",
        f"Explain {concept} to a child.", f"List five questions about {concept} and answer them.",
        f"How are {pair} different?", f"Compare {pair}.", f"Which is better, {pair}? Give reasons.",
        f"How can I {goal}?", f"Give me five tips to {goal}.", f"I want to {goal}. Where do I start?",
        f"Make a weekly plan to {goal}.", f"What mistakes should I avoid when I {goal}?",
        f"Is it hard to {goal}?", f"I live in {r.city()} and want to {goal}. What do you suggest?",
        f"Plan a weekend in {r.city()}.", f"What is {r.city()} known for?",
        f"{r.name()} has {r.randint(3, 40)} apples and gives {r.name()} "
        f"{r.randint(1, 3)}. How many are left?",
        f"What is {r.randint(11, 99)} times {r.randint(3, 19)}? Show the steps.",
        f"Translate to Spanish: {r.name()} wants to {goal}.",
    ))  # fmt: skip


def _json(r: _Draw) -> str:
    thing, fields = r.thing(), [r.field() for _ in range(r.randint(2, 5))]
    listed = ", ".join(fields)
    record = _record(r)
    added = r.field()
    return r.choice(
        (
            f"Write {thing} as a JSON object with {listed}.",
            f"Return JSON only: {thing} with the fields {listed}.",
            f"Create a JSON array of {r.randint(2, 4)} examples of {thing}. Use the keys {listed}.",
            f"Generate a JSON schema for {thing} with {listed}.",
            f"Describe {thing} in YAML with {listed}.",
            f"Convert this JSON to a table:\n{record}",
            f"Set `{added}` to null in each entry of the JSON below.\n{record}",
            f"Sort these JSON records by name and print them:\n{record}",
            f"Write this JSON in pretty-printed form:\n{record}",
            f"Remove the last entry from this JSON:\n{record}",
            f"Extract the names from this JSON as a list:\n{record}",
            f"Make a CSV table with {listed} for {r.randint(3, 6)} examples of {thing}.",
        )
    )


def _record(r: _Draw) -> str:
    rows = [
        {"name": name, r.choice(("city", "home")): r.city(), "score": r.randint(1, 99)}
        for name in (r.name() for _ in range(r.randint(2, 4)))
    ]
    return json.dumps(rows)


def _creative(r: _Draw) -> str:
    subject, name = r.subject(), r.name()
    return r.choice((
        f"Write a story about {subject}.", f"Write a poem about {subject}.",
        f"Write a haiku about {subject}.",
        f"Write the opening of a novel about {subject}.", f"Write a fairy tale about {subject}.",
        f"Write a song about {subject}.", f"Describe {subject} in vivid language.",
        f"Write a dialogue between {name} and {r.name()} about {subject}.",
        f"Write a letter from {name} to a friend about {subject}.",
        f"Write a funny story about {subject}.", f"Write a limerick about {subject}.",
        f"Write a diary entry of {name} about {subject}.", f"Write a review of a film about {subject}.",
        f"Suggest ten titles for a book about {subject}.",
        f"Continue this story: {name} opened the window and saw {subject}.",
        f"Write a short essay about {r.concept()}.",
        f"Write a news article about {r.concept()} in {r.city()}.",
    ))  # fmt: skip


KINDS: dict[str, tuple[Callable[[_Draw], str], ...]] = {
    "code": (_code,),
    "edit": (_edit_code, _edit_code, _edit_text),
    "chat": (_chat,),
    "json": (_json,),
    "creative": (_creative,),
}
"""Makers of each workload's prompts, drawn from in turn."""


def prompts(count: int, tokens: Sequence[str] = (), seed: int = 1) -> list[tuple[str, str]]:
    """The first `count` of `prompt_stream`."""
    made = prompt_stream(tokens, seed)
    return [next(made) for _ in range(count)]


def prompt_stream(tokens: Sequence[str] = (), seed: int = 1) -> Iterator[tuple[str, str]]:
    """Different (workload, prompt) without end, the workloads in turn.

    Args:
        tokens: texts of the target's vocabulary, as in its file; empty = written topics only.

    Raises:
        ValueError: the templates give no more.
    """
    r = _Draw(seed, tokens)
    seen: set[str] = set()
    while True:
        for kind, makers in KINDS.items():
            for _ in range(1000):
                prompt = r.choice(makers)(r)
                if prompt not in seen:
                    break
            else:
                raise ValueError(f"no new `{kind}` prompt after {len(seen)}")
            seen.add(prompt)
            yield kind, prompt


@functools.cache
def functions(most: int = 900) -> tuple[str, ...]:
    """Functions and methods of the standard library of 120 to `most` characters, dedented."""
    found: dict[str, None] = {}
    for name in SOURCES:
        text = inspect.getsource(importlib.import_module(name))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and not node.decorator_list:
                lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
                source = "\n".join(line[node.col_offset :] for line in lines) + "\n"
                if 120 <= len(source) <= most and source.isascii():
                    found[source] = None
    return tuple(found)


def _names(source: str) -> list[str]:
    """Arguments of the first function of `source`, or its own name when it has none."""
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    return [a.arg for a in function.args.args if a.arg != "self"] or [function.name]
