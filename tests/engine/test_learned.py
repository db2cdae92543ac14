"""Learned drafters against numpy references: what they read, propose and leave behind (EXACT profile)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.engine.drafters import hidden
from localspec.engine.drafters.base import Draft
from localspec.engine.drafters.features import FeatureDrafter
from localspec.engine.drafters.head_context import BlockCells, PairCells
from localspec.engine.drafters.hidden import FeatureStore
from localspec.engine.events import Token
from localspec.engine.policy import DraftRequest, FixedPolicy
from localspec.errors import EngineError
from localspec.selftest import drafts
from localspec.selftest.drafts import Draft as DraftFile
from localspec.selftest.targets import Shape
from localspec.selftest.weights import Draw
from tests.engine.harness import Result, patched, plain, random_prompt
from tests.engine.learned import BY_KIND, EXACT, PAIRS, Learned, Pair, Proposal, check
from tests.engine.test_exactness import consume

KINDS = pytest.mark.parametrize("pair", BY_KIND.values(), ids=BY_KIND.keys())


def failures(result: Result) -> list[str]:
    """Notices other than that random heads are rarely right."""
    return [notice.reason for notice in result.notices if notice.kind != "alarm"]


def checked_reply(pair: Pair) -> None:
    """A prompt longer than a batch, a reply, and every draft on the way."""
    prompt = random_prompt(31, 70, pair.target)
    with Learned(pair) as bench:
        result = bench.reply(prompt, k=4, max_tokens=40)
        assert not failures(result)
        assert result.ids == list(plain(pair.target, tuple(prompt), 40))
        check(pair, bench.record, prompt + result.ids, at_least=10)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_every_draft_of_a_reply_is_the_references(pair: Pair) -> None:
    """Known faults 33, 77: right hidden state, right rows, right positions, round after round."""
    checked_reply(pair)


WINDOW = {"attention__sliding_window": 24, "attention__sliding_window_pattern": [True, False]}
WRITERS: dict[str, Callable[[Path, DraftFile], None]] = {
    "causal blocks": partial(drafts.write_dflash, attention__causal=True),
    "a window in one layer": partial(drafts.write_dflash, **WINDOW),
    "four positions per row": partial(drafts.write_dflash, rope__dimension_sections=[16, 0, 0, 0]),
    "an unread anchor row": partial(drafts.write_dspark, from_anchor=False),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())
def test_block_formats_that_no_tiny_model_has(
    write: Callable[[Path, DraftFile], None], tmp_path: Path
) -> None:
    path = tmp_path / "block.gguf"
    write(path, DraftFile("block", "syn-hyb-few", Draw(seed=3), base_arch="qwen35", shape=Shape(layers=2)))
    checked_reply(Pair("syn-hyb-few", "block", "dflash", path))


def test_a_windowed_drafter_that_cannot_go_back_reads_the_prompt_again(tmp_path: Path) -> None:
    """Cells that left its window are gone, so a prompt that shares only the beginning starts anew."""
    path = tmp_path / "block.gguf"
    all_layers = {"attention__sliding_window": 24, "attention__sliding_window_pattern": [True, True]}
    file = DraftFile("block", "syn", Draw(seed=3), shape=Shape(layers=2))
    drafts.write_dflash(path, file, **all_layers)
    pair = Pair("syn", "block", "dflash", path)
    first = random_prompt(1, 200)
    with Learned(pair, n_ctx=1024) as bench:
        bench.reply(first, k=3, max_tokens=500)
        second = first[:150] + random_prompt(2, 20)
        result = bench.reply(second, k=3, max_tokens=20)
        assert not failures(result)
        assert result.done.summary.reused_tokens == 0
        bench.record.proposals[:] = bench.record.proposals[-4:]
        bench.record.reads[:] = bench.record.reads[-4:]
        check(pair, bench.record, second + result.ids, at_least=3)


@KINDS
def test_a_long_prompt_and_a_long_pause_are_read_in_pieces(pair: Pair) -> None:
    """Features of a prompt or a pause do not pile up, and drafts afterwards are the reference's."""
    prompt = random_prompt(8, 330, pair.target)
    policy = PausedPolicy(plain_rounds=270)
    with Learned(pair, n_ctx=1024) as bench:
        bench.policy = policy
        drafter: Any = bench.drafters[0]
        result = bench.reply(prompt, max_tokens=285)
        assert not failures(result)
        if isinstance(drafter, hidden.HiddenDrafter):
            assert len(drafter._store._rows) <= 2 * (hidden.EAGER_ROWS + 2 * bench.cells.n_batch)
        del bench.record.proposals[3:]
        check(pair, bench.record, prompt + result.ids, at_least=2)


