"""Requests become prompt ids, and reply ids become text, by the target's template and vocabulary."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from localspec.engine.settings import Request, SamplingSettings
from localspec.engine.text.reuse import Segment
from localspec.engine.text.stream import TextStream
from localspec.engine.text.template import ChatTemplate, Prompt
from localspec.engine.text.vocabulary import Vocabulary
from localspec.errors import UsageError

REMEMBERED = 32
"""Conversations whose last turn's ids are kept."""


class Prompter:
    """The text side of one target; its vocabulary must have texts.

    A finished reply's own ids are kept per conversation, so that the next turn's prompt repeats them
    instead of tokenising the reply again.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._template = ChatTemplate(vocabulary)
        self._turns: OrderedDict[str | None, tuple[Segment, ...]] = OrderedDict()

    def encode(self, request: Request) -> Prompt:
        """The prompt of a request.

        Raises:
            UsageError: both or neither of messages and prompt, or the template refuses the messages.
        """
        history = self._turns.get(request.cache_key, ())
        if request.prompt is not None:
            if request.messages:
                raise UsageError("a request has either messages or a raw prompt, not both")
            return self._template.raw(request.prompt, history=history)
        return self._template.render(
            request.messages,
            tools=request.tools,
            template_args=dict(request.template_args),
            continue_last=request.continue_last,
            history=history,
        )

    def remember(self, request: Request, prompt: Prompt, reply: Sequence[int]) -> None:
        """Keep a turn's ids for the conversation's next prompt."""
        self._turns[request.cache_key] = prompt.segments + self._template.reply_segments(reply)
        self._turns.move_to_end(request.cache_key)
        while len(self._turns) > REMEMBERED:
            self._turns.popitem(last=False)

    def constrained(self, sampling: SamplingSettings) -> tuple[SamplingSettings, tuple[str, ...]]:
        """A JSON schema as the grammar it means, and what of it the grammar cannot enforce.

        Grammars are checked before native code sees them.

        Raises:
            UsageError: the schema or grammar is malformed or would explode.
        """
        if sampling.json_schema is not None:
            from localspec.engine.text.json_schema import schema_to_grammar

            grammar = schema_to_grammar(sampling.json_schema)
            return replace(sampling, grammar=grammar.text, json_schema=None), grammar.notes
        if sampling.grammar is not None:
            from localspec.engine.text.grammar import check_grammar

            check_grammar(sampling.grammar)
        return sampling, ()

    def stream(self, request: Request, prompt: Prompt) -> TextStream:
        """Text of the reply that follows `prompt`.

        Raises:
            UsageError: a stop string is impossible.
        """
        tools = self._template.tool_format if request.tools else None
        return self._template.stream(prompt, stops=request.stop, tools=tools)

    @property
    def template_source(self) -> str:
        """The chat template in use, for those who parse what it makes of tool calls."""
        return self._template.source

    @property
    def end_ids(self) -> frozenset[int]:
        """Every id that ends a reply."""
        return self._template.end_ids
