"""The benchmark: interleaved, from empty caches, never a single run; report, chart, tuning, references."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from localspec import cli
from localspec.bench import Plan, run_bench
from localspec.bench.chart import Bar, bar_chart
from localspec.bench.contestants import Answer, Speculating, contestants
from localspec.bench.race import Lane, race
from localspec.bench.reference import ReferenceCommand, ReferenceServer, counters, reference
from localspec.bench.report import chart_of, human_report, report_of
from localspec.bench.tune import Tuned, candidates, flags, keep, tune
from localspec.engine.events import Done, Event, Notice, Prefill, Round, Token
from localspec.engine.settings import LoadSettings, Request, SamplingSettings, SpeculationSettings
from localspec.errors import EngineError, LocalspecError, OutsideError, UsageError
from localspec.interfaces import Companion, PairFiles
from localspec.measuring import Spread
from localspec.output import Output
from localspec.planning.tuned import tuned_of_load
from localspec.session import open_session
from localspec.workloads import WORKLOADS, Workload
from tests.kit.ggufs import syn
from tests.kit.scripted import INFO, ScriptedReply, ScriptedSession, summary

FILES = PairFiles("syn", syn("syn"))
TWO = Workload("two", ("a", "b"))
GREEDY = Request(sampling=SamplingSettings(temperature=0.0))


@dataclass
class Runner:
    """Answers in given times; `log` is shared, so that the order of all is seen."""

    name: str
    rates: list[float]
    log: list[str]
    k: int | str = 4
    asked: int = 0

    def answer(self, prompt: str, max_tokens: int) -> Answer:
        self.log.append(f"{self.name} {prompt} {max_tokens}")
        rate = self.rates[min(max(self.asked - 1, 0), len(self.rates) - 1)]
        self.asked += 1
        return Answer(max_tokens, max_tokens / rate, summary(max_tokens), max_tokens // 4)


def test_runs_are_interleaved_in_alternating_order_after_a_warm_up() -> None:
    log: list[str] = []
    result = race(TWO, [Runner("plain", [10], log), Runner("ngram", [20], log)], 3, 40)
    assert log[:2] == ["plain a 16", "ngram a 16"], "thrown away"
    order = [entry.split()[0] for entry in log[2:] if entry.split()[1] == "a"]
    assert order == ["plain", "ngram", "ngram", "plain", "plain", "ngram"]
    assert [len(lane.repeats) for lane in result.lanes] == [3, 3]
    assert all(len(answers) == 2 for lane in result.lanes for answers in lane.repeats)


def test_speed_ups_are_paired_within_a_repeat() -> None:
    """The machine halves its speed in the second repeat: the rates spread, their ratio does not."""
    log: list[str] = []
    plain = Runner("plain", [10, 10, 5, 5, 10, 10], log)
    fast = Runner("ngram", [20, 20, 10, 10, 20, 20], log)
    result = race(TWO, [plain, fast], 3, 40)
    assert result.plain.tps == Spread(10, 5, 10)
    assert result.lanes[1].speedup(result.plain) == Spread(2, 2, 2)


def test_a_contestant_that_emits_nothing_is_an_error() -> None:
    with pytest.raises(EngineError, match="`ngram` emitted nothing"):
        Lane(Runner("ngram", [1], []), [[Answer(0, 0.0)]]).rates()


def test_the_report_has_every_figure_with_its_spread() -> None:
    log: list[str] = []
    result = race(TWO, [Runner("plain", [10], log), Runner("ngram", [20, 30], log)], 3, 40)
    report = report_of(INFO, [result], 3)
    (workload,) = report["workloads"]
    assert workload["name"] == "two"
    assert workload["plain"] == {"tps_median": 10.0, "tps_range": [10.0, 10.0]}
    (method,) = workload["methods"]
    assert set(method) == {
        "method", "k", "tps_median", "tps_range", "speedup_median", "speedup_range", "drafted", "tested",
        "accepted", "tokens_per_round", "paused_share", "resets", "given_up",
    }  # fmt: skip
    assert (method["method"], method["k"], method["paused_share"]) == ("ngram", 4, 0.25)
    assert method["speedup_range"][0] <= method["speedup_median"] <= method["speedup_range"][1]
    text = human_report(report)
    assert "medians of 3 interleaved repeats" in text and "25 %" in text
    assert ElementTree.fromstring(chart_of(report)).tag.endswith("svg")


def test_broken_drafters_are_named_below_the_table() -> None:
    spoiled = replace(summary(40), resets=("draft",), given_up=("draft",))
    lanes = [Lane(Runner(name, [1], []), [[Answer(10, 1.0, spoiled)]] * 3) for name in ("plain", "auto")]
    result = replace(race(TWO, [Runner("plain", [1], [])], 0, 16), lanes=tuple(lanes))
    report = report_of(INFO, [result], 3)
    assert report["workloads"][0]["methods"][0]["given_up"] == ["draft"]
    assert "two, auto: the `draft` drafter looked broken and was switched off" in human_report(report)


def test_a_reference_has_rates_and_no_counts() -> None:
    lane = Lane(Runner("reference", [1], []), [[Answer(10, 2.0)]] * 3)
    plain = Lane(Runner("plain", [1], []), [[Answer(10, 1.0)]] * 3)
    result = replace(race(TWO, [Runner("plain", [1], [])], 0, 16), lanes=(plain, lane))
    (method,) = report_of(INFO, [result], 3)["workloads"][0]["methods"]
    assert method["speedup_median"] == 0.5
    assert method["drafted"] is None and method["paused_share"] is None
    assert "–" in human_report(report_of(INFO, [result], 3))


def test_caches_are_displaced_before_each_answer_and_pauses_are_counted() -> None:
    done = Done("length", summary(4, rounds=2))
    script: list[Event] = [Prefill(1, 1, 0), Token(1, "a", "content", False, "off", 0),
                           Round("off", 0, 0, 0, 1, 2, 0.0, 0.5, 0.0, 1), Notice("paused", "slower"),
                           Token(2, "b", "content", False, "off", 1),
                           Round("off", 0, 0, 0, 1, 3, 0.0, 0.5, 0.0, 1), done]  # fmt: skip
    session = ScriptedSession([[done], script])
    answer = Speculating(session, GREEDY).answer("hello", 99)
    assert (answer.tokens, answer.paused_tokens) == (2, 1)
    first, second = session.requests
    assert (first.prompt, first.max_tokens, first.messages) == (".", 1, ())
    assert (second.messages[0].content, second.max_tokens) == ("hello", 99)


def test_every_method_of_the_pair_is_raced_or_the_asked_one() -> None:
    session = ScriptedSession([], info=replace(INFO, methods=("auto", "off", "ngram", "draft")))
    assert [(c.name, c.k) for c in contestants(session, GREEDY)] == [
        ("plain", 0), ("auto", "auto"), ("ngram", "auto"), ("draft", "auto"),
    ]  # fmt: skip
    asked = replace(GREEDY, speculation=SpeculationSettings(method="draft", k=3))
    assert [(c.name, c.k) for c in contestants(session, asked)] == [("plain", 0), ("draft", 3)]


def test_too_few_repeats_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output.decide(None, None, {}, quiet=True)
    with pytest.raises(UsageError, match="2 repeats show no spread"):
        run_bench(ScriptedSession([]), FILES, Plan(GREEDY, repeats=2), out)


def test_a_loaded_pair_starts_every_answer_from_empty_caches() -> None:
    files = PairFiles("syn", syn("syn"), (Companion("draft", syn("syn-near")),))
    session = open_session(files, LoadSettings(n_ctx=1024, threads=1))
    try:
        for racer in contestants(session, GREEDY):
            for _ in range(2):
                counts = racer.answer(WORKLOADS[0].prompts[0], 24).summary
                assert counts is not None and counts.reused_tokens <= 1, racer.name
    finally:
        session.close()


def test_the_command_measures_a_pair(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    argv = ["bench", "--target", str(syn("syn")), "--draft", str(syn("syn-near")), "--ctx", "1024",
            "--threads", "1", "--max-tokens", "16", "--workload", "edit", "--workload", "chat", "--quiet",
            "--json", "--svg", str(tmp_path / "b.svg")]  # fmt: skip
    assert cli.run(argv) == 0
    report = json.loads(capsys.readouterr().out)
    assert [w["name"] for w in report["workloads"]] == ["edit", "chat"]
    for workload in report["workloads"]:
        assert [m["method"] for m in workload["methods"]] == ["auto", "ngram", "draft"]
        assert workload["plain"]["tps_range"][0] <= workload["plain"]["tps_median"]
    assert "speed against plain decoding" in (tmp_path / "b.svg").read_text()
    assert cli.run([*argv, "--repeats", "1"]) == 2
    assert cli.run([*argv, "--svg", str(tmp_path / "no" / "b.svg")]) == 1
    assert "cannot write" in capsys.readouterr().err


class TestTune:
    def test_candidates_are_adaptive_and_fixed(self) -> None:
        info = replace(INFO, methods=("auto", "off", "ngram", "draft"))
        every = candidates(info, "auto")
        assert SpeculationSettings(tuned=False) in every, "no winner starts from an older one"
        assert SpeculationSettings(method="draft", k=3, p_min=0.4, tuned=False) in every
        assert all(c.k is None or c.k <= info.effective.k_max for c in every)
        assert {c.method for c in candidates(info, "ngram")} == {"auto", "ngram"}
        assert len(set(every)) == len(every)

    def session(self, rate: dict[str, float]) -> Any:
        """Decodes at a rate by method; k = 3 is 1.5 times as fast as any other length."""

        class Session(ScriptedSession):
            def reply(self, request: Request) -> ScriptedReply:
                asked = request.speculation
                tps = rate[asked.method] * (1.5 if asked.k == 3 else 1.0)
                counts = replace(summary(10), decode_s=10 / tps)
                tokens = [Token(i, "x", "content", False, asked.method, 0) for i in range(10)]
                return ScriptedReply([*tokens, Done("length", counts)])

        return Session([], info=replace(INFO, methods=("auto", "off", "ngram", "draft")))

    def test_the_fastest_wins_and_is_stored_for_this_configuration(self) -> None:
        session = self.session({"off": 10, "auto": 12, "ngram": 11, "draft": 14})
        tuned = tune(session, GREEDY, 32, 1)
        assert (tuned.speculation.method, tuned.speculation.k) == ("draft", 3)
        assert tuned.speedup.median == pytest.approx(2.1)
        assert all(len(lane.repeats) >= 3 for result in tuned.results for lane in result.lanes)
        setting = keep(FILES, session.info, tuned)
        assert flags(setting).startswith("--method draft --k 3")
        found = tuned_of_load(FILES, session.info)
        assert found is not None and replace(found, found_at=setting.found_at) == setting
        assert tuned_of_load(FILES, replace(session.info, build="another")) is None

    def test_the_search_keeps_to_the_kinds_of_work_asked_for(self) -> None:
        told: list[str] = []
        session = self.session({"off": 10, "auto": 12, "ngram": 11, "draft": 14})
        edit = Plan(GREEDY, workloads=("edit",)).chosen
        tuned = tune(session, GREEDY, 32, 3, told.append, edit)
        assert [result.workload.name for result in tuned.results] == ["edit"]
        assert told and all(label.startswith("edit ") for label in told)

    def test_the_command_tunes_on_what_it_is_told_to(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[Workload] = []

        def found(*args: Any) -> Tuned:
            asked.extend(args[-1])
            return Tuned(SpeculationSettings(method="off"), Spread(1, 1, 1), ())

        monkeypatch.setattr("localspec.bench.tune", found)
        out = Output.decide(None, None, {}, quiet=True)
        assert run_bench(ScriptedSession([]), FILES, Plan(GREEDY, workloads=("chat",), tune=True), out) == 0
        assert [workload.name for workload in asked] == ["chat"]

    def test_plain_wins_where_nothing_pays(self) -> None:
        tuned = tune(self.session({"off": 20, "auto": 12, "ngram": 11, "draft": 10}), GREEDY, 32, 3)
        assert tuned.speculation.method == "off" and tuned.speedup.median == 1.0
        off = keep(FILES, INFO, Tuned(SpeculationSettings(method="off"), Spread(1, 1, 1), ()))
        assert flags(off) == "--method off"


class TestReference:
    @pytest.mark.parametrize(
        ("text", "tokens", "seconds"),
        [
            ("encoded 9 tokens in 0.1 seconds\ndecoded   64 tokens in    1.250 seconds", 64, 1.25),
            ("prompt eval time = 90.0 ms / 14 tokens\n       eval time =  500.50 ms /  63 runs", 63, 0.5005),
        ],
    )  # fmt: skip
    def test_counters_of_llama_cpp_are_read(self, text: str, tokens: int, seconds: float) -> None:
        assert counters(text, "x") == Answer(tokens, seconds)

    def test_a_command_without_counters_is_no_measurement(self) -> None:
        with pytest.raises(LocalspecError, match="printed no decode counter"):
            counters("prompt eval time = 90.0 ms / 14 tokens", "x")

    def test_a_command_gets_the_prompt_as_one_word(self) -> None:
        code = "import sys; print(f'decoded {sys.argv[2]} tokens in {len(sys.argv[1])}.0 seconds')"
        command = ReferenceCommand((sys.executable, "-c", code, "{prompt}", "{max_tokens}"))
        assert command.answer("a 'b\" $HOME; c", 7) == Answer(7, 14.0)

    def test_what_goes_wrong_is_said(self) -> None:
        with pytest.raises(LocalspecError, match="exited with 3: broken"):
            ReferenceCommand((sys.executable, "-c", "import sys; print('broken'); sys.exit(3)")).answer(
                "x", 1
            )
        with pytest.raises(LocalspecError, match="cannot be run"):
            ReferenceCommand(("/no/such/tool",)).answer("x", 1)
        with pytest.raises(UsageError, match=r"has no \{prompt\}"):
            reference("llama-cli -m x")
        with pytest.raises(UsageError, match="cannot be read"):
            reference("x 'y")
        with pytest.raises(OutsideError):
            ReferenceServer("http://127.0.0.1:9").answer("x", 1)

    def test_what_the_option_names(self) -> None:
        assert reference("https://host/v1") == ReferenceServer("https://host/v1")
        assert reference("tool -p {prompt}") == ReferenceCommand(("tool", "-p", "{prompt}"))

    def test_a_server_is_timed_from_its_first_text(self, server: Server) -> None:
        for url in (server.url, f"{server.url}/v1"):
            answer = ReferenceServer(url).answer("hello", 5)
            assert answer.tokens == 4 and 0 < answer.seconds < 5 and answer.summary is None
        assert server.bodies[0]["messages"] == [{"role": "user", "content": "hello"}]
        assert server.bodies[0]["max_tokens"] == 5
        server.usage = None
        with pytest.raises(LocalspecError, match="did not say how many tokens"):
            ReferenceServer(server.url).answer("hello", 5)


@dataclass
class Server:
    url: str = ""
    usage: dict[str, int] | None = field(default_factory=lambda: {"completion_tokens": 5})
    bodies: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    """Streams five pieces and, when told, a usage record."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            state.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            chunks: list[dict[str, Any]] = [{"choices": [{"delta": {"content": "x"}}]}] * 5
            for chunk in [*chunks, {"choices": [], "usage": state.usage}]:
                self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        state.url = f"http://127.0.0.1:{http.server_port}"
        thread = Thread(target=http.serve_forever)
        thread.start()
        yield state
        http.shutdown()
        thread.join()


def test_a_chart_is_well_formed_whatever_the_names() -> None:
    svg = bar_chart("<a> & b", "×", [("x<y", [Bar("m&n", 1.5, 1.2, 1.9)]), ("empty", [])], 1.0)
    root = ElementTree.fromstring(svg)
    assert "x<y m&n: 1.50 ×" in "".join(root.itertext())
    assert ElementTree.fromstring(bar_chart("nothing", "×", [], None)).tag.endswith("svg")
