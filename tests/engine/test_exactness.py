"""Greedy speculative output equals plain decoding, and breaking a cache, a position or a verdict shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.adapt import AdaptivePolicy
from localspec.engine.backend.context import Context
from localspec.engine.backend.rewind import _Saved
from localspec.engine.backend.sequence import Sequence
from localspec.engine.drafters.ngram import NgramDrafter
from localspec.engine.events import Done, Token
from localspec.engine.speculative import Loop
from localspec.errors import EngineError
from tests.engine.harness import Bench, TableDrafter, alien, ids, patched, plain, random_prompt

TARGETS = ("syn", "syn-swa", "syn-hyb", "syn-hyb-nosnap")


@pytest.mark.parametrize("k", range(1, 17))
def test_a_model_drafting_for_itself_is_always_accepted(k: int) -> None:
    """Known faults 3, 6: output rows and batches hold k + 1, and speculation yields as many tokens."""
    with Bench(n_ctx=200, n_batch=k + 1).with_draft_model("syn") as bench:
        prompt = random_prompt(k, 40)
        result = bench.reply(prompt, k=k, max_tokens=None)
        summary = result.done.summary
        assert summary.accepted == summary.tested == summary.drafted > 0
        assert result.done.reason == "context"
        assert len(prompt) + len(result.ids) == 201, "the last token needs no cell"
        assert result.ids == list(plain("syn", tuple(prompt), len(result.ids)))


@pytest.mark.parametrize("n_ctx", [64, 65, 100, 255])
def test_a_context_is_filled_to_its_end_and_no_further(n_ctx: int) -> None:
    """Known fault 1: the draft never runs past the asked context, which is not llama.cpp's padded one."""
    with Bench(n_ctx=n_ctx).with_draft_model("syn-near") as bench:
        prompt = random_prompt(3, 20)
        result = bench.reply(prompt, k=16, max_tokens=None)
        assert result.done.reason == "context"
        assert bench.cells.n_past == n_ctx
        assert result.ids == list(plain("syn", tuple(prompt), n_ctx - 20 + 1))


@pytest.mark.parametrize("max_tokens", range(1, 10))
def test_max_tokens_is_met_exactly(max_tokens: int) -> None:
    """Known fault 37: not one token more or less, whatever the draft length."""
    with Bench().with_draft_model("syn") as bench:
        result = bench.reply(random_prompt(5, 12), k=8, max_tokens=max_tokens)
        assert len(result.ids) == max_tokens == result.done.summary.completion_tokens
        assert result.done.reason == "length"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_a_draft_that_is_always_wrong_changes_nothing(target: str, k: int) -> None:
    """Known faults 9, 22, 26, 30: every drafted token is judged, and every kind of memory rolls back."""
    prompt = random_prompt(7, 24, target)
    expected = plain(target, tuple(prompt), 200)
    with Bench(target) as bench:
        bench.with_drafter(TableDrafter(len(prompt), expected, alien(bench.context.n_vocab)))
        result = bench.reply(prompt, k=k, max_tokens=200)
        assert result.ids == list(expected)
        assert result.done.summary.accepted == 0
        assert result.done.summary.drafted > 150


@pytest.mark.parametrize("target", TARGETS)
def test_ngrams_on_repetitive_text(target: str) -> None:
    """Known fault 29: drafts without a model roll the target's state back too."""
    prompt = random_prompt(11, 12, target) * 3
    with Bench(target).with_drafter(NgramDrafter()) as bench:
        result = bench.reply(prompt, k=6, max_tokens=150)
        assert result.ids == list(plain(target, tuple(prompt), 150))
        assert result.done.summary.drafted > 0


@given(
    seed=st.integers(0, 50),
    length=st.integers(1, 60),
    k=st.integers(0, 16),
    target=st.sampled_from(TARGETS),
    right=st.lists(st.booleans(), min_size=1, max_size=9),
    stop=st.integers(1, 40),
    end=st.sampled_from(["length", "close", "cancel", "stop"]),
)
def test_any_draft_any_end_then_continue(
    seed: int, length: int, k: int, target: str, right: list[bool], stop: int, end: str
) -> None:
    """Known fault 10: however a reply ends, caches equal what was consumed; the next reply is right."""
    check_any_end(seed, length, k, target, right, stop, end)


def check_any_end(
    seed: int, length: int, k: int, target: str, right: list[bool], stop: int, end: str
) -> None:
    prompt = random_prompt(seed, length, target)
    expected = list(plain(target, tuple(prompt), 48))
    with Bench(target) as bench:
        n_vocab = bench.context.n_vocab

        def edit(at: int, id: int) -> int:
            return id if right[at % len(right)] else (id + 1) % n_vocab

        bench.with_drafter(TableDrafter(len(prompt), expected, edit))
        got = consume(bench, prompt, k, stop, end)
        assert got == expected[: len(got)]
        assert len(got) == stop
        cached = bench.cells.ids[: bench.cells.n_past].tolist()
        assert cached == (prompt + got)[: len(cached)], "the cache holds something else than the text"
        assert len(cached) == len(prompt) + len(got) - 1
        rest = bench.reply(prompt + got, k=k, max_tokens=48 - stop)
        assert got + rest.ids == expected
        if not bench.context.model.recurrent:
            assert rest.done.summary.reused_tokens == len(prompt) + len(got) - 1


