"""One reply's ids as text: whole characters, stop strings, channels.

Bytes of tokens → incremental UTF-8 → stop strings → reasoning split. Every stage holds back what it cannot
know yet and nothing else. The order of checks for a token (end of generation, stop string, length) is the
caller's: it feeds a token and reads `stopped`. Knows nothing of sampling, drafts or caches.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from localspec.engine.events import Channel
from localspec.engine.text.encode import clean
from localspec.engine.text.matcher import Matcher
from localspec.engine.text.reasoning import Span, Splitter
from localspec.engine.text.vocabulary import Vocabulary
from localspec.errors import UsageError

MAX_STOPS = 64
MAX_STOP_CHARS = 1000


class Released(NamedTuple):
    """What a token made certain."""

    text: str
    """Text in `channel`, empty while it is held back or hidden."""
    channel: Channel
    stopped: bool = False
    """A stop string was completed: the reply ends with this token and nothing more will be released."""
    earlier: tuple[Span, ...] = ()
    """Text of the other channel that became certain before `text`: (text, channel), in order."""


def check_stops(stops: Sequence[str]) -> tuple[str, ...]:
    """The stop strings of a request, each once.

    Raises:
        UsageError: one is empty, too long, or there are too many.
    """
    if any(not stop for stop in stops):
        raise UsageError("a stop string is empty")
    if len(stops) > MAX_STOPS:
        raise UsageError(f"{len(stops)} stop strings, at most {MAX_STOPS} are possible")
    if any(stop != clean(stop) for stop in stops):
        raise UsageError("a stop string contains half a character")
    if any(len(stop) > MAX_STOP_CHARS for stop in stops):
        raise UsageError(f"a stop string is longer than {MAX_STOP_CHARS} characters")
    return tuple(dict.fromkeys(stops))


def control_ids(vocab: Vocabulary, texts: Iterable[str]) -> frozenset[int]:
    """The control tokens that `texts` contain."""
    ids = (i for text in texts for i in vocab.tokenize(text, special=True, add_special=False))
    return frozenset(i for i in ids if vocab.is_control(i))


class TextStream:
    """Text of one reply, token by token.

    A stop string is looked for in the whole text, markers and reasoning included, and it also matches when
    it is the spelling of a control token. Of several, the one completed first ends the reply; of those
    completed by the same character, the longest. Neither result depends on how the text is cut into tokens.
    """

    def __init__(
        self,
        vocab: Vocabulary,
        *,
        stops: Sequence[str] = (),
        splitter: Splitter | None = None,
        shown: Collection[int] = (),
        hidden: Collection[int] = (),
        strip_space: bool = False,
    ) -> None:
        """
        Args:
            vocab: spells the ids.
            stops: strings that end the reply and are not shown.
            splitter: assigns text to channels; None = all of it is content.
            shown: control tokens whose spelling is part of the text (markers, tool calls).
            hidden: tokens that are no text although they are not control tokens (ends of generation).
            strip_space: drop one leading space, which SentencePiece puts before the first word.

        Raises:
            UsageError: a stop string is empty, too long, or there are too many.
        """
        stops = check_stops(stops)
        self._stop_ids = frozenset(
            ids[0] for stop in stops if len(ids := list(control_ids(vocab, [stop]))) == 1 and
            vocab.token_text(ids[0]) == stop
        )  # fmt: skip
        self._vocab = vocab
        self._piece = vocab.piece
        self._shown = frozenset(shown) - self._stop_ids
        self._hidden = frozenset(hidden) - self._shown
        self._special = self._shown | self._hidden | self._stop_ids
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stops = Matcher(stops) if stops else None
        self._splitter = splitter
        self._strip_space = strip_space
        self._over = False

    @property
    def channel(self) -> Channel:
        """The channel that the next text will be in, as far as is known."""
        return self._splitter.channel if self._splitter is not None else "content"

    def feed(self, id: int) -> Released:
        """Take one committed token."""
        if self._over:
            return Released("", self.channel)
        if id in self._special:
            if id in self._stop_ids:
                return self._end(self._decode(b"", True))
            piece = self._piece(id, True) if id in self._shown else b""
        else:
            piece = self._piece(id)
        text = self._decode(piece)
        if not text:
            return Released("", self.channel)
        if self._strip_space:
            self._strip_space = False
            text = text.removeprefix(" ")
        if self._stops is not None:
            scan = self._stops.feed(text)
            if scan.hit is not None:
                return self._end(scan.clear, hit=True)
            text = scan.clear
        if self._splitter is None:
            return Released(text, "content")
        return _released(self._splitter.feed(text), self._splitter.channel)

    def _end(self, text: str, *, hit: bool = False) -> Released:
        self._over = True
        if self._stops is not None and not hit:
            text += self._stops.flush()
        return _released(self._split(text), self.channel)._replace(stopped=True)

    def _split(self, text: str) -> list[Span]:
        if self._splitter is None:
            return [(text, "content")] if text else []
        return _merged([*self._splitter.feed(text), *self._splitter.flush()])

    def flush(self) -> list[Span]:
        """The end of the reply: everything still held, as (text, channel). Empty after a stop string."""
        if self._over:
            return []
        self._over = True
        text = self._decode(b"", True)
        if self._stops is None:
            return self._split(text)
        scan = self._stops.feed(text)
        return self._split(scan.clear if scan.hit is not None else scan.clear + self._stops.flush())


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for text, channel in spans:
        if merged and merged[-1][1] == channel:
            merged[-1] = (merged[-1][0] + text, channel)
        else:
            merged.append((text, channel))
    return merged


def _released(spans: list[Span], channel: Channel) -> Released:
    """The last span is the token's own text, the ones before it came to light with it."""
    if not spans:
        return Released("", channel)
    if len(spans) == 1:
        return Released(*spans[0])
    *earlier, (text, last) = _merged(spans)
    return Released(text, last, False, tuple(earlier))
