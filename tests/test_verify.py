"""`verify` finds the target's own text to be just that, and anything else not to be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from localspec import cli, verify
from localspec.engine import speculative
from localspec.engine.drafters.base import Draft
from localspec.engine.drafters.ngram import NgramDrafter
from localspec.engine.settings import LoadSettings, Message, Method, Request, SamplingSettings
from localspec.engine.settings import SpeculationSettings as Speculation
from localspec.errors import UsageError
from localspec.interfaces import Companion, PairFiles
from localspec.output import Output
from localspec.pairs import resolve
from localspec.session import Session, open_session
from localspec.teacher import GreedyCheck, SampledCheck
from localspec.verify import Amount, MethodReplies, Replies, Sample, Verdict
from localspec.workloads import WORKLOADS
from tests.kit.ggufs import syn
from tests.kit.scripted import INFO

SOME = Amount(tested=200, sampled_tokens=1200, reply_tokens=160, replies=30)
EXACT = LoadSettings(n_ctx=1024, kv=("f32", "f32"), draft_kv=("f32", "f32"), flash_attn="off", threads=1)


@pytest.fixture
def out() -> Output:
    return Output.decide(None, None, {}, quiet=True)


def pair(target: str, draft: str = "syn-near") -> PairFiles:
    return PairFiles(target, syn(target), (Companion("draft", syn(draft)),))


@contextmanager
def opened(files: PairFiles, load: LoadSettings) -> Iterator[Session]:
    session = open_session(files, load)
    try:
        yield session
    finally:
        session.close()


def verified(
    files: PairFiles, methods: tuple[Method, ...], out: Output, load: LoadSettings = EXACT
) -> list[Verdict]:
    with opened(files, load) as session:
        info = session.info
        collected = verify.collect(session, methods, 4, SOME, out)
    return verify.examine(collected, files.target, info.effective, SOME, out)


@pytest.mark.parametrize(
    ("target", "load"),
    [("syn", EXACT), ("syn-q8_0", replace(EXACT, kv=("f16", "f16"), flash_attn="auto"))],
    ids=["exact", "q8_0"],
)
def test_what_the_loop_emits_is_the_targets_own_text(target: str, load: LoadSettings, out: Output) -> None:
    """A draft model that is right and wrong, judged by match and by rejection, and copies from the text."""
    for verdict in verified(pair(target), ("draft", "ngram"), out, load):
        assert verdict.passed, (verdict.replies.method, str(verdict.greedy), str(verdict.sampled))
        for part in (verdict.replies.greedy, verdict.replies.sampled):
            assert part.tested >= SOME.tested and 0 < part.accepted < part.tested
    assert verdict.greedy.worst == 0.0 or target != "syn"


def believe(p: Any, x: int, q: Any, u: float, v: float) -> tuple[bool, int]:
    return True, x


def test_a_loop_that_believes_its_drafter_fails(out: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: drafted tokens are emitted without being judged, greedy and sampled."""
    judged = speculative.Loop._verdict

    def verdict(self: Any, row: Any, proposed: int | None, *rest: Any) -> tuple[bool, int]:
        return (True, proposed) if proposed is not None else judged(self, row, proposed, *rest)

    monkeypatch.setattr(speculative.Loop, "_verdict", verdict)
    (found,) = verified(pair("syn", "syn-b"), ("draft",), out)
    assert not found.missing, "the evidence is there"
    assert not found.greedy.passed and not found.sampled.passed and not found.passed