@pytest.mark.parametrize("k_max", [1, 2, 8])
@pytest.mark.parametrize("name", ["mtp", "mtp layers in turn", "assistant"])
def test_no_more_rows_are_reserved_than_a_draft_reads(name: str, k_max: int) -> None:
    """After rounds of every length, a text's first pair and a pause; all but one at most are used."""
    pair, load = BY_KIND[name], replace(EXACT, k_max=k_max)
    prompt = random_prompt(8, 12, pair.target)
    with Learned(pair, load=load) as bench:
        context: Any = bench.drafters[0]._context  # type: ignore[attr-defined]
        decode, rows = context.decode, []

        def noted(tokens: Any, hidden: Any, start: int, *, outputs: bool) -> None:
            rows.append(len(tokens) if outputs else 0)
            decode(tokens, hidden, start, outputs=outputs)

        context.decode = noted
        bench.policy = PausedPolicy(plain_rounds=20)
        result = bench.reply(prompt, max_tokens=60)
        assert not failures(result)
        assert result.ids == list(plain(pair.target, tuple(prompt), 60))
        bench.policy = None
        short = prompt[:1]  # its first pair has no feature before it
        assert bench.reply(short, k=k_max, max_tokens=30).ids == list(plain(pair.target, tuple(short), 30))
        assert max(rows) <= context.n_outputs == bench.pair.draft_contexts[0].settings.n_outputs_max
        assert context.n_outputs - max(rows) <= 1


def test_rows_beyond_the_reserved_ones_are_refused() -> None:
    """llama.cpp would end the process over them."""
    with Learned(BY_KIND["mtp"], load=replace(EXACT, k_max=2)) as bench:
        context: Any = bench.drafters[0]._context  # type: ignore[attr-defined]
        n = context.n_outputs + 1
        rows = np.zeros((n, context._width), np.float32)
        with pytest.raises(EngineError, match="output rows, but at most 4"):
            context.decode(np.zeros(n, np.int32), rows, 0, outputs=True)


class PausedPolicy(FixedPolicy):
    """Drafts of three behind a number of plain rounds."""

    def __init__(self, plain_rounds: int) -> None:
        super().__init__(3)
        self._left = plain_rounds

    def draft(self, request: DraftRequest) -> tuple[str, Draft | None]:
        self._left -= 1
        return super().draft(request) if self._left < 0 else ("off", None)


def by_length(proposals: Sequence[Proposal]) -> dict[int, list[int]]:
    """Drafts by the length of the text they were made for."""
    return {len(said.ids): said.tokens for said in proposals if said.tokens}


def accepted_by_length(bench: Learned, result: Result) -> dict[int, int]:
    lengths = by_length(bench.record.proposals)
    return dict(zip(lengths, [r.accepted for r in result.rounds if r.drafted], strict=True))


