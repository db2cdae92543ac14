"""Known faults whose right behaviour is no single module's: rounds of several sequences, faces, prefill."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from localspec.api.assemble import Choice
from localspec.api.bodies import CompletionBody
from localspec.api.requests import Ground, completion_requests
from localspec.batch.lines import read_items
from localspec.batch.local import answers
from localspec.engine.events import Done, Prefill, Round, Token
from localspec.engine.settings import Request, SamplingSettings, SpeculationSettings
from localspec.interfaces import Companion, PairFiles
from localspec.output import Output
from localspec.plain import answer
from localspec.session import open_session
from localspec.worker import WorkerSession
from tests.engine.harness import Bench, plain, random_prompt
from tests.engine.learned import EXACT
from tests.kit.ggufs import syn

PAIR = PairFiles("pair", syn("syn"), (Companion("draft", syn("syn-near")),))
PROMPT = "Hello world."


def asked(**options: Any) -> Request:
    return Request(
        prompt=PROMPT, sampling=SamplingSettings(temperature=0.0), max_tokens=32, ignore_eog=True,
        **{"speculation": SpeculationSettings(method="draft", k=3)} | options,
    )  # fmt: skip


def test_the_prompt_is_read_alike_and_the_first_row_is_the_same() -> None:
    """Known fault 11: one prefill split in both modes, so the first logits agree within 1e-5."""
    prompt = random_prompt(5, 90)
    first: list[Token] = []
    prefills: list[list[Prefill]] = []
    for k in (0, 4):
        with Bench(n_batch=32).with_draft_model("syn-near") as bench:
            result = bench.reply(prompt, k=k, max_tokens=12, logprobs=8)
        first.append(next(e for e in result.events if isinstance(e, Token)))
        prefills.append(result.prefills)
    assert prefills[0] == prefills[1] and len(prefills[0]) > 3
    assert [id for id, _ in first[0].top] == [id for id, _ in first[1].top]
    for (_, a), (_, b) in zip(first[0].top, first[1].top, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


def test_rows_of_one_sequence_are_judged_whatever_the_micro_batch() -> None:
    """Known fault 13: four replies at once, more rows than a micro-batch holds, and every draft is right."""
    load = replace(EXACT, slots=4, k_max=3, n_ubatch=5, n_batch=64)
    itself = PairFiles("self", syn("syn"), (Companion("draft", syn("syn")),))
    session = open_session(itself, load)
    texts: dict[int, list[int]] = {}
    drafts: dict[int, list[Round]] = {}
    prompts = [f"{letter} tale" for letter in "abcd"]

    def run(i: int) -> None:
        events = list(session.reply(replace(asked(), prompt=prompts[i], cache_key=str(i))))
        texts[i] = [e.id for e in events if isinstance(e, Token)]
        drafts[i] = [e for e in events if isinstance(e, Round) and e.method == "draft"]

    try:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i, prompt in enumerate(prompts):
            ids = session.prompt_ids(replace(asked(), prompt=prompt))
            assert tuple(texts[i]) == plain("syn", tuple(ids), 32), prompt
        found = [r for rounds in drafts.values() for r in rounds]
        assert found and all(r.accepted == r.tested == r.drafted for r in found)
    finally:
        session.close()


def counts(done: Done) -> tuple[int, int, int]:
    return done.summary.drafted, done.summary.tested, done.summary.accepted


def test_every_face_drafts_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """Known fault 75: screen (worker), command line, batch and server drive one loop alike."""
    with WorkerSession(PAIR, EXACT) as worker:
        done = list(worker.reply(asked()))[-1]
        assert isinstance(done, Done)
        screen = counts(done)
        body = {"prompt": PROMPT, "max_tokens": 32, "temperature": 0, "ignore_eos": True,
                "speculation": {"method": "draft", "k": 3}}  # fmt: skip
        line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
        (item,) = read_items(json.dumps(line).encode(), "test", "jsonl")
        (result,) = answers(worker, [item], Request())
        report = result.body["choices"][0]["speculation"]
        batch = (report["drafted"], report["tested"], report["accepted"])
        (request,) = completion_requests(CompletionBody.model_validate(body), Ground(worker.info, Request()))
        choice = Choice(request, worker.info)
        choice.absorb(worker.reply(request))
        server = (choice.report.drafted, choice.report.tested, choice.report.accepted)
    session = open_session(PAIR, EXACT)
    _, done = answer(session, asked(), Output.decide(None, None, {}, quiet=True))
    session.close()
    assert screen == batch == server == counts(done)
    assert screen[0] > 20
