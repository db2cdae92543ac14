"""Who is decoded together with whom: the native thread's choices, on a context that only records them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from localspec.engine.backend.cancel import CancelFlag
from localspec.engine.backend.context import Context, DecodeAborted, Part, Rows
from localspec.engine.backend.passes import Passes, PassFacts
from localspec.errors import EngineError

WAIT_S = 10.0


@dataclass
class Recorder:
    """A context that notes the sequences of every pass; logits are sequence ids."""

    n_batch: int = 64
    most_outputs: int = 8
    cost_s: float = 0.15
    """Seconds of a pass: what those who wait are patient for."""
    refuse: int | None = None
    """A sequence whose rows no pass may have."""
    n_ubatch: int = 8
    in_order: bool = True
    passes: list[list[int]] = field(default_factory=list)
    removed: list[tuple[int, int]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    threads: set[int] = field(default_factory=set)
    during: Callable[[], None] = lambda: None

    def run_parts(self, parts: list[Part]) -> Rows:
        self.threads.add(threading.get_ident())
        ids = [part.seq_id for part in parts]
        if self.refuse in ids:
            raise EngineError(f"rows of sequence {self.refuse} are refused")
        self.passes.append(ids)
        time.sleep(self.cost_s)
        self.during()
        return np.concatenate([np.full((part.outputs, 2), part.seq_id, np.float32) for part in parts])

    def remove(self, seq_id: int, start: int) -> bool:
        self.removed.append((seq_id, start))
        return True


@pytest.fixture
def passes() -> Iterator[Passes]:
    made = Passes()
    yield made
    made.close()


@pytest.fixture
def replies() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def as_context(recorder: Recorder) -> Context:
    return cast(Context, recorder)


def part(seq_id: int, rows: int = 1, outputs: int = 1) -> Part:
    return Part(np.zeros(rows, np.int32), 0, seq_id, outputs)


def asks(
    pool: ThreadPoolExecutor, passes: Passes, on: Recorder, which: Part, read: Any = None
) -> Future[tuple[Rows, PassFacts]]:
    future = pool.submit(passes.decode, as_context(on), which, read)
    time.sleep(0.003)  # arrivals in the order of the calls
    return future


def ends(*futures: Future[Any]) -> list[Any]:
    return [future.result(WAIT_S) for future in futures]


def begin(pool: ThreadPoolExecutor, passes: Passes, on: Recorder, *seq_ids: int) -> None:
    """Let replies run: they have asked once."""
    ends(*(asks(pool, passes, on, part(seq_id)) for seq_id in seq_ids))
    on.passes.clear()


def test_those_who_wait_share_a_pass_and_get_rows_of_their_own(
    passes: Passes, replies: ThreadPoolExecutor
) -> None:
    context = Recorder()
    passes.prefer(as_context(context))
    begin(replies, passes, context, 0, 1, 2)
    found = ends(*(asks(replies, passes, context, part(i, rows=i + 1, outputs=i + 1)) for i in range(3)))
    assert context.passes == [[0, 1, 2]]
    assert [rows.tolist() for rows, _ in found] == [[[float(i)] * 2] * (i + 1) for i in range(3)]
    assert all((f.sequences, f.rows, f.outputs) == (3, 6, 6) and f.seconds >= 0.02 for _, f in found)
    assert len(context.threads) == 1, "one thread decodes"


def test_nobody_is_awaited_for_longer_than_a_pass_and_then_not_again(
    passes: Passes, replies: ThreadPoolExecutor
) -> None:
    context = Recorder()
    passes.prefer(as_context(context))
    begin(replies, passes, context, 0, 1)  # and 1 never asks again
    began = time.monotonic()
    ends(asks(replies, passes, context, part(0)))
    first = time.monotonic() - began
    began = time.monotonic()
    ends(asks(replies, passes, context, part(0)))
    second = time.monotonic() - began
    assert first >= 0.3 and second < first - 0.05
    ends(*(asks(replies, passes, context, part(i)) for i in (1, 0)))
    assert context.passes[-1] in ([1, 0], [0])
    passes.leave(1)
    assert passes.others(0) == 0


def test_drafts_go_first_and_lead_to_a_common_pass(passes: Passes, replies: ThreadPoolExecutor) -> None:
    target, draft = Recorder(), Recorder(cost_s=0.001)
    passes.prefer(as_context(target))
    begin(replies, passes, target, 0, 1)
    waits = asks(replies, passes, target, part(0))
    ends(asks(replies, passes, draft, part(1)))
    assert not waits.done() and target.passes == []
    ends(waits, asks(replies, passes, target, part(1, rows=2, outputs=2)))
    assert (draft.passes, target.passes) == ([[1]], [[0, 1]])


def test_a_pass_holds_what_the_context_reserves_in_order_of_arrival(
    passes: Passes, replies: ThreadPoolExecutor
) -> None:
    context = Recorder(n_batch=10, most_outputs=4)
    passes.prefer(as_context(context))
    begin(replies, passes, context, 0, 1, 2, 3)
    wanted = [part(0, 3, 3), part(1, 2, 2), part(2, 1, 1), part(3, 7, 0)]
    ends(*(asks(replies, passes, context, each) for each in wanted))
    assert context.passes == [[0, 2], [1, 3]], "outputs of 0 and 1, rows of 0 and 3 do not fit one pass"


@pytest.mark.parametrize(
    ("in_order", "rows", "passes_made", "read_as"),
    [
        (True, 3, [[0, 1, 2]], (5, 1, 3)),
        (True, 8, [[0, 2], [1]], (8, 0, 8)),
        (False, 3, [[0, 2], [1]], (3, 0, 3)),
    ],
    ids=["in one piece", "more than a micro-batch", "out of order"],
)
def test_hidden_states_are_read_in_the_pass_where_their_place_is_known(
    passes: Passes,
    replies: ThreadPoolExecutor,
    in_order: bool,
    rows: int,
    passes_made: list[list[int]],
    read_as: tuple[int, int, int],
) -> None:
    context = Recorder(in_order=in_order)
    passes.prefer(as_context(context))
    begin(replies, passes, context, 0, 1, 2)
    reads: list[tuple[int, ...]] = []
    ends(
        asks(replies, passes, context, part(0)),
        asks(replies, passes, context, part(1, rows, 1), lambda *place: reads.append(place)),
        asks(replies, passes, context, part(2)),
    )
    assert (context.passes, reads) == (passes_made, [read_as])


def test_refused_rows_fail_alone(passes: Passes, replies: ThreadPoolExecutor) -> None:
    context = Recorder()
    passes.prefer(as_context(context))
    begin(replies, passes, context, 0, 1, 2)
    context.refuse = 1
    good, bad, fine = (asks(replies, passes, context, part(i)) for i in range(3))
    assert good.result(WAIT_S)[1].sequences == fine.result(WAIT_S)[1].sequences == 1
    with pytest.raises(EngineError, match="sequence 1 are refused"):
        bad.result(WAIT_S)
    assert sorted(context.removed) == [(0, 0), (1, 0), (2, 0)], "what a broken pass stored is dropped"


def test_only_a_pass_of_its_own_is_interrupted(replies: ThreadPoolExecutor) -> None:
    flag = CancelFlag()
    passes = Passes(flag)
    context = Recorder()
    passes.prefer(as_context(context))
    begin(replies, passes, context, 0, 1)

    def interrupted() -> None:
        passes.interrupt(0)
        if flag.is_set:
            raise DecodeAborted

    context.during = interrupted
    ends(*(asks(replies, passes, context, part(i)) for i in range(2)))
    passes.leave(1)
    passes.resume(0)
    with pytest.raises(DecodeAborted):
        ends(asks(replies, passes, context, part(0)))
    assert not flag.is_set, "the next pass runs"
    passes.close()


def test_an_interrupted_sequence_waits_for_no_pass_and_gets_none_until_it_resumes(
    passes: Passes, replies: ThreadPoolExecutor
) -> None:
    context = Recorder(cost_s=1.0)
    passes.prefer(as_context(context))
    other = asks(replies, passes, context, part(1))
    while not context.passes:
        time.sleep(0.001)
    waits = asks(replies, passes, context, part(0))
    passes.interrupt(0)
    for ask in (waits, asks(replies, passes, context, part(0))):
        with pytest.raises(DecodeAborted):
            ends(ask)
    assert not other.done() and context.passes == [[1]], "nobody else is disturbed"
    passes.leave(1)
    passes.resume(0)
    ends(other, asks(replies, passes, context, part(0)))
    assert context.passes == [[1], [0]]


def test_calls_run_in_the_thread_of_the_passes_and_raise_there(passes: Passes) -> None:
    outer = passes.call(threading.get_ident)
    assert outer != threading.get_ident()
    assert passes.call(lambda: passes.call(threading.get_ident)) == outer
    with pytest.raises(ZeroDivisionError):
        passes.call(lambda: 1 / 0)


def test_closed_passes_refuse(passes: Passes) -> None:
    passes.close()
    with pytest.raises(EngineError, match="closed"):
        passes.call(threading.get_ident)
    with pytest.raises(EngineError, match="closed"):
        passes.decode(as_context(Recorder()), part(0), None)
