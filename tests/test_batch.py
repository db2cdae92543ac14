"""Batches: reading, answering, keeping. Endpoints are in test_batch_endpoint.py."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.batch.lines import Item, read_items
from localspec.batch.local import DEATHS_IN_A_ROW, answers
from localspec.batch.results import Result
from localspec.batch.run import Answer, Tally, run_into_file, run_into_stream
from localspec.batch.store import Sequencer, Store
from localspec.engine.settings import LoadSettings, Request, SamplingSettings
from localspec.errors import EngineError, LocalspecError, UsageError
from localspec.interfaces import PairFiles
from localspec.worker import WorkerSession
from tests.kit.scripted import INFO
from tests.kit.serving import solo
from tests.kit.toy import ToySession

SOURCE = {"pair": "toy"}


def quiet(done: int, failed: int) -> None:
    pass


def line(custom_id: str, text: str, **body: Any) -> str:
    body = {"messages": [{"role": "user", "content": text}]} | body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body})


def items_of(*lines: str) -> list[Item]:
    return read_items("\n".join(lines).encode(), "in.jsonl")


def by(session: Any) -> Answer:
    def answer(items: list[Item], take: Callable[[Result], None]) -> None:
        for result in answers(session, items, Request()):
            take(result)

    return answer


def toy_worker(slots: int) -> WorkerSession:
    files = PairFiles("toy", Path(os.devnull))
    return WorkerSession(files, LoadSettings(slots=slots), factory="tests.kit.toy:open_toy")


def refuse(items: list[Item], take: Callable[[Result], None]) -> None:
    raise AssertionError(f"nothing was left to ask, but {len(items)} items were")


def into(out: Path, items: list[Item], answer: Answer, *, ordered: bool = True, resume: bool = True) -> Tally:
    store = Store(out, items, SOURCE, ordered=ordered)
    return run_into_file(items, store, lambda: nullcontext(answer), quiet, resume=resume)


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in out.read_text().splitlines()]


class TestReading:
    def test_jsonl_and_plain_lines_are_told_apart(self) -> None:
        request = line("a", "hi")
        assert [i.custom_id for i in read_items(request.encode(), "x.txt")] == ["a"]
        plain = read_items(b"one\n\n{not json\n", "x.txt")
        assert [(i.custom_id, i.body["messages"][0]["content"]) for i in plain] == [
            ("line-1", "one"),
            ("line-3", "{not json"),
        ]
        assert read_items(request.encode(), "x", "lines")[0].body["messages"][0]["content"] == request

    def test_a_prompt_keeps_separators_that_are_no_line_ends(self) -> None:
        text = "a\u2028b\x0cc"
        (item,) = read_items(b"\xef\xbb\xbf" + text.encode() + b"\r\n", "x.txt")
        assert item.body["messages"] == [{"role": "user", "content": text}]

    @pytest.mark.parametrize(
        ("data", "part"),
        [
            (b'{"custom_id": "a"\n', "line 1 is not JSON"),
            (line("a", "x").encode() + b"\n[1]\n", "line 2 is not a JSON object"),
            (line("a", "x").encode() + b"\n\n" + line("a", "y").encode(), "`a` in lines 1 and 3"),
            (b"ok\n\xff\n", "not UTF-8 text at line 2"),
            (b"\n \n", "holds no request"),
            (b'{"a":' * 5000, "is not JSON"),
        ],
    )
    def test_a_file_that_is_not_what_it_seems_is_refused_as_a_whole(self, data: bytes, part: str) -> None:
        with pytest.raises(UsageError, match=part) as caught:
            read_items(data, "in.jsonl")
        assert caught.value.exit_code == 2

    @pytest.mark.parametrize(
        ("value", "param"),
        [
            ({"custom_id": 5, "body": {}}, "custom_id"),
            ({"custom_id": "a", "method": "GET", "body": {}}, "method"),
            ({"custom_id": "a", "url": "/v1/embeddings", "body": {}}, "url"),
            ({"custom_id": "a", "body": "x"}, "body"),
            ({"custom_id": "a"}, "body"),
        ],
    )
    def test_a_line_that_is_no_request_has_a_fault(self, value: dict[str, Any], param: str) -> None:
        (item,) = items_of(json.dumps(value))
        assert item.fault is not None and item.fault.param == param

    def test_the_key_follows_id_and_body(self) -> None:
        keys = [i.key for i in items_of(line("a", "x"), line("b", "x"), line("c", "y"))]
        again = [i.key for i in items_of(line("c", "y"), line("a", "x", seed=1))]
        assert len(set(keys)) == 3
        assert again[0] == keys[2]
        assert again[1] not in keys


class TestAnswering:
    def test_results_have_the_batch_shape_and_the_statistics(self, tmp_path: Path) -> None:
        items = items_of(
            line("chat", "hi", max_tokens=5),
            json.dumps(
                {"custom_id": "raw", "url": "/v1/completions", "body": {"prompt": "p", "max_tokens": 2}}
            ),
        )
        tally = into(tmp_path / "out.jsonl", items, by(ToySession()))
        chat, raw = read(tmp_path / "out.jsonl")
        assert chat["custom_id"] == "chat" and chat["error"] is None
        assert chat["id"] == f"batch_req_{items[0].key}"
        assert chat["response"]["status_code"] == 200
        body = chat["response"]["body"]
        assert body["object"] == "chat.completion" and body["usage"]["completion_tokens"] == 5
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["choices"][0]["speculation"]["accepted"] == 3
        assert raw["response"]["body"]["object"] == "text_completion"
        assert (tally.answered, tally.completion_tokens, tally.accepted) == (2, 7, 4)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["out.jsonl"]

    def test_errors_of_a_line_are_its_result(self, tmp_path: Path) -> None:
        items = items_of(
            line("good", "hi"),
            line("long", "!long"),
            line("type", "x", max_tokens="5"),
            line("image", "x", messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
            json.dumps({"custom_id": "url", "url": "/v1/embeddings", "body": {}}),
            line("broken", "!error"),
        )
        tally = into(tmp_path / "out", items, by(ToySession()))
        results = {r["custom_id"]: r["response"] for r in read(tmp_path / "out")}
        assert [results[i.custom_id]["status_code"] for i in items] == [200, 400, 400, 400, 400, 500]
        errors = {name: r["body"]["error"] for name, r in results.items() if name != "good"}
        assert errors["long"]["code"] == "context_length_exceeded"
        assert errors["type"]["param"] == "max_tokens"
        assert errors["image"]["code"] == "unsupported_content"
        assert errors["broken"]["message"] == "a row was not finite"
        assert (tally.answered, tally.failed) == (1, 5)
        assert tally.line().startswith("1 of 6 answered · 5 failed")

    def test_several_choices_and_defaults(self) -> None:
        written: list[str] = []
        items = items_of(line("a", "hi", n=2, seed=7), line("b", "hi"))
        session = ToySession()
        base = Request(sampling=SamplingSettings(temperature=0.25), max_tokens=4)

        def answer(items: list[Item], take: Callable[[Result], None]) -> None:
            for result in answers(session, items, base):
                take(result)

        run_into_stream(items, written.append, lambda: nullcontext(answer), quiet, ordered=True)
        choices = json.loads(written[0])["response"]["body"]["choices"]
        assert len({c["message"]["content"] for c in choices}) == 2, "each choice has its own seed"
        assert [r.sampling.seed for r in session.requests] == [7, 8, None]
        assert {r.sampling.temperature for r in session.requests} == {0.25}
        assert {r.max_tokens for r in session.requests} == {4}

    def test_a_request_that_kills_the_model_process_costs_only_itself(self, tmp_path: Path) -> None:
        items = items_of(line("a", "hi"), line("b", "!abort"), line("c", "ho"))
        files = PairFiles("toy", Path(os.devnull))
        with WorkerSession(files, LoadSettings(), factory="tests.kit.toy:open_toy") as session:
            into(tmp_path / "out", items, by(session))
        statuses = [r["response"]["status_code"] for r in read(tmp_path / "out")]
        assert statuses == [200, 500, 200]
        assert "SIGABRT" in read(tmp_path / "out")[1]["response"]["body"]["error"]["message"]

    def test_a_model_process_that_always_dies_ends_the_run(self, tmp_path: Path) -> None:
        class Dying(ToySession):
            alive = False

        items = items_of(*(line(str(i), "!error") for i in range(6)))
        with pytest.raises(EngineError, match="a row was not finite"):
            into(tmp_path / "out", items, by(Dying()))
        assert len(read(tmp_path / "out")) == DEATHS_IN_A_ROW
        several = Dying()
        several.info = replace(INFO, effective=replace(INFO.effective, slots=2))
        with pytest.raises(EngineError, match="a row was not finite"):
            list(answers(several, items, Request()))

    def test_with_slots_several_are_asked_at_once_and_the_file_keeps_their_order(
        self, tmp_path: Path
    ) -> None:
        texts = [f"{'!slow ' if n % 4 == 0 else ''}{n}" for n in range(12)]
        items = items_of(*(line(str(n), text) for n, text in enumerate(texts)))
        with toy_worker(slots=4) as session:
            arrived = [result.item.custom_id for result in answers(session, items, Request())]
            into(tmp_path / "out", items, by(session))
        assert sorted(arrived, key=int) == [item.custom_id for item in items] != arrived
        assert [r["custom_id"] for r in read(tmp_path / "out")] == [item.custom_id for item in items]
        contents = [r["response"]["body"]["choices"][0]["message"]["content"] for r in read(tmp_path / "out")]
        assert contents == [solo(text) for text in texts]

    def test_requests_that_ran_beside_a_deadly_one_are_asked_again(self) -> None:
        texts = ["!slow a", "!slow b", "!abort", *(f"!slow {n}" for n in range(6))]
        items = items_of(*(line(str(n), text) for n, text in enumerate(texts)))
        told: list[str] = []
        with toy_worker(slots=4) as session:
            results = {r.item.custom_id: r for r in answers(session, items, Request(), told.append)}
        statuses = [results[item.custom_id].status for item in items]
        assert statuses == [500 if text == "!abort" else 200 for text in texts]
        assert len(told) == 1 and "SIGABRT" in told[0] and "asked again, one at a time" in told[0]


@given(order=st.permutations(range(12)))
def test_lines_leave_in_order_whatever_the_order_of_arrival(order: list[int]) -> None:
    sequencer = Sequencer(ordered=True)
    written = [text for index in order for text in sequencer.put(index, str(index))]
    assert written == [str(i) for i in range(12)]


class TestResuming:
    ITEMS = items_of(*(line(f"id-{i}", f"prompt {i}", max_tokens=4) for i in range(6)))

    def whole(self, tmp_path: Path) -> bytes:
        into(tmp_path / "whole", self.ITEMS, by(ToySession()))
        return (tmp_path / "whole").read_bytes()

    def stopped_after(self, n: int) -> Answer:
        def answer(items: list[Item], take: Callable[[Result], None]) -> None:
            for result in answers(ToySession(), items[:n], Request()):
                take(result)
            raise KeyboardInterrupt

        return answer

    def test_an_interrupted_run_goes_on_and_asks_nothing_twice(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        with pytest.raises(KeyboardInterrupt):
            into(out, self.ITEMS, self.stopped_after(4))
        assert len(read(out)) == 4
        session = ToySession()
        tally = into(out, self.ITEMS, by(session))
        assert [r.messages[0].content for r in session.requests] == ["prompt 4", "prompt 5"]
        assert (tally.kept, tally.answered) == (4, 6)
        assert [r["custom_id"] for r in read(out)] == [i.custom_id for i in self.ITEMS]

    def test_a_finished_batch_asks_nothing(self, tmp_path: Path) -> None:
        whole = self.whole(tmp_path)
        tally = into(tmp_path / "whole", self.ITEMS, refuse)
        assert (tally.kept, tally.failed) == (6, 0)
        assert (tmp_path / "whole").read_bytes() == whole
        assert not (tmp_path / "whole.journal").exists()

    def test_errors_of_an_earlier_run_still_count(self, tmp_path: Path) -> None:
        items = items_of(line("a", "!refuse"), line("b", "hi"))
        into(tmp_path / "out", items, by(ToySession()))
        assert into(tmp_path / "out", items, refuse).failed == 1

    def test_an_input_that_grew_is_taken_further(self, tmp_path: Path) -> None:
        into(tmp_path / "out", self.ITEMS[:3], by(ToySession()))
        session = ToySession()
        into(tmp_path / "out", self.ITEMS, by(session))
        assert len(session.requests) == 3
        assert len(read(tmp_path / "out")) == 6

    def test_starting_over_replaces_the_file(self, tmp_path: Path) -> None:
        self.whole(tmp_path)
        session = ToySession()
        assert into(tmp_path / "whole", self.ITEMS, by(session), resume=False).kept == 0
        assert len(session.requests) == 6

    def test_results_of_another_input_are_never_mixed_in(self, tmp_path: Path) -> None:
        self.whole(tmp_path)
        other = items_of(line("id-0", "another prompt"))
        with pytest.raises(UsageError, match="line 1 is no result of this input") as caught:
            into(tmp_path / "whole", other, refuse)
        assert "--no-resume" in (caught.value.hint or "")

    def test_a_foreign_file_is_left_alone(self, tmp_path: Path) -> None:
        out = tmp_path / "letter.txt"
        out.write_text("Dear reader\n")
        with pytest.raises(UsageError):
            into(out, self.ITEMS, refuse)
        assert out.read_text() == "Dear reader\n"
        assert not out.with_name("letter.txt.lock").exists()

    def test_two_models_are_never_mixed_in_one_file(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        with pytest.raises(KeyboardInterrupt):
            into(out, self.ITEMS, self.stopped_after(2))
        store = Store(out, self.ITEMS, {"pair": "other"}, ordered=True)
        with pytest.raises(UsageError, match=r"begun with .*toy.*uses .*other"):
            run_into_file(self.ITEMS, store, lambda: nullcontext(refuse), quiet, resume=True)

    def test_two_runs_cannot_write_one_file(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        with (
            Store(out, self.ITEMS, SOURCE, ordered=True),
            pytest.raises(UsageError, match=f"{os.getpid()} is"),
        ):
            into(out, self.ITEMS, refuse)

    def test_a_folder_that_is_not_there_is_one_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(LocalspecError, match="cannot write"):
            into(tmp_path / "file" / "out", self.ITEMS, refuse)

    @given(cut=st.integers(0, 6000), behind=st.integers(0, 6000))
    def test_any_cut_of_both_files_is_repaired(
        self, tmp_path_factory: pytest.TempPathFactory, cut: int, behind: int
    ) -> None:
        """A kill or power cut may leave any prefix of the journal, and less of the output than it holds."""
        folder = tmp_path_factory.mktemp("cut")
        out, journal = folder / "out", folder / "out.journal"
        with pytest.raises(KeyboardInterrupt):
            into(out, self.ITEMS, self.stopped_after(5))
        journal.write_bytes(journal.read_bytes()[:cut])
        kept = max(0, journal.read_bytes().count(b"\n") - 1)
        whole_lines = b"".join(out.read_bytes().splitlines(keepends=True)[:kept])
        out.write_bytes(whole_lines[:behind] if kept else b"")
        session = ToySession()
        into(out, self.ITEMS, by(session))
        assert [r["custom_id"] for r in read(out)] == [i.custom_id for i in self.ITEMS]
        assert len(session.requests) == 6 - kept


CHILD = """
import sys
from contextlib import nullcontext
from pathlib import Path
from localspec.batch.lines import read_items
from localspec.batch.store import Store
from localspec.batch.run import run_into_file
from localspec.batch.local import answers
from localspec.engine.settings import LoadSettings, Request
from localspec.interfaces import PairFiles
from localspec.worker import WorkerSession
items = read_items(Path(sys.argv[1]).read_bytes(), "in.jsonl")
session = WorkerSession(PairFiles("toy", Path("/dev/null")), LoadSettings(), factory="tests.kit.toy:open_toy")
print(session.pid, flush=True)
def answer(items, take):
    for result in answers(session, items, Request()):
        take(result)
        print("+", flush=True)
