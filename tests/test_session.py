"""A session: files in, requests answered, caches reused between turns, every refusal one sentence."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from localspec.engine.drafters.base import common_prefix
from localspec.engine.events import Done, Event, Loading, Notice, Prefill, Round, Text, Token
from localspec.engine.settings import LoadSettings, Message, Request, SamplingSettings, SpeculationSettings
from localspec.engine.stats import Stats
from localspec.errors import EngineError, LocalspecError, ModelFileError, PromptTooLongError, UsageError
from localspec.interfaces import Companion, PairFiles
from localspec.session import Session, open_session
from tests.kit.ggufs import syn

EXACT = LoadSettings(
    n_ctx=256, threads=1, kv=("f32", "f32"), draft_kv=("f32", "f32"), flash_attn="off", k_max=8
)
GREEDY = SamplingSettings(temperature=0.0)
OFF = SpeculationSettings(method="off")


def pair(target: str = "syn", *companions: Companion) -> PairFiles:
    return PairFiles(target, syn(target), companions)


def opened(target: str = "syn", *companions: Companion, load: LoadSettings = EXACT) -> Session:
    return open_session(pair(target, *companions), load)


DRAFT = Companion("draft", syn("syn-near"))


@pytest.fixture
def session() -> Iterator[Session]:
    each = opened("syn", DRAFT)
    yield each
    each.close()


def request(text: str = "Hello world.", **options: object) -> Request:
    values = {"prompt": text, "sampling": GREEDY, "max_tokens": 24, "ignore_eog": True, **options}
    return Request(**values)  # type: ignore[arg-type]


def events_of(session: Session, asked: Request) -> list[Event]:
    return list(session.reply(asked))


def text_of(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, Token | Text))


def ids_of(events: list[Event]) -> list[int]:
    return [e.id for e in events if isinstance(e, Token)]


def done(events: list[Event]) -> Done:
    assert isinstance(events[-1], Done)
    return events[-1]


def counted(events: list[Event]) -> float | None:
    """Tokens per round as one who reads the stream counts them."""
    stats = Stats()
    for event in events:
        if isinstance(event, Round):
            stats.observe(event)
    return stats.summary().tokens_per_round


def test_the_events_of_a_reply_come_in_order(session: Session) -> None:
    events = events_of(session, request())
    kinds = [type(e).__name__ for e in events]
    assert kinds[0] == "Prefill" and kinds[-1] == "Done" and kinds.count("Done") == 1
    first_token = kinds.index("Token")
    assert "Prefill" not in kinds[first_token:]
    committed = 0
    for event in events:
        if isinstance(event, Token):
            committed += 1
        elif isinstance(event, Round):
            committed -= event.committed
            assert committed == 0, "a round's tokens come before it"
            assert event.rows == event.drafted + 1 and event.accepted <= event.tested <= event.drafted
    summary = done(events).summary
    assert summary.completion_tokens == 24 == len(ids_of(events))
    assert summary.first_token_s is not None and summary.decode_s >= summary.verify_s > 0


@pytest.mark.parametrize("method", ["auto", "ngram", "draft"])
def test_every_method_gives_the_plain_text(session: Session, method: str) -> None:
    plain = events_of(session, request(speculation=OFF))
    for k in (None, 1, 4, 8):
        spec = SpeculationSettings(method=method, k=k)  # type: ignore[arg-type]
        events = events_of(session, request(speculation=spec))
        assert text_of(events) == text_of(plain)
        assert ids_of(events) == ids_of(plain)


def test_what_is_off_is_not_called_paused(session: Session) -> None:
    events = events_of(session, request(max_tokens=80, speculation=OFF))
    assert not [e for e in events if isinstance(e, Notice)]
    assert done(events).summary.paused_at_token is None


def test_k_zero_is_plain_decoding(session: Session) -> None:
    events = events_of(session, request(speculation=SpeculationSettings(method="draft", k=0)))
    assert done(events).summary.drafted == 0
    assert all(e.rows == 1 for e in events if isinstance(e, Round))


def test_the_same_prompt_twice_reads_only_its_last_token() -> None:
    """Known fault 5: nothing is ever decoded with zero rows."""
    with_draft = opened("syn", DRAFT)
    first = events_of(with_draft, request())
    second = events_of(with_draft, request())
    with_draft.close()
    assert ids_of(first) == ids_of(second)
    summary = done(second).summary
    assert summary.reused_tokens == summary.prompt_tokens - 1


CHAT = (Message("user", "Hello there."),)


@pytest.mark.parametrize("edited", [False, True], ids=["kept", "edited"])
@pytest.mark.parametrize(
    "target",
    [
        "syn", "syn-think", "syn-swa", "syn-hyb", "syn-hyb-nosnap", "syn-rec", "syn+draft:syn-near",
        "syn+eagle3:eagle3", "syn-hyb+draft:syn-hyb", "syn-hyb-few+eagle3:eagle3-few",
    ],
)  # fmt: skip
def test_a_second_turn_reads_only_what_is_new(target: str, edited: bool) -> None:
    """The reply's own ids are kept, so reading goes on where the prompt differs from what is cached.

    States that cannot drop cells go on at the end of the user's turn instead.
    """
    target, _, companion = target.partition("+")
    kind, _, name = companion.partition(":")
    each = opened(target, *([Companion(kind, syn(name))] if name else []))  # type: ignore[arg-type]
    ask = Request(messages=CHAT, sampling=GREEDY, max_tokens=20, ignore_eog=True)
    if kind:  # always, or what a head has made of the history would depend on measured times
        ask = dataclasses.replace(ask, speculation=SpeculationSettings(method=kind, k=3))  # type: ignore[arg-type]
    before = each._prompter.encode(ask)
    first = events_of(each, ask)
    answer = "Something else." if edited else text_of(first)
    second = dataclasses.replace(
        ask, messages=(*CHAT, Message("assistant", answer), Message("user", "And again?"))
    )
    shared = common_prefix(
        np.array([*before.ids, *ids_of(first)][:-1]), np.array(each._prompter.encode(second).ids)
    )
    whole = len(before.ids) + 20 - 1
    rewinds = target in ("syn", "syn-think", "syn-swa") or shared == whole
    summary = done(events_of(each, second)).summary
    assert 0 < before.n_stable < len(before.ids)
    # An EAGLE-3 head's cell holds the token after it, so the last one before a difference is made again.
    again = kind == "eagle3" and shared != whole
    assert summary.reused_tokens == (shared - again if rewinds else before.n_stable)
    assert (shared == whole) == (not edited and target != "syn-think")
    each.close()


def test_conversations_keep_their_caches_side_by_side() -> None:
    """Slots: interleaved conversations go on where each of them was, with the text they have alone."""
    load = dataclasses.replace(EXACT, slots=2)
    each = opened("syn", DRAFT, load=load)
    assert each.info.n_ctx == EXACT.n_ctx
    turns = {key: (Message("user", f"Tell me of {key}."),) for key in ("apples", "pears")}
    for _ in range(3):
        for key, messages in list(turns.items()):
            ask = Request(messages=messages, sampling=GREEDY, max_tokens=8, ignore_eog=True, cache_key=key)
            events = events_of(each, ask)
            alone = opened("syn", DRAFT)
            assert text_of(events_of(alone, ask)) == text_of(events) or len(messages) > 1
            alone.close()
            summary = done(events).summary
            if len(messages) > 1:
                assert summary.reused_tokens > 0.5 * summary.prompt_tokens, "the other one took the cache"
            turns[key] = (*messages, Message("assistant", text_of(events)), Message("user", "More."))
    third = events_of(each, dataclasses.replace(ask, messages=CHAT, cache_key="plums"))
    assert done(third).summary.reused_tokens < done(third).summary.prompt_tokens
    each.close()
    with pytest.raises(UsageError, match="slots"):
        opened(load=dataclasses.replace(EXACT, slots=0))


def test_an_unnamed_prompt_goes_on_with_what_it_continues() -> None:
    each = opened(load=dataclasses.replace(EXACT, slots=2))
    first = ids_of(events_of(each, request("first text", max_tokens=6)))
    events_of(each, request("another text", max_tokens=6))
    text = "first text" + b"".join(each._prompter._template.encoder.pieces(first)).decode(errors="replace")
    again = events_of(each, request(text, max_tokens=6))
    assert done(again).summary.reused_tokens > 0
    each.close()


def test_stop_strings_end_the_reply_and_the_counters(session: Session) -> None:
    """Known faults 35, 37: what comes after a stop string counts nowhere."""
    whole = text_of(events_of(session, request(speculation=OFF)))
    stop = whole[10:13]
    expected = whole[: whole.index(stop)]
    for speculation in (OFF, SpeculationSettings(method="draft", k=8)):
        events = events_of(session, request(stop=(stop,), speculation=speculation))
        assert text_of(events) == expected
        assert done(events).reason == "stop"
        assert done(events).summary.completion_tokens == len(ids_of(events))


def test_end_of_generation_ends_the_reply() -> None:
    """Known faults 34, 46: after each accepted token, and no control text is shown."""
    each = opened("syn-raw", Companion("draft", syn("syn-raw")))
    reasons = set()
    for seed in range(12):
        sampling = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
        asked = Request(prompt="abc", sampling=sampling, max_tokens=200,
                        speculation=SpeculationSettings(method="draft", k=6))  # fmt: skip
        plain = Request(prompt="abc", sampling=sampling, max_tokens=200, speculation=OFF)
        events = events_of(each, asked)
        assert counted(events) == done(events).summary.tokens_per_round
        assert text_of(events) == text_of(events_of(each, plain))
        assert "<|" not in text_of(events)
        reasons.add(done(events).reason)
        assert (done(events).reason == "stop") == done(events).summary.ended
    assert reasons == {"stop", "length"}
    each.close()


def test_log_probabilities_come_from_the_judging_row(session: Session) -> None:
    """Known faults 42, 50: equal to plain decoding's, accepted drafts included, up to the full context."""
    asked = request("Hi", max_tokens=None, logprobs=3)
    plain = events_of(session, dataclasses.replace(asked, speculation=OFF))
    spec = events_of(
        session, dataclasses.replace(asked, speculation=SpeculationSettings(method="draft", k=8))
    )
    ours = [e for e in spec if isinstance(e, Token)]
    theirs = [e for e in plain if isinstance(e, Token)]
    assert done(spec).reason == "context" and len(ours) == len(theirs)
    assert any(token.from_draft for token in ours)
    for a, b in zip(ours, theirs, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-3)
        assert [i for i, _ in a.top] == [i for i, _ in b.top] or a.top[0][1] - a.top[-1][1] < 1e-2
        assert a.piece == b.piece and len(a.top_pieces) == 3
        assert a.logprob is not None and a.logprob <= 0


