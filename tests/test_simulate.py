"""The policy on recorded drafts and known hardware: never far from the best fixed length."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import simulate_policy  # noqa: E402
from simulation import recording  # noqa: E402
from simulation.profiles import CLASSIC, PROFILES, Profile  # noqa: E402
from simulation.replay import (  # noqa: E402
    Played,
    acceptance_for,
    adaptive,
    best_fixed,
    blind_trace,
    chance_trace,
    clairvoyant,
    counted,
    play,
)
from simulation.traces import SUFFIX, Recorder, Trace, TracedReply, load_trace, save, traced  # noqa: E402

from localspec.engine.policy import FixedPolicy  # noqa: E402
from tests.kit.ggufs import syn  # noqa: E402

FILES = sorted(simulate_policy.TRACES.glob(f"*{SUFFIX}"))


@cache
def recorded(name: str) -> Trace:
    return load_trace(simulate_policy.TRACES / name)


@pytest.mark.parametrize("name", [path.name for path in FILES])
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_the_policy_keeps_up_with_the_best_fixed_length(profile: Profile, name: str) -> None:
    """0.97 of the length chosen with hindsight, k = 0 included, once 200 tokens were seen."""
    trace = recorded(name)
    _, fixed = best_fixed(trace, profile)
    policy = adaptive(trace, profile)
    assert policy.rate >= simulate_policy.BAR * fixed.rate
    assert policy.rate <= clairvoyant(trace, profile) * 1.0001


@pytest.mark.parametrize(("acceptance", "free"), [(0.15, False), (0.5, False), (0.9, False), (0.6, True)])
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_confidence_that_says_nothing_costs_nothing(profile: Profile, acceptance: float, free: bool) -> None:
    """0.97 of the best fixed length also where the drafter's confidence is a random number."""
    trace = blind_trace(acceptance, free=free)
    fixed = max(play(trace, profile, FixedPolicy(k)).rate for k in (0, 1, 2, 3, 4, 5, 7, 11, 15))
    assert adaptive(trace, profile).rate >= simulate_policy.BAR * fixed


@pytest.mark.parametrize("name", [path.name for path in FILES])
def test_traces_are_long_and_small(name: str) -> None:
    trace = recorded(name)
    assert trace.tokens >= 2000 and trace.source
    assert sum(path.stat().st_size for path in FILES) < 300_000
    for reply in trace.replies:
        assert len(reply.confidences) == len(reply.right)
        assert all(n <= len(row) for n, row in zip(reply.right, reply.confidences, strict=True))


def test_the_classic_pair_needs_a_good_draft_and_survives_a_bad_one() -> None:
    """70B + 1B at plain 35 tok/s: the goal's acceptance is found; a bad draft hurts only a fixed k."""
    one = simulate_policy.classic()
    assert play(chance_trace(0.5), CLASSIC, FixedPolicy(0)).rate == pytest.approx(35, rel=0.04)
    needed = one["acceptance_for_goal"]
    assert needed is not None and 0.5 < needed < 1.0
    better, worse = (play(chance_trace(needed + d), CLASSIC, FixedPolicy(5)).rate for d in (0.03, -0.03))
    assert worse < 95 < better * 1.03
    assert one["fixed_tps"] < 35
    assert one["policy_tps"] >= 0.97 * 35


def test_a_goal_beyond_full_acceptance_is_never_reached() -> None:
    most = 6 / (CLASSIC.verify_s(6, 0) + CLASSIC.draft_s(5, free=False) + CLASSIC.overhead_s)
    assert acceptance_for(most * 1.01, 5, CLASSIC) is None
    assert acceptance_for(most, 5, CLASSIC) == pytest.approx(1.0)


def test_replay_counts_what_a_round_does() -> None:
    """Right 2 of 3 drafted: three tokens in the round, three tested, two accepted; then the text goes on."""
    learning = TracedReply(10, (0,) * 200, ((),) * 200)
    reply = TracedReply(10, (2, 0, 0, 0, 0), ((0.9,) * 3, (), (), (), ()))
    trace = Trace("by hand", "draft", False, "", (learning, reply))
    assert counted(trace) == 1
    profile = PROFILES[2]
    played = play(trace, profile, FixedPolicy(3))
    seconds = profile.verify_s(4, 10) + 3 * profile.draft_token_s
    seconds += profile.verify_s(1, 13) + profile.verify_s(1, 14) + 3 * profile.overhead_s
    assert (played.tokens, played.drafted, played.tested, played.accepted) == (5, 3, 3, 2)
    assert played.seconds == pytest.approx(seconds)
    assert Played().rate == 0.0


def test_targets_that_cannot_rewind_pay_for_drafting_only() -> None:
    hybrid = next(p for p in PROFILES if p.replays)
    assert hybrid.undo_s(0, 0, 0) == 0.0
    assert hybrid.undo_s(3, 3, 0) == hybrid.checkpoint_s
    assert hybrid.undo_s(3, 1, 0) == hybrid.checkpoint_s + hybrid.verify_s(2, 0)


def test_a_trace_survives_its_file(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.drafts, recorder.confidences = [[5, 6, 9], [], [7]], [[0.5, 0.25, 0.1], [], [0.99]]
    reply = traced([5, 6, 7], 4, recorder)
    assert reply == TracedReply(4, (2, 0, 1), ((0.5, 0.25, 0.1), (), (0.99,)))
    trace = Trace("t", "ngram", True, "by hand", (reply,))
    save(trace, tmp_path / "t.json.gz")
    assert load_trace(tmp_path / "t.json.gz") == trace


def test_a_chart_has_a_bar_for_everything_compared() -> None:
    rows = [
        {"plain_tps": 10.0, "best_fixed_tps": 12.0, "policy_tps": 13.0, "clairvoyant_tps": 15.0},
        {"plain_tps": 10.0, "best_fixed_tps": 10.0, "policy_tps": 9.9, "clairvoyant_tps": 11.0},
    ]
    svg = simulate_policy.chart(rows)
    assert svg.startswith("<svg") and svg.count("<title>") == 6 and "1 policy: 1.30" in svg


@pytest.mark.parametrize("kind", ["eagle3", "medusa", "dflash"])
def test_a_learned_drafter_of_any_pair_can_be_recorded(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--record DIR --target FILE --draft FILE`: real confidences, and what the drafter really said."""
    monkeypatch.setattr(recording, "TOKENS", 6)
    monkeypatch.setattr(recording, "WORKLOADS", recording.WORKLOADS[:1])
    (path,) = recording.record_pair(tmp_path, syn("syn-hyb-few"), syn(f"{kind}-few"), threads=1)
    assert path.name == f"{kind}-{syn('syn-hyb-few').stem}.json.gz"
    trace = load_trace(path)
    assert (trace.drafter, trace.free, trace.block) == (kind, False, kind != "eagle3")
    confidences = [c for reply in trace.replies for row in reply.confidences for c in row]
    assert len({round(c, 2) for c in confidences} - {1.0}) > 0, "the rule asks how sure it is"
    assert trace.tokens >= 3
