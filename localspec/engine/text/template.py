"""A model's chat template: messages in, prompt ids out.

The one place that decides how a conversation becomes ids: which template, which roles, BOS exactly once,
control tokens only from the template, what of the last turn keeps its ids, and where the reply starts.
Rendering equals Hugging Face transformers' `apply_chat_template`. Knows nothing of caches or sampling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from localspec.engine.settings import Message
from localspec.engine.text.encode import MARK, Encoder, as_json, clean, common_start, unmark
from localspec.engine.text.limits import LimitError
from localspec.engine.text.reasoning import Headers, detect_reasoning
from localspec.engine.text.reuse import Segment, reply_segments, splice
from localspec.engine.text.sandbox import FAILURES, Program, RaisedError
from localspec.engine.text.stream import TextStream, control_ids
from localspec.engine.text.toolformats import ToolFormat, detect_tools
from localspec.engine.text.traits import Traits
from localspec.engine.text.vocabulary import Vocabulary
from localspec.errors import ModelFileError, UsageError, unknown

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""
"""Used for a model that has no template."""
ROLES = ("system", "user", "assistant", "tool", "developer", "function")
_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "  # transformers' own, trailing space included
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_ESCAPED_MARK = "\\ufdd0"
_RENDER_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation as ids."""

    segments: tuple[Segment, ...]
    lead: str
    """The start of the assistant's turn that the template already wrote, as plain text."""
    n_stable: int
    """Ids before the lead: what the next turn's prompt will most likely start with."""
    notes: tuple[str, ...] = ()
    """What the user should know about this rendering, one clause each."""
    chat: bool = False
    """Rendered by the template rather than raw text."""
    continued: bool = False
    """The lead holds the start of the reply itself."""

    @property
    def ids(self) -> list[int]:
        return [i for segment in self.segments for i in segment.ids]

    @property
    def text(self) -> str:
        return unmark("".join(segment.text for segment in self.segments))