@KINDS
def test_drafts_behind_rejections_are_a_fresh_sessions(pair: Pair) -> None:
    """Known fault 33: rejected rows leave nothing behind in whatever was derived from them."""
    prompt = random_prompt(12, 40, pair.target)
    text = prompt + list(plain(pair.target, tuple(prompt), 60))
    with Learned(pair) as bench:
        drafter: Any = bench.drafters[0]
        propose = drafter.propose

        def spoiled(history: Any, *args: Any) -> Draft:
            draft: Draft = propose(history, *args)
            if len(history) < 60:
                draft.tokens[:] = [0] * len(draft)  # a control token: never right
            return draft

        drafter.propose = spoiled
        result = bench.reply(prompt, k=4, max_tokens=60)
        assert prompt + result.ids == text
        assert sum(r.accepted for r in result.rounds[:20]) == 0
        after, accepted = by_length(bench.record.proposals), accepted_by_length(bench, result)
    start = 60
    with Learned(pair) as fresh:
        again = fresh.reply(text[:start], k=4, max_tokens=40)
        assert text[:start] + again.ids == text
        expected, wanted = by_length(fresh.record.proposals), accepted_by_length(fresh, again)
    common = sorted(set(after) & set(expected))
    assert len(common) > 10
    assert [after[n] for n in common] == [expected[n] for n in common]
    assert [accepted[n] for n in common] == [wanted[n] for n in common]


@KINDS
def test_several_prompts_in_one_session_equal_separate_ones(pair: Pair) -> None:
    """Known fault 19: nothing of one prompt reaches the next, whether they share a beginning or not."""
    first = random_prompt(1, 50, pair.target)
    prompts = [
        first,
        random_prompt(2, 30, pair.target),
        first[:25] + random_prompt(3, 20, pair.target),
        first,
    ]
    with Learned(pair) as bench:
        for prompt in prompts:
            bench.record.proposals.clear()
            result = bench.reply(prompt, k=3, max_tokens=30)
            assert not failures(result)
            said = by_length(bench.record.proposals)
            with Learned(pair) as fresh:
                assert fresh.reply(prompt, k=3, max_tokens=30).ids == result.ids
                expected = by_length(fresh.record.proposals)
            common = set(said) & set(expected)
            assert len(common) > 5
            assert {n: said[n] for n in common} == {n: expected[n] for n in common}