def test_grammar_and_schema_hold_with_drafts() -> None:
    """Known faults 38, 39: every row is judged under the grammar after the drafts before it."""
    each = opened("syn", Companion("draft", syn("syn-near")))
    sampling = SamplingSettings(
        temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, grammar='root ::= ("ab" | "c")+'
    )
    for seed in range(6):
        with_seed = dataclasses.replace(sampling, seed=seed)
        events = events_of(each, Request(prompt="x", sampling=with_seed, max_tokens=20,
                                         speculation=SpeculationSettings(method="draft", k=5)))  # fmt: skip
        rest = text_of(events).replace("ab", "").replace("c", "")
        assert rest in ("", "a"), rest
    with pytest.raises(UsageError, match="grammar"):
        each.reply(request(sampling=SamplingSettings(grammar="root ::= missing")))
    each.close()


def test_cancel_from_another_thread_ends_the_reply() -> None:
    each = opened("syn", DRAFT, load=dataclasses.replace(EXACT, n_ctx=4096))
    reply = each.reply(request("Hi", max_tokens=None))
    timer = threading.Timer(0.1, reply.cancel)
    timer.start()
    events = list(reply)
    timer.join()
    assert done(events).reason == "cancelled"
    assert 0 < len(ids_of(events)) < 4000
    again = events_of(each, request("Hi"))
    assert done(again).reason == "length"
    each.close()


