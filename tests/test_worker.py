"""The worker: faults of the child become sentences, and no child outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localspec.engine.events import Done, Loading, Prefill, Token
from localspec.engine.settings import LoadSettings, Request
from localspec.errors import DoesNotFitError, EngineError, PromptTooLongError
from localspec.interfaces import PairFiles
from localspec.worker import WorkerSession
from localspec.worker.obituary import describe_exit, last_words
from localspec.worker.process import WorkerProcess
from tests.kit.scripted import words_as_events

FILES = PairFiles("demo", Path("target.gguf"))
ASK = Request(prompt="hello")
Open = Callable[..., WorkerSession]


@pytest.fixture
def open_worker(tmp_path: Path) -> Iterator[Open]:
    """Open workers on factories of the kit; all are closed at the end."""
    opened: list[WorkerSession] = []

    def open_(factory: str, load: LoadSettings | None = None, **options: object) -> WorkerSession:
        session = WorkerSession(
            FILES,
            load or LoadSettings(),
            factory=f"tests.kit.worker_factories:{factory}",
            log=tmp_path / "log" / "worker.log",
            **options,  # type: ignore[arg-type]
        )
        opened.append(session)
        return session

    yield open_
    for session in opened:
        session.close()


def gone(pid: int) -> bool:
    """Whether a process no longer runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(condition: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_reply_arrives_unchanged_after_progress_of_the_load(open_worker: Open) -> None:
    seen: list[Loading] = []
    session = open_worker("words", LoadSettings(n_ctx=512), on_event=seen.append)
    assert session.info.pair == "demo"
    assert session.info.effective.n_ctx == 512
    assert [event.fraction for event in seen] == [0.5, 1.0]
    expected = words_as_events("one two three four five six seven eight")
    assert list(session.reply(ASK)) == expected
    assert list(session.reply(ASK)) == expected


def test_events_are_batched_under_load_and_prompt_when_idle(open_worker: Open) -> None:
    flood = open_worker("flood", LoadSettings(n_ctx=40_000))
    _ = flood.info
    start = time.monotonic()
    events = list(flood.reply(ASK))
    assert len(events) == 40_002
    assert len(events) / (time.monotonic() - start) > 20_000

    stamped = open_worker("stamped")
    lags = sorted(
        time.monotonic() - event.logprob
        for event in stamped.reply(ASK)
        if isinstance(event, Token) and event.logprob
    )
    assert len(lags) == 30
    assert lags[len(lags) // 2] < 0.002


def test_cancel_ends_a_slow_reply_and_the_session_lives_on(open_worker: Open) -> None:
    session = open_worker("words", LoadSettings(threads=1))
    reply = session.reply(ASK)
    assert isinstance(next(reply), Prefill)
    start = time.monotonic()
    reply.cancel()
    rest = list(reply)
    assert isinstance(rest[-1], Done) and rest[-1].reason == "cancelled"
    assert len(rest) < 4
    assert time.monotonic() - start < 1.0
    last = list(session.reply(ASK))[-1]
    assert isinstance(last, Done) and last.reason == "stop"


def test_a_cancel_after_the_end_never_reaches_the_child(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers give every place up, also those of replies that have ended."""
    session = open_worker("words")
    reply = session.reply(ASK)
    assert isinstance(list(reply)[-1], Done)
    sent: list[object] = []
    monkeypatch.setattr(WorkerProcess, "send", lambda self, message: sent.append(message))
    reply.cancel()
    monkeypatch.undo()
    assert sent == []


def test_a_closed_reply_is_dropped_and_the_next_one_starts(open_worker: Open) -> None:
    session = open_worker("words", LoadSettings(threads=1))
    reply = session.reply(ASK)
    next(reply)
    reply.close()
    assert list(reply) == []
    events = list(session.reply(ASK))
    assert isinstance(events[0], Prefill) and isinstance(events[-1], Done) and events[-1].reason == "stop"


def test_what_the_session_refuses_is_raised_with_its_own_type(open_worker: Open) -> None:
    session = open_worker("refuse_long")
    with pytest.raises(PromptTooLongError, match="9000 tokens, the context 4096") as refusal:
        session.reply(Request(prompt="long"))
    assert refusal.value.hint == "shorten it"
    assert isinstance(list(session.reply(ASK))[-1], Done)


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (
            "abort_in_reply",
            r"aborted inside llama.cpp \(SIGABRT\): ggml.c:123: GGML_ASSERT\(n_tokens > 0\) failed",
        ),
        ("killed_in_reply", r"was killed \(SIGKILL\), most likely because memory ran out"),
    ],
)
def test_death_in_a_reply_keeps_the_text_and_says_why(open_worker: Open, factory: str, sentence: str) -> None:
    session = open_worker(factory)
    start = time.monotonic()
    events = list(session.reply(ASK))
    assert time.monotonic() - start < 1.5
    assert [event.text for event in events if isinstance(event, Token)] == ["one", " two"]
    last = events[-1]
    assert not session.alive, "who hears of the death may restart at once"
    assert isinstance(last, Done) and last.reason == "error"
    assert last.error is not None and str(session.log) in last.error
    assert last.summary.completion_tokens == 2
    with pytest.raises(EngineError, match=sentence):
        session.reply(ASK)


def test_a_session_with_slots_answers_as_many_at_once(open_worker: Open) -> None:
    session = open_worker("words", LoadSettings(slots=3, threads=1))  # 0.1 s before each event
    began = time.monotonic()
    replies = [session.reply(ASK) for _ in range(3)]
    one = next(replies[0])
    replies[1].cancel()
    found = [[one, *replies[0]], *(list(reply) for reply in replies[1:])]
    alone = words_as_events("one two three four five six seven eight")
    assert [events[-1].reason for events in found if isinstance(events[-1], Done)] == [
        "stop",
        "cancelled",
        "stop",
    ]
    assert found[0] == found[2] == alone
    assert time.monotonic() - began < 2 * 0.1 * len(alone), "they ran one after another"


def test_a_dead_worker_can_be_restarted_with_other_settings(open_worker: Open) -> None:
    session = open_worker("killed_in_reply", LoadSettings(n_ctx=1024))
    list(session.reply(ASK))
    session.restart(LoadSettings(n_ctx=2048))
    assert session.load.n_ctx == 2048
    again = session.reply(ASK)  # the fresh child fails in its first reply, too: it is another process
    assert isinstance(next(again), Prefill)


def test_an_exception_in_a_reply_ends_it_and_not_the_worker(open_worker: Open) -> None:
    session = open_worker("raise_in_reply")
    last = list(session.reply(ASK))[-1]
    assert isinstance(last, Done) and last.reason == "error"
    assert last.error == "the reply failed with KeyError: 'logits'"
    assert "Traceback" in session.log.read_text()
    last = list(session.reply(ASK))[-1]
    assert isinstance(last, Done) and last.reason == "stop"


@pytest.mark.parametrize("factory", ["hang_in_reply", "hang_with_lock_in_reply"])
def test_a_reply_that_ignores_the_cancel_is_ended(open_worker: Open, factory: str) -> None:
    session = open_worker(factory, stop_grace_s=0.3)
    reply = session.reply(ASK)
    next(reply)
    threading.Timer(0.1, reply.cancel).start()
    start = time.monotonic()
    last = list(reply)[-1]
    assert time.monotonic() - start < 2.0
    assert isinstance(last, Done) and last.reason == "error"
    assert last.error is not None and "did not stop within 0.3 s and was ended" in last.error


def test_a_silent_reply_is_ended(open_worker: Open) -> None:
    session = open_worker("hang_in_reply", silence_s=0.4)
    last = list(session.reply(ASK))[-1]
    assert isinstance(last, Done) and last.error is not None
    assert "said nothing for 0.4 s and was ended" in last.error


def test_errors_of_the_load_keep_their_type(open_worker: Open) -> None:
    with pytest.raises(DoesNotFitError, match=r"needs 30.1 GiB") as error:
        _ = open_worker("does_not_fit").info
    assert error.value.exit_code == 4
    with pytest.raises(EngineError, match="loading failed with ZeroDivisionError: in the loader"):
        _ = open_worker("broken_factory").info
    with pytest.raises(EngineError, match="aborted inside"):
        _ = open_worker("abort_in_load").info
    with pytest.raises(EngineError, match="no_such_factory"):
        _ = open_worker("no_such_factory").info


@pytest.mark.parametrize("factory", ["sleep_in_load", "hold_lock_in_load"])
def test_close_during_a_load_does_not_wait_for_it(open_worker: Open, factory: str) -> None:
    started = threading.Event()
    session = open_worker(factory, on_event=lambda _: started.set())
    outcome: list[str] = []

    def wait_for_load() -> None:
        try:
            _ = session.info
        except EngineError as error:
            outcome.append(error.message)

    waiter = threading.Thread(target=wait_for_load)
    waiter.start()
    assert started.wait(10)
    start = time.monotonic()
    session.close()
    session.close()
    assert time.monotonic() - start < 1.5
    waiter.join(1)
    assert outcome == ["the session is closed"]
    assert session.pid is not None and gone(session.pid)
    with pytest.raises(EngineError, match="the session is closed"):
        session.reply(ASK)
    with pytest.raises(EngineError, match="the session is closed"):
        session.restart()


@pytest.mark.parametrize("factory", ["hang_in_reply", "hang_with_lock_in_reply"])
def test_close_during_a_hang_ends_the_reply_as_cancelled(open_worker: Open, factory: str) -> None:
    session = open_worker(factory)
    reply = session.reply(ASK)
    next(reply)
    start = time.monotonic()
    threading.Timer(0.2, session.close).start()
    last = list(reply)[-1]
    assert time.monotonic() - start < 2.0
    assert isinstance(last, Done) and last.reason == "cancelled"


def test_prints_of_the_child_go_to_the_log(open_worker: Open, capfd: pytest.CaptureFixture[str]) -> None:
    list(open_worker("abort_in_reply").reply(ASK))
    out, err = capfd.readouterr()
    assert out == "" and err == ""


def test_what_llama_cpp_logs_is_in_the_log(open_worker: Open) -> None:
    session = open_worker("logs_while_loading")
    _ = session.info
    assert "WARNING localspec.llama: the cache is small" in session.log.read_text()


def test_a_log_that_cannot_be_written_does_not_stop_the_load(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with WorkerSession(
        FILES, LoadSettings(), factory="tests.kit.worker_factories:words", log=blocked / "worker.log"
    ) as session:
        assert session.info.pair == "demo"


def test_the_child_outlives_the_thread_that_opened_it(open_worker: Open) -> None:
    """The kernel's parent-death signal follows the starting thread, not the process."""
    opened: list[WorkerSession] = []
    opener = threading.Thread(target=lambda: opened.append(open_worker("words")))
    opener.start()
    opener.join()
    time.sleep(0.3)
    assert opened[0].alive
    assert isinstance(list(opened[0].reply(ASK))[-1], Done)


def test_interrupt_does_not_reach_the_child(open_worker: Open) -> None:
    session = open_worker("words")
    _ = session.info
    assert session.pid is not None
    os.kill(session.pid, signal.SIGINT)
    time.sleep(0.1)
    assert isinstance(list(session.reply(ASK))[-1], Done)


@pytest.mark.parametrize(
    "factory", ["sleep_in_load", "hold_lock_in_load", "hang_in_reply", "hang_with_lock_in_reply", "words"]
)
def test_no_child_is_left_when_the_parent_is_killed(tmp_path: Path, factory: str) -> None:
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from localspec.engine.settings import LoadSettings, Request
        from localspec.interfaces import PairFiles
        from localspec.worker import WorkerSession

        session = WorkerSession(
            PairFiles("demo", Path("x")), LoadSettings(), factory="tests.kit.worker_factories:{factory}",
            log=Path({str(tmp_path / "log")!r}), on_event=lambda event: print(session.pid, flush=True),
        )
        print(session.pid, flush=True)
        for event in session.reply(Request(prompt="x")):
            print(session.pid, flush=True)
        time.sleep(60)
    """)
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        parent.stdout.readline()  # inside the load, or in the reply
        assert not gone(pid)
        parent.kill()
        parent.wait()
    assert wait_for(lambda: gone(pid), within_s=2.0)


def test_obituary_words() -> None:
    assert describe_exit(3) == "ended with exit code 3"
    assert describe_exit(-signal.SIGSEGV) == "crashed (SIGSEGV)"
    assert describe_exit(-signal.SIGUSR1) == "was ended by SIGUSR1"


def test_last_words_stop_at_the_fault_handler_and_skip_older_runs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("an older run\n")
    since = log.stat().st_size
    with log.open("a") as stream:
        stream.write("a\n\nb\nc\nGGML_ASSERT failed\nFatal Python error: Aborted\n\nThread 0x1 \n")
    assert last_words(log, since) == "b · c · GGML_ASSERT failed"
    stamp = "2026-12-01 05:30:00,123 42"
    log.write_text(
        f"{stamp} ERROR localspec.llama: out of memory\n{stamp} INFO localspec.llama: kv cache: 1 GiB\n"
    )
    assert last_words(log, 0) == "out of memory"
    log.write_text("".join(f"{stamp} INFO localspec.llama: layer {n:4}\n" for n in range(500)))
    for _ in range(60):  # wherever the part that is read begins, half a line is no complaint
        assert last_words(log, 0) == ""
        with log.open("a") as stream:
            stream.write("\n")
    log.write_text(
        "CUDA error: out of memory\n"
        f"{stamp} ERROR localspec.llama: graph_compute: x failed with error 1\n"
        f"{stamp} ERROR localspec.llama: process_ubatch: failed to compute graph, compute status: 1\n"
        f"{stamp} WARNING localspec.llama: decode: removing memory module entries\n"
        f"{stamp} ERROR localspec.llama: llama_decode: failed to decode, ret = 2\n"
    )
    assert last_words(log, 0) == "CUDA error: out of memory", "a reply that was stopped explains no death"
    assert last_words(tmp_path / "absent", 0) == ""