store = Store(Path(sys.argv[2]), items, {"pair": "toy"}, ordered=True)
run_into_file(items, store, lambda: nullcontext(answer), lambda *_: None, resume=True)
session.close()
"""


def gone(pid: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.skipif(os.name != "posix", reason="POSIX only")
def test_kill_9_at_random_points_loses_and_repeats_nothing(
    tmp_path: Path, soak: Callable[[int, int], int]
) -> None:
    """The union of the runs is complete, in order and without duplicates, and no worker survives."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [line(f"id-{i}", f"prompt {i} !slow", max_tokens=6) for i in range(soak(16, 160))]
    source.write_text("\n".join(lines))
    answered = 0
    rng = random.Random(3)
    kills = soak(2, 20)
    for run in range(kills + 1):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(source), str(out)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        worker = int(child.stdout.readline())
        if run < kills:
            for _ in range(rng.randrange(1, 6)):
                child.stdout.readline()
                answered += 1
            time.sleep(rng.random() * 0.05)
            child.send_signal(signal.SIGKILL)
            answered += child.stdout.read().count("+")
        else:
            answered += child.stdout.read().count("+")
        child.stdout.close()
        code = child.wait()
        assert code == (-signal.SIGKILL if run < kills else 0)
        assert gone(worker, within_s=2), "the worker outlived its parent"
    assert [r["custom_id"] for r in read(out)] == [json.loads(text)["custom_id"] for text in lines]
    # A result may be kept and not yet announced when the kill comes, but none is announced twice.
    assert len(lines) - kills <= answered <= len(lines)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