def test_cancel_during_the_prompt() -> None:
    each = opened("syn", load=dataclasses.replace(EXACT, n_ctx=8192))
    reply = each.reply(request("word " * 1500, max_tokens=5))
    seen: list[Event] = []
    for event in reply:
        seen.append(event)
        if isinstance(event, Prefill) and event.done:
            reply.cancel()
    assert done(seen).reason == "cancelled"
    assert not ids_of(seen)
    assert done(events_of(each, request())).reason == "length"
    each.close()


def test_closing_a_reply_frees_the_session(session: Session) -> None:
    reply = session.reply(request())
    next(iter(reply))
    with pytest.raises(EngineError, match="already producing"):
        session.reply(request())
    reply.close()
    assert done(events_of(session, request())).reason == "length"


def test_a_draft_that_does_not_belong_leaves_the_pair_usable() -> None:
    """Known faults 17, 82, 105: the reason is in the session's facts and in the reply, never silent."""
    each = opened("syn", Companion("draft", syn("syn-8")))
    assert each.info.off_reason is not None and "vocabular" in each.info.off_reason
    assert each.info.methods == ("auto", "off", "ngram")
    events = events_of(each, request())
    assert any(isinstance(e, Notice) and e.kind == "off" for e in events)
    with pytest.raises(UsageError, match="method `draft` is not available"):
        each.reply(request(speculation=SpeculationSettings(method="draft")))
    with pytest.raises(EngineError, match="not available"):
        each.reply(request(speculation=SpeculationSettings(method="draft", require=True)))
    each.close()