def consume(bench: Bench, prompt: list[int], k: int, stop: int, end: str) -> list[int]:
    """Take `stop` tokens of a reply and end it in one of four ways."""
    loop = bench.loop(k=k, max_tokens=stop if end == "length" else 47)
    events = loop.run(ids(prompt))
    got: list[int] = []
    reason = None
    for event in events:
        if isinstance(event, Token):
            got.append(event.id)
            if len(got) == stop:
                if end == "close":
                    events.close()  # type: ignore[attr-defined]
                elif end == "cancel":
                    bench.control.cancel()
                elif end == "stop":
                    bench.control.stop()
        elif isinstance(event, Done):
            reason = event.reason
    expected = {"length": "length", "close": None, "cancel": "cancelled", "stop": "stop"}[end]
    assert reason == expected
    return got


def test_adaptive_policy_keeps_the_text() -> None:
    """Whatever the policy chooses, the text is the target's."""
    prompt = random_prompt(13, 30)
    with Bench(n_ctx=400, policy=AdaptivePolicy()).with_draft_model("syn-near") as bench:
        result = bench.reply(prompt, max_tokens=300)
        assert result.ids == list(plain("syn", tuple(prompt), 300))
        assert len({r.method for r in result.rounds}) == 2, "both plain and drafted rounds were exercised"


# -- mutations: each breaks a cache, a position or a verdict, and the checks above must notice --------


@contextmanager
def no_target_rollback() -> Iterator[None]:
    """Rejected cells stay and the position counter goes back."""

    def remove(self: Context, seq_id: int, start: int) -> bool:
        return True

    def restore(self: _Saved, sequence: Sequence) -> None:
        sequence.n_past = self.n_past

    with patched(Context, "remove", remove), patched(_Saved, "restore", restore):
        yield


@contextmanager
def keep_shifted(by: int) -> Iterator[None]:
    """One cell too many or too few survives a round."""
    original = Sequence.truncate

    def truncate(self: Sequence, n: int) -> int:
        done = original(self, max(0, min(n + by, self.n_past)))
        return done

    with patched(Sequence, "truncate", truncate):
        yield


@contextmanager
def silently_stale_cell() -> Iterator[None]:
    """The newest kept cell holds another token, while all counters look right."""
    original = Context.run

    def run(self: Context, tokens: Any, start: int, seq_id: int, outputs: int) -> Any:
        if outputs > 1:
            tokens = tokens.copy()
            tokens[1] = (tokens[1] + 1) % self.n_vocab
        return original(self, tokens, start, seq_id, outputs)

    with patched(Context, "run", run):
        yield


@contextmanager
def positions_shifted() -> Iterator[None]:
    """Drafted rows are decoded one position late."""
    original = Context.run

    def run(self: Context, tokens: Any, start: int, seq_id: int, outputs: int) -> Any:
        return original(self, tokens, start + (outputs > 1), seq_id, outputs)

    with patched(Context, "run", run):
        yield


@contextmanager
def judged_by_the_next_row() -> Iterator[None]:
    """Row i + 1 judges draft i."""
    original = Sequence.decode

    def decode(self: Sequence, tokens: Any, outputs: int) -> Any:
        rows = original(self, tokens, outputs)
        return np.roll(rows, -1, axis=0) if outputs > 1 else rows

    with patched(Sequence, "decode", decode):
        yield


@contextmanager
def unjudged_first_token() -> Iterator[None]:
    """The first drafted token of a round is emitted whatever the target says."""
    original = Loop._verdict

    def verdict(self: Loop, row: Any, proposed: int | None, i: int, state: Any, position: int) -> Any:
        if i == 0 and proposed is not None:
            return True, proposed
        return original(self, row, proposed, i, state, position)

    with patched(Loop, "_verdict", verdict):
        yield


MUTATIONS = {
    "no rollback of the target": no_target_rollback,
    "one cell too many": lambda: keep_shifted(1),
    "one cell too few": lambda: keep_shifted(-1),
    "draft positions + 1": positions_shifted,
    "a cell with another token": silently_stale_cell,
    "row i judged by row i + 1": judged_by_the_next_row,
    "an unjudged token": unjudged_first_token,
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_the_suite_notices_a_broken_loop(mutation: Any, target: str) -> None:
    """Each mutation makes the property above fail."""
    case = (3, 30, 4, target, [True, False, False, True, True, False, False], 30, "length")
    plain(target, tuple(random_prompt(3, 30, target)), 48)  # the reference is made by healthy code
    check_any_end(*case)
    with mutation(), pytest.raises((AssertionError, EngineError)):
        check_any_end(*case)