def test_a_biased_verdict_fails_the_sampled_check_only(out: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutation: rejection that accepts every draw, which greedy decoding never asks."""
    monkeypatch.setattr(speculative, "judge", believe)
    (found,) = verified(pair("syn", "syn-b"), ("draft",), out)
    assert found.greedy.passed and not found.sampled.passed and not found.passed


def test_a_drafter_that_says_nothing_proves_nothing(out: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NgramDrafter, "propose", lambda *_: Draft([], []))
    few = replace(SOME, replies=3, sampled_tokens=100)
    with opened(pair("syn"), EXACT) as session:
        collected = verify.collect(session, ["ngram"], 4, few, out)
        info = session.info
    (found,) = verify.examine(collected, syn("syn"), info.effective, few, out)
    assert found.greedy.passed and found.sampled.passed, "the text is the target's"
    assert not found.passed
    assert found.missing == (
        "greedy: only 0 drafts were judged in 3 replies, 200 needed",
        "sampled: only 0 drafts were judged in 3 replies, 200 needed",
    )
    report = verify.report_of(info, [found], quick=False)
    assert report["passed"] is False and report["methods"][0]["passed"] is False
    assert "no proof, greedy: only 0 drafts were judged" in verify.human_report(report, [found])


def test_no_method_at_all_is_no_pass() -> None:
    assert verify.report_of(INFO, [], quick=False)["passed"] is False


def test_a_reply_without_a_token_is_no_pass() -> None:
    part = Replies([Sample((1,), (), 0)], tested=1000)
    nothing = Verdict(MethodReplies("ngram", 4, part, part), GreedyCheck(()), SampledCheck(()), ())
    assert not nothing.passed


def test_enough_tokens_are_needed_as_well_as_enough_drafts() -> None:
    part = Replies([Sample((1,), (2,) * 50, 0)], tested=SOME.tested)
    assert part.lacks(SOME, 50) is None
    assert part.lacks(SOME, 51) == "only 50 tokens were emitted, 51 needed"


def test_later_prompts_are_new_ones() -> None:
    """More prompts until there is evidence: a greedy reply to the same prompt would be the same text."""
    some = [prompt for prompt, _ in zip(verify.prompts(), range(40), strict=False)]
    assert len(set(some)) == 40
    assert {w.prompts[0] for w in WORKLOADS} == set(some[: len(WORKLOADS)])


def test_only_methods_that_draft_can_be_verified() -> None:
    info = replace(INFO, methods=("auto", "off", "ngram", "draft"))
    assert verify.methods_of(info, "auto") == ["ngram", "draft"]
    assert verify.methods_of(info, "draft") == ["draft"]
    with pytest.raises(UsageError, match="drafts nothing"):
        verify.methods_of(info, "off")
    with pytest.raises(UsageError, match="cannot draft with `eagle3`"):
        verify.methods_of(info, "eagle3")


def test_the_command_reports_each_method(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "QUICK", replace(SOME, tested=20, sampled_tokens=100))
    argv = ["verify", "--target", str(syn("syn")), "--draft", str(syn("syn-near")), "--quick", "--quiet"]
    argv += ["--ctx", "1024", "--threads", "1"]
    assert cli.run([*argv, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["quick"] is True and report["passed"] is True
    assert [m["method"] for m in report["methods"]] == ["ngram", "draft"]
    for method in report["methods"]:
        assert method["passed"] and method["k"] == verify.K
        assert method["drafted"] >= method["tested"] >= 2 * 20 and method["accepted"] > 0
        assert method["evidence"]["greedy"]["worst_regret"] <= 0.5
        assert method["evidence"]["sampled"]["ks_p"] > 0.001
    monkeypatch.setattr(speculative, "judge", believe)
    assert cli.run([*argv, "--method", "draft", "--draft", str(syn("syn-b"))]) == 1
    text = capsys.readouterr().out
    assert "BROKEN" in text and text.rstrip().endswith("FAILED: draft")
    assert "quick: fewer tokens than a proof needs" in text


@pytest.mark.real_model
def test_real_weights_past_the_first_cells(out: Output) -> None:
    """SmolLM2, greedy, copied drafts, three replies that pass 256 cells: quantised kernels change with the
    number of rows, so texts may differ from plain decoding, but no token may be a worse choice."""
    files = resolve("demo")
    replies = Replies()
    with opened(files, LoadSettings(n_ctx=1024, threads=1)) as session:
        load = session.info.effective
        for prompt in next(w for w in WORKLOADS if w.name == "edit").prompts:
            request = Request(
                messages=(Message("user", prompt),),
                sampling=SamplingSettings(temperature=0.0),
                speculation=Speculation(method="ngram", k=4),
                max_tokens=160,
                ignore_eog=True,
            )
            ids = session.prompt_ids(request)
            done = verify.run(session, request)
            replies.samples.append(Sample(tuple(ids), tuple(done.ids), 0))
            replies.tested += done.counts.tested
    assert all(len(s.prompt) + len(s.reply) > 256 for s in replies.samples), [
        len(s.prompt) for s in replies.samples
    ]
    assert replies.tested >= 200
    collected = [MethodReplies("ngram", 4, replies, Replies())]
    (verdict,) = verify.examine(collected, files.target, load, verify.FULL, out)
    assert verdict.greedy.passed, str(verdict.greedy)
    assert not verdict.passed, "nothing was sampled"