def test_settings_that_cannot_hold_a_draft_are_raised_aloud() -> None:
    """Known fault 3: outputs and batches hold k + 1 rows, raised with a notice where too little was asked."""
    told: list[Event] = []
    each = open_session(pair(), dataclasses.replace(EXACT, n_batch=4, n_ubatch=2), told.append)
    raised = [e.reason for e in told if isinstance(e, Notice) and e.kind == "raised"]
    assert len(raised) == 2 and "n_batch 4 raised to 10" in raised[0]
    assert each.info.effective.n_batch == each.info.effective.n_ubatch == 10
    assert any(isinstance(e, Loading) for e in told)
    with pytest.raises(UsageError, match="at most 8"):
        each.reply(request(speculation=SpeculationSettings(method="ngram", k=9)))
    each.close()


def test_what_a_request_may_not_be(session: Session) -> None:
    with pytest.raises(PromptTooLongError, match=r"\d+ tokens, the context 256"):
        list(session.reply(request("word " * 400)))
    with pytest.raises(UsageError, match="not both"):
        session.reply(Request(prompt="a", messages=CHAT))
    with pytest.raises(UsageError, match="at least one message"):
        session.reply(Request())
    with pytest.raises(UsageError, match="logit bias for token 99999"):
        session.reply(request(sampling=SamplingSettings(logit_bias=((99999, 1.0),))))
    assert done(events_of(session, request())).reason == "length", "a refused request leaves nothing behind"


def test_a_banned_token_is_never_emitted(session: Session) -> None:
    plain = ids_of(events_of(session, request(speculation=OFF)))
    banned = dataclasses.replace(GREEDY, logit_bias=((plain[0], float("-inf")),))
    for speculation in (OFF, SpeculationSettings(method="draft", k=4)):
        assert plain[0] not in ids_of(events_of(session, request(sampling=banned, speculation=speculation)))


def test_bad_files_are_one_sentence(tmp_path: Path) -> None:
    missing = tmp_path / "missing.gguf"
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(syn("syn").read_bytes()[:-5000])
    for path, words in ((missing, "does not exist"), (text, "not a GGUF file"), (cut, "cut.gguf")):
        with pytest.raises(ModelFileError, match=words) as caught:
            open_session(PairFiles("x", path), EXACT)
        assert "\n" not in caught.value.message
    each = open_session(PairFiles("x", syn("syn"), (Companion("draft", cut),)), EXACT)
    assert each.info.off_reason is not None and "cut.gguf" in each.info.off_reason
    each.close()


def test_a_context_larger_than_memory_is_one_sentence() -> None:
    with pytest.raises(LocalspecError) as caught:
        opened(load=dataclasses.replace(EXACT, n_ctx=2_000_000_000))
    assert "2000000000" in caught.value.message and caught.value.hint


def test_closing_is_idempotent_and_final(session: Session) -> None:
    session.close()
    session.close()
    with pytest.raises(EngineError, match="closed"):
        session.reply(request())


def test_memory_is_flat_over_loads(request: pytest.FixtureRequest) -> None:
    """Known fault 62: loading and closing again and again keeps nothing."""
    loads = 60 if request.config.getoption("--soak") else 20

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for _ in range(5):
        opened("syn", DRAFT).close()
    before = resident()
    for _ in range(loads):
        opened("syn", DRAFT).close()
    assert resident() - before < 30 * 2**20


def test_a_cancelled_load_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    from localspec.engine.backend.cancel import CancelFlag
    from localspec.session.loading import load_pair

    flag = CancelFlag()
    flag.set()
    started = time.perf_counter()
    with pytest.raises(EngineError, match="cancelled"):
        load_pair(pair(), EXACT, lambda _: None, flag)
    assert time.perf_counter() - started < 2.0


def test_what_a_rule_learned_holds_for_its_truncation_only(session: Session) -> None:
    """Whether drafts are matched or rejected depends on what truncation leaves of both models."""
    base = SamplingSettings(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    others = [
        dataclasses.replace(base, min_p=0.2),
        dataclasses.replace(base, typical_p=0.5),
        dataclasses.replace(base, top_k=5),
    ]
    for sampling in (base, *others, base):
        events_of(session, request(sampling=sampling, max_tokens=4))
    (place,) = session._places.values()
    assert sorted(rule.requests for rule in place.rules.values()) == [1, 1, 1, 2]
