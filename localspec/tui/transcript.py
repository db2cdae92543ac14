"""The text of a reply with where each piece came from: source of every view, copy and stored turn."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.engine.events import Channel, Text, Token
from localspec.store import Span, Turn


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that one token released."""

    channel: Channel
    text: str
    from_draft: bool
    round: int


class Transcript:
    """Grows by one piece per token; views remember how many pieces they have drawn."""

    def __init__(self, pieces: list[Piece] | None = None) -> None:
        self.pieces: list[Piece] = pieces or []
        self._round_offset = 0

    @classmethod
    def of_turn(cls, turn: Turn) -> Transcript:
        """The transcript of a stored turn; its text may be longer than its spans, never lost."""
        pieces: list[Piece] = []
        at = {"content": 0, "reasoning": 0}
        texts = {"content": turn.content, "reasoning": turn.reasoning}
        for span in turn.spans:
            start = at[span.channel]
            at[span.channel] = start + span.length
            pieces.append(
                Piece(
                    span.channel, texts[span.channel][start : at[span.channel]], span.from_draft, span.round
                )
            )
        for channel in ("reasoning", "content"):
            rest = texts[channel][at[channel] :]
            if rest:
                pieces.append(Piece(channel, rest, False, 0))
        return cls(pieces)

    def add(self, event: Token | Text) -> None:
        """Append what an event says; held-back text counts as the target's own."""
        if not event.text:
            return
        if isinstance(event, Token):
            piece = Piece(event.channel, event.text, event.from_draft, event.round + self._round_offset)
        else:
            piece = Piece(event.channel, event.text, False, self.pieces[-1].round if self.pieces else 0)
        self.pieces.append(piece)

    def carry_on(self) -> None:
        """The next tokens come from another reply that continues this one: its rounds count on."""
        self._round_offset = self.pieces[-1].round + 1 if self.pieces else 0

    @property
    def content(self) -> str:
        return self._joined("content")

    @property
    def reasoning(self) -> str:
        return self._joined("reasoning")

    def _joined(self, channel: Channel) -> str:
        return "".join(piece.text for piece in self.pieces if piece.channel == channel)

    def spans(self) -> tuple[Span, ...]:
        """Neighbouring pieces of one kind joined, as they are stored."""
        spans: list[Span] = []
        for piece in self.pieces:
            kind = (piece.channel, piece.from_draft, piece.round)
            last = spans[-1] if spans else None
            if last and (last.channel, last.from_draft, last.round) == kind:
                spans[-1] = Span(*kind, last.length + len(piece.text))
            else:
                spans.append(Span(*kind, len(piece.text)))
        return tuple(spans)
