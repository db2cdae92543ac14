"""How much of an earlier prompt and its reply a new prompt can take over, id for id.

A prompt is a chain of segments, each the marked text and the ids it was once given. A new rendered prompt is
walked along the chain of the last turn: a segment whose text it repeats keeps its ids, the rest is tokenised.
So a reply is never tokenised again where the template shows it unchanged, and where the template drops or
edits something (stripped reasoning, an edited message) the ids differ from exactly there on. Knows nothing of
caches: the caller compares ids with what its cache holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.engine.text.encode import MARK, Encoder, common_start


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a prompt."""

    text: str
    """Marked text, see `encode`."""
    ids: tuple[int, ...]
    generated: bool = False
    """The model chose these ids."""


def reply_segments(encoder: Encoder, ids: Sequence[int], end_ids: frozenset[int]) -> tuple[Segment, ...]:
    """The ids of a finished reply as segments that continue the prompt's.

    The token that ended the reply is a segment of its own: the template may write another in its place.
    """
    body = ids[:-1] if ids and ids[-1] in end_ids else ids
    parts = [tuple(body), tuple(ids[len(body) :])]
    return tuple(Segment(encoder.spell(part), part, generated=True) for part in parts if part)


def splice(encoder: Encoder, texts: Sequence[str], history: Sequence[Segment]) -> tuple[Segment, ...]:
    """Ids for a new prompt, taken from `history` as far as its text repeats it.

    Args:
        encoder: tokenises what is new.
        texts: the marked text of the new prompt, cut where its segments may begin.
        history: the segments of the last prompt and its reply.
    """
    text = "".join(texts)
    kept, done = _kept(encoder, text, history)
    cut = 0
    for part in texts:
        start, cut = max(cut, done), cut + len(part)
        if cut > start:
            new = text[start:cut]
            after_text = bool(kept) and not encoder.vocab.is_control(kept[-1].ids[-1])
            if ids := encoder.tokenize(new, after_text=after_text):
                kept.append(Segment(new, tuple(ids)))
    return tuple(kept)


def _kept(encoder: Encoder, text: str, history: Sequence[Segment]) -> tuple[list[Segment], int]:
    """The segments that `text` repeats, and how many of its characters they are."""
    kept: list[Segment] = []
    done = 0
    for segment in history:
        whole = text.startswith(segment.text, done)
        part = (
            segment
            if whole
            else _shared_part(
                encoder, segment, text[done : done + len(segment.text) + encoder.controls.longest]
            )
        )
        if part is not None:
            kept.append(part)
            done += len(part.text)
        if not whole:
            break
    # Text that goes on after a kept segment could have been tokenised together with its last token.
    while kept and not _clean_cut(encoder, kept[-1], text, done):
        done -= len(kept.pop().text)
    return kept, done


def _clean_cut(encoder: Encoder, last: Segment, text: str, at: int) -> bool:
    return (
        at == len(text)
        or last.generated
        or encoder.vocab.is_control(last.ids[-1])
        or encoder.controls.at(text, at) is not None
    )


def _shared_part(encoder: Encoder, segment: Segment, text: str) -> Segment | None:
    """The start of a reply that `text` repeats up to a control token or the end: a reply cut or trimmed."""
    if not segment.generated or MARK in segment.text:
        return None
    shared = encoder.controls.cut(text, common_start(segment.text, text))
    if shared < len(text) and encoder.controls.at(text, shared) is None:
        return None
    wanted, spelled = segment.text[:shared].encode(), b""
    for count, piece in enumerate(encoder.pieces(segment.ids)):
        if spelled == wanted:
            return Segment(segment.text[:shared], segment.ids[:count], generated=True) if count else None
        if len(spelled) > len(wanted):
            return None
        spelled += piece
    return None