class ChatTemplate:
    """The chat template of one model with what was learnt from it."""

    def __init__(
        self,
        vocab: Vocabulary,
        *,
        source: str | None = None,
        clock: Callable[[], datetime] = datetime.now,
        limit_s: float = _RENDER_LIMIT_S,
    ) -> None:
        """
        Args:
            vocab: of the target.
            source: a template to use instead of the model's own.
            clock: local time, for templates that write the date.
            limit_s: seconds that one rendering may take.

        Raises:
            ModelFileError: the template does not compile or is absurdly large.
        """
        self.encoder = Encoder(vocab)
        self.fallback = source is None and not vocab.chat_template
        """The model has no template of its own and `CHATML` is used."""
        self.source = CHATML if self.fallback else (source or vocab.chat_template or "")
        try:
            self._program = Program(self.source, clock=clock, limit_s=limit_s)
        except FAILURES as error:
            raise ModelFileError(
                f"the model's chat template cannot be used: {_reason(error)}",
                hint="give the prompt as raw text, or use another conversion of this model",
            ) from error
        self.reasoning = detect_reasoning(self.source)
        self.tool_format = detect_tools(self.source)
        """Notation of the model's tool calls; None when the template knows no tools."""
        self._traits = Traits(self._program, self._special_tokens)

    # --- what was learnt

    @cached_property
    def _special_tokens(self) -> dict[str, str]:
        vocab = self.encoder.vocab
        named = {"bos_token": vocab.bos, "eos_token": vocab.eos}
        # Some files name an ordinary token (`,`) as BOS because they have none.
        return {
            name: vocab.token_text(i) for name, i in named.items() if i is not None and vocab.is_control(i)
        }

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Every id that ends a reply: by the metadata, and the control token that closes a turn here."""
        vocab = self.encoder.vocab
        ids = {*vocab.eog, *(i for i in (vocab.eos, vocab.eot) if i is not None)}
        after = self._traits.after_reply
        closing = [self.encoder.tokenize(after[a:b])[0] for a, b in self.encoder.controls.find_all(after)]
        # Headers close every message of a reply with the same token, so it does not mean the end.
        if closing and ids.isdisjoint(closing) and not isinstance(self.reasoning, Headers):
            ids.add(closing[-1])
        return frozenset(ids)

    @cached_property
    def stop_texts(self) -> tuple[str, ...]:
        """Turn markers that this vocabulary spells with ordinary tokens, so that no id can end the turn."""
        marks = ("<|im_end|>", "<|im_start|>") if self.fallback else ()
        return tuple(mark for mark in marks if mark not in self.encoder.controls)

    # --- rendering

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] = (),
        documents: Sequence[Any] = (),
        template_args: Mapping[str, Any] | None = None,
        continue_last: bool = False,
        history: Sequence[Segment] = (),
    ) -> Prompt:
        """The prompt for the assistant's next message, or for more of its last one.

        Args:
            messages: the conversation, oldest first.
            tools: OpenAI tool definitions.
            documents: for retrieval templates: mappings with `title` and `text`.
            template_args: extra variables of the template (`enable_thinking`, …).
            continue_last: the last message is the assistant's and is to be continued.
            history: segments of the last prompt and reply of this conversation, see `reuse`.

        Raises:
            UsageError: the template refuses the messages, or a role is unknown.
            ModelFileError: the template exceeds its limits.
        """
        if not messages:
            raise UsageError("a conversation needs at least one message")
        if continue_last and messages[-1].role != "assistant":
            raise UsageError(
                f"only an assistant message can be continued, the last one is `{messages[-1].role}`"
            )
        notes: list[str] = []
        chat = self._with_system([self._message(message) for message in messages], notes)
        if continue_last:
            final = chat[-1]["content"]
            chat[-1] = {**chat[-1], "content": final + _CONTINUE}
        variables = {
            **(template_args or {}),
            "tools": list(tools) or self._traits.no_tools,
            "documents": list(documents) or None,
            "add_generation_prompt": not continue_last,
            "messages": [self._typed(message) for message in chat],
        }
        text = self._render_marked(variables, notes)
        if continue_last:
            text = self._cut_at_tag(text, final)
            variables["messages"] = variables["messages"][:-1]
        notes += _dropped(chat, text)
        variables["add_generation_prompt"] = False
        stable = self._run(self.encoder.mark(variables)) if variables["messages"] else ""
        lead_at = self._shared(text, stable)
        return self._prompt(text, lead_at, history, notes=notes, chat=True, continued=continue_last)

    def raw(self, text: str, *, history: Sequence[Segment] = ()) -> Prompt:
        """A prompt without a template. Control tokens in it are meant: the caller writes the whole prompt."""
        return self._prompt(clean(text), len(text), history)

    def stream(
        self, prompt: Prompt, *, stops: Sequence[str] = (), tools: ToolFormat | None = None
    ) -> TextStream:
        """The text of the reply to `prompt`.

        Args:
            prompt: as rendered here.
            stops: strings that end the reply.
            tools: the format of the tool calls to be parsed from the text; its markers then stay in it.

        Raises:
            UsageError: a stop string is empty, too long, or there are too many.
        """
        markers = tools.markers if tools is not None else ()
        splitter = None
        if self.reasoning is not None and prompt.chat:
            splitter = self.reasoning.splitter(prompt.lead, tools=tools is not None and tools.headers)
            markers += self.reasoning.markers
        return TextStream(
            self.encoder.vocab,
            stops=(*stops, *(self.stop_texts if prompt.chat else ())),
            splitter=splitter,
            shown=control_ids(self.encoder.vocab, markers),
            hidden=self.end_ids,
            strip_space=prompt.chat and not prompt.continued and self.encoder.adds_space,
        )

    def reply_segments(self, ids: Sequence[int]) -> tuple[Segment, ...]:
        """The ids of a reply as history for the next `render`, after the prompt's own segments."""
        return reply_segments(self.encoder, ids, self.end_ids)

    # --- messages

    def _message(self, message: Message) -> dict[str, Any]:
        """A message as the template sees it; fields without a value are left out, as transformers does."""
        role = message.role
        if role not in ROLES and not (role.isidentifier() and re.search(f"['\"]{role}['\"]", self.source)):
            raise unknown("role", role, ROLES)
        if role == "developer" and "developer" not in self.source:
            role = "system"
        fields = {key: value for key, value in message.extra if value is not None}
        thought = next((fields[key] for key in _REASONING_FIELDS if key in fields), None)
        if thought is not None:
            fields = {"thinking": thought, **fields, "reasoning_content": thought}
        if isinstance(fields.get("tool_calls"), list | tuple):
            fields["tool_calls"] = [self._tool_call(call) for call in fields["tool_calls"]]
        return {**fields, "role": role, "content": message.content}

    def _tool_call(self, call: Any) -> Any:
        """A call with its arguments as the template takes them; OpenAI's JSON text suits few."""
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or "arguments" not in function:
            return call
        arguments = function["arguments"]
        if self._traits.wants_argument_text:
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
        elif isinstance(arguments, str):
            arguments = _object_or_text(arguments)
        return {**call, "function": {**function, "arguments": arguments}}

    def _with_system(self, chat: list[dict[str, Any]], notes: list[str]) -> list[dict[str, Any]]:
        """Puts the system message before the first user message where the template has no place for it."""
        if chat[0]["role"] != "system" or len(chat) < 2 or self._traits.takes_system:
            return chat
        system, first, *rest = chat
        if first["role"] != "user":
            return chat
        notes.append("the template has no system role, so the system message starts the first user message")
        return [{**first, "content": f"{system['content']}\n\n{first['content']}"}, *rest]

    def _typed(self, message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "content": self._traits.content(message["content"])}

    # --- text

    def _run(self, variables: Mapping[str, Any]) -> str:
        try:
            return self._program.render({**self._special_tokens, **variables})
        except LimitError as error:
            raise ModelFileError(
                f"the model's chat template was stopped: {error}", hint="give the prompt as raw text"
            ) from error
        except RaisedError as error:
            raise UsageError(f"the model's chat template refuses the conversation: {error}") from error
        except FAILURES as error:
            raise UsageError(
                f"the model's chat template cannot render the conversation: {_reason(error)}"
            ) from error

    def _render_marked(self, variables: Mapping[str, Any], notes: list[str]) -> str:
        marked = self._run(self.encoder.mark(variables))
        if MARK not in marked and _ESCAPED_MARK not in marked:
            return marked
        plain = self._run(as_json(variables, clean))
        if unmark(marked) != plain:
            marked = marked.replace(_ESCAPED_MARK, MARK)  # a filter has escaped it
        if unmark(marked) != plain:
            notes.append(
                "the template treats text that looks like its control tokens specially; it was kept as text"
            )
        return marked

    def _cut_at_tag(self, text: str, final: str) -> str:
        """transformers' rule for `continue_final_message`."""
        at = text.rfind(_CONTINUE.strip())
        if at < 0 or clean(final).strip() not in unmark(text):
            raise UsageError("the model's chat template changes the last message, so it cannot be continued")
        return text[:at] if text.startswith(_CONTINUE, at) else text[:at].rstrip()

    def _shared(self, text: str, stable: str) -> int:
        """Where the lead begins in `text`: after what it shares with the same prompt without a lead."""
        shared = len(stable) if text.startswith(stable) else common_start(text, stable)
        return self.encoder.controls.cut(text, shared)

    # --- ids

    def _prompt(
        self,
        text: str,
        lead_at: int,
        history: Sequence[Segment],
        *,
        notes: Sequence[str] = (),
        chat: bool = False,
        continued: bool = False,
    ) -> Prompt:
        # Cut only where the lead starts with a control token: elsewhere tokens could span the cut.
        apart = self.encoder.controls.at(text, lead_at) is not None
        parts = [text[:lead_at], text[lead_at:]] if apart else [text]
        segments = self._with_bos(splice(self.encoder, parts, history))
        lead = text[lead_at:]
        n_stable = sum(len(s.ids) for s in segments) - len(self.encoder.tokenize(lead, after_text=not apart))
        return Prompt(segments, unmark(lead), n_stable, tuple(notes), chat, continued)

    def _with_bos(self, segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
        """The only place that adds or removes BOS: exactly one where the model expects it, never two."""
        vocab = self.encoder.vocab
        if vocab.bos is None:
            return segments
        first = segments[0].ids if segments else ()
        if first[:2] == (vocab.bos, vocab.bos):
            return (Segment(segments[0].text, first[1:]), *segments[1:])
        if vocab.add_bos and first[:1] != (vocab.bos,):
            return (Segment("", (vocab.bos,)), *segments)
        return segments


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _object_or_text(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


_WORD = re.compile(r"[A-Za-z0-9]{3,}")


def _dropped(chat: Sequence[Mapping[str, Any]], text: str) -> list[str]:
    """A clause for every role whose last message is missing: none of its first words is in the text."""
    words = {m["role"]: _WORD.findall(m["content"][:1000]) for m in chat if m["role"] in ("system", "user")}
    missing = [role for role, found in words.items() if found and not any(word in text for word in found)]
    return [f"the template leaves out the {role} message" for role in missing]
