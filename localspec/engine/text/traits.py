"""What a chat template can do, found out by rendering small conversations with it.

Templates differ in what they accept (a system role, content as parts, tool arguments as an object) and in
what ends the assistant's turn. Nobody declares these; a needle in the output does. Knows no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from localspec.engine.text.encode import common_start
from localspec.engine.text.sandbox import FAILURES, Program

Chat = Sequence[Mapping[str, Any]]
_ASKED, _TOLD, _SAID = "NEEDLE-ASKED", "NEEDLE-TOLD", "NEEDLE-SAID"


class Traits:
    """Answers about one template; each is found out once, when first asked for."""

    def __init__(self, program: Program, special_tokens: Mapping[str, str]) -> None:
        self._program = program
        self._special_tokens = special_tokens

    def _try(self, chat: Chat, tools: Any = None) -> str:
        """The rendering, or nothing when the template refuses or breaks."""
        variables = {"tools": tools, "documents": None, "add_generation_prompt": False}
        try:
            return self._program.render({**self._special_tokens, **variables, "messages": chat})
        except FAILURES:
            return ""

    @cached_property
    def wants_parts(self) -> bool:
        """Content must be a list of `{"type": "text", "text": …}`."""
        parts = [{"type": "text", "text": _ASKED}]
        return _ASKED not in self._try([{"role": "user", "content": _ASKED}]) and (
            _ASKED in self._try([{"role": "user", "content": parts}])
        )

    def content(self, text: str) -> Any:
        """`text` in the form the template takes."""
        return [{"type": "text", "text": text}] if self.wants_parts else text

    def _said(self, role: str, text: str) -> dict[str, Any]:
        return {"role": role, "content": self.content(text)}

    @cached_property
    def takes_system(self) -> bool:
        """A system message is accepted and shown."""
        with_system = self._try([self._said("system", _TOLD), self._said("user", _ASKED)])
        return _TOLD in with_system or _ASKED not in self._try([self._said("user", _ASKED)])

    @cached_property
    def no_tools(self) -> Any:
        """What `tools` must be when there are none: transformers gives None, some templates iterate it."""
        chat = [self._said("user", _ASKED)]
        return [] if not self._try(chat) and self._try(chat, tools=[]) else None

    @cached_property
    def wants_argument_text(self) -> bool:
        """Arguments of a tool call must be JSON text; otherwise an object."""
        as_object = self._try_call({"needle": "x"})
        return ("needle" not in as_object or "'needle'" in as_object) and (
            '{"needle":' in self._try_call('{"needle": "x"}')
        )

    def _try_call(self, arguments: Any) -> str:
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return self._try(
            [self._said("user", _ASKED), {"role": "assistant", "content": "", "tool_calls": [call]}]
        )

    @cached_property
    def after_reply(self) -> str:
        """What the template writes after an assistant message, whether or not another follows."""
        chat = [self._said("user", _ASKED), self._said("assistant", _SAID)]
        last, followed = self._try(chat), self._try([*chat, self._said("user", _TOLD)])
        end = last.rpartition(_SAID)[2]
        return end[: common_start(end, followed.rpartition(_SAID)[2])]
