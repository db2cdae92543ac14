"""One reply as events with text: the engine's stream, its token ids spelled, stop strings applied."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace

from localspec.engine.control import Control
from localspec.engine.events import Done, Event, Notice, Text, Token
from localspec.engine.text.stream import TextStream


class SessionReply:
    """The events of one reply; see `interfaces.Reply`.

    Args:
        events: the engine's stream.
        stream: spells token ids; decides where a stop string ends the reply.
        piece: token id → bytes, for log-probabilities.
        opening: events that come first (prompt notices).
        on_end: called once with the ids consumed, when the reply is over however it ended.
    """

    def __init__(
        self,
        events: Iterator[Event],
        stream: TextStream,
        control: Control,
        piece: Callable[[int], bytes],
        opening: tuple[Notice, ...],
        on_end: Callable[[list[int]], None],
    ) -> None:
        self._control = control
        self._on_end: Callable[[list[int]], None] | None = on_end
        self._ids: list[int] = []
        self._events = self._with_text(events, stream, piece, opening)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            return next(self._events)
        except BaseException:
            self._end()
            raise

    def cancel(self) -> None:
        self._control.cancel()

    def close(self) -> None:
        self._events.close()
        self._end()

    def _end(self) -> None:
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end(self._ids)

    def _with_text(
        self,
        events: Iterator[Event],
        stream: TextStream,
        piece: Callable[[int], bytes],
        opening: tuple[Notice, ...],
    ) -> Generator[Event, None, None]:
        yield from opening
        for event in events:
            if isinstance(event, Token):
                yield from self._spell(event, stream, piece)
            elif isinstance(event, Done):
                yield from (Text(text, channel) for text, channel in stream.flush())
                self._end()
                yield event
            else:
                yield event

    def _spell(self, token: Token, stream: TextStream, piece: Callable[[int], bytes]) -> Iterator[Event]:
        self._ids.append(token.id)
        released = stream.feed(token.id)
        if released.stopped:
            self._control.stop()
        yield from (Text(text, channel) for text, channel in released.earlier)
        if token.logprob is not None:
            token = replace(token, piece=piece(token.id), top_pieces=tuple(piece(id) for id, _ in token.top))
        yield replace(token, text=released.text, channel=released.channel)