@KINDS
def test_a_long_reply_stays_exact_and_keeps_drafting(pair: Pair, soak: Callable[[int, int], int]) -> None:
    """Known fault 31: no method gives up after some hundred tokens."""
    length = soak(400, 2000)
    prompt = random_prompt(4, 10, pair.target)
    with Learned(pair, n_ctx=length + 20) as bench:
        result = bench.reply(prompt, k=4, max_tokens=length)
        assert not failures(result)
        assert result.ids == list(plain(pair.target, tuple(prompt), length))
        late = result.rounds[len(result.rounds) // 2 :]
        assert sum(r.drafted for r in late) > length // 4
        assert sum(r.accepted for r in late) > 0


@settings(max_examples=settings.default.max_examples // 2)  # each loads a pair
@given(
    pair=st.sampled_from(list(BY_KIND.values())),
    seed=st.integers(0, 20),
    length=st.integers(1, 70),
    k=st.integers(0, 8),
    stop=st.integers(1, 30),
    end=st.sampled_from(["length", "close", "cancel", "stop"]),
)
def test_any_end_then_continue(pair: Pair, seed: int, length: int, k: int, stop: int, end: str) -> None:
    """However a reply ends, the next one is exact and its drafts are the reference's."""
    prompt = random_prompt(seed, length, pair.target)
    expected = list(plain(pair.target, tuple(prompt), 42))
    with Learned(pair) as bench:
        got = consume(bench, prompt, k, stop, end)
        assert got == expected[:stop]
        rest = bench.reply(prompt + got, k=max(k, 1), max_tokens=42 - stop)
        assert got + rest.ids == expected
        assert not failures(rest)
        del bench.record.proposals[:-3]
        check(pair, bench.record, prompt + expected, at_least=1)


@KINDS
def test_a_cancel_during_the_prompt_leaves_nothing_wrong(pair: Pair) -> None:
    """A prompt that was half read, then an older one, then the first again."""
    old, new = random_prompt(5, 100, pair.target), random_prompt(6, 200, pair.target)
    new = old[:40] + new[40:]
    with Learned(pair) as bench:
        bench.reply(old, k=3, max_tokens=10)
        for number, _ in enumerate(bench.start(new, k=3)):
            if number == 2:
                bench.control.cancel()
        for prompt in (old, new):
            bench.record.proposals.clear()
            bench.record.reads.clear()
            result = bench.reply(prompt, k=3, max_tokens=12)
            assert not failures(result)
            check(pair, bench.record, prompt + result.ids, at_least=2)


@KINDS
def test_sampled_replies_do_not_depend_on_the_drafts(pair: Pair) -> None:
    """Match rule, one seed: the text is the same for every k, also without drafts."""
    from localspec.engine.settings import SamplingSettings

    prompt = random_prompt(7, 20, pair.target)
    texts = []
    for k in (0, 1, 4, 8):
        with Learned(pair) as bench:
            warm = SamplingSettings(temperature=0.8, top_k=40, top_p=0.95)
            result = bench.reply(prompt, k=k, max_tokens=40, sampling=warm, seed=11)
            texts.append(result.ids)
            assert any(isinstance(e, Token) and e.from_draft for e in result.events) == (k > 0)
    assert texts[1:] == texts[:1] * 3


# -- mutations: each breaks a row, a position or a memory, and the numeric check must notice ----------


@contextmanager
def rows_off_by_one() -> Iterator[None]:
    """Features are stored for the position before theirs."""
    original = FeatureStore.put

    def put(self: FeatureStore, start: int, rows: Any) -> None:
        original(self, start, np.roll(rows, -1, axis=0))

    with patched(FeatureStore, "put", put):
        yield


@contextmanager
def rejected_features_kept() -> Iterator[None]:
    """What was stored of a position first stays, also when it was rejected."""
    kept: dict[tuple[int, int], Any] = {}
    original = FeatureStore.put

    def put(self: FeatureStore, start: int, rows: Any) -> None:
        rows = np.stack([kept.setdefault((id(self), start + i), row.copy()) for i, row in enumerate(rows)])
        original(self, start, rows)

    with patched(FeatureStore, "put", put):
        yield


@contextmanager
def offset_wrong() -> Iterator[None]:
    """EAGLE-3 and MTP change places, blocks lie one position late."""
    next_pairs, block = FeatureDrafter._next_pairs, BlockCells.block

    def pairs(self: FeatureDrafter, n: int) -> Any:
        tokens, rows = next_pairs(self, n)
        return np.roll(tokens, 1), rows

    def late(self: BlockCells, newest: int, k: int, start: int) -> Any:
        return block(self, newest, k, start + 1)

    with patched(FeatureDrafter, "_next_pairs", pairs), patched(BlockCells, "block", late):
        yield


@contextmanager
def one_cell_too_many() -> Iterator[None]:
    """The newest cell is made twice."""
    original = FeatureStore.take

    def take(self: FeatureStore, n: int) -> Any:
        rows = original(self, n)
        rows[-1] = rows[0]
        return rows

    with patched(FeatureStore, "take", take):
        yield


MUTATIONS = {
    "features off by one": rows_off_by_one,
    "features of rejected rows kept": rejected_features_kept,
    "offset wrong": offset_wrong,
    "a cell of another position": one_cell_too_many,
}


@pytest.mark.parametrize(
    "pair", [p for n, p in BY_KIND.items() if n not in ("medusa", "assistant", "eagle3")], ids=str
)
@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_the_check_notices_a_broken_drafter(mutation: Any, pair: Pair) -> None:
    with mutation(), pytest.raises(AssertionError):
        checked_reply(pair)


@pytest.mark.parametrize("name", ["medusa", "assistant"])
def test_the_check_notices_a_hidden_row_off_by_one(name: str) -> None:
    """Drafters that read one row only, the row before the right one."""
    original = hidden.LatestRows.observe

    def observe(self: hidden.LatestRows, tokens: Any, start: int) -> None:
        original(self, tokens, start + 1)

    with patched(hidden.LatestRows, "observe", observe), pytest.raises(AssertionError):
        checked_reply(BY_KIND[name])


def test_the_check_notices_layers_that_do_not_take_turns() -> None:
    with patched(PairCells, "use_layer", lambda self, index: None), pytest.raises(AssertionError):
        checked_reply(BY_KIND["mtp layers in turn"])
