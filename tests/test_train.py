"""Training drafts: prompts, data, the fitting loop, and that it counts what the product's loop accepts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.catalog import demo_target_path
from localspec.errors import EngineError, ModelFileError
from localspec.output import Output
from localspec.selftest import write
from localspec.workloads import Workload

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `train`)")
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from training import dictation, fitting, trainers  # noqa: E402
from training.evaluate import evaluate  # noqa: E402
from training.fitting import Plan, fit  # noqa: E402
from training.generate import Crowd, generate, top_probabilities  # noqa: E402
from training.heldout import HELD_OUT, held_out_phrases, phrases, shares_a_phrase  # noqa: E402
from training.prompts import KINDS, prompts  # noqa: E402
from training.rounds import Tally  # noqa: E402
from training.shards import ShardStore  # noqa: E402
from training.target import read_target  # noqa: E402
from training.trainers import Lesson, read_lesson  # noqa: E402

QUIET = Output.decide(None, None, {}, quiet=True)
SOME = (Workload("some", tuple(prompt for workload in HELD_OUT[::2] for prompt in workload.prompts[:3])),)
MAX_NEW = 24


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("syn", tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def lesson(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lesson]:
    """Greedy held-out replies and some training text of the tiny target."""
    torch.set_num_threads(1)
    data = tmp_path_factory.mktemp("data")
    dictation.write_held_out(target, data, 1, MAX_NEW, QUIET, SOME)
    dictation.write_training(target, data, 1, QUIET, tokens=2500, size=8, max_new=MAX_NEW, seed=1)
    yield read_lesson(target, data, 200, QUIET)


class TestPrompts:
    def test_many_different_ones_of_each_workload(self) -> None:
        made = prompts(3000)
        assert len({text for _, text in made}) == 3000
        assert {kind for kind, _ in made[:5]} == set(KINDS) == {workload.name for workload in HELD_OUT}

    def test_same_seed_same_prompts(self) -> None:
        assert prompts(50, seed=3) == prompts(50, seed=3) != prompts(50, seed=4)

    def test_half_of_the_topics_come_from_the_vocabulary(self) -> None:
        made = [text for _, text in prompts(500, ["Ġzebrafish", "Ġglockenspiel", "ĠZanzibar", "x", "Ġof"])]
        named = [text for text in made if "zebrafish" in text or "glockenspiel" in text or "Zanzibar" in text]
        assert 150 < len(named) < 400

    def test_held_out_prompts_share_no_eight_words_with_training(self) -> None:
        demo = demo_target_path()
        assert demo is not None
        trained = {phrase for _, text in prompts(3000, read_target(demo).tokens) for phrase in phrases(text)}
        assert len(held_out_phrases()) > 300 and not held_out_phrases() & trained

    def test_shared_phrases_are_found_through_case_and_punctuation(self) -> None:
        words = HELD_OUT[2].prompts[-1].split()
        assert shares_a_phrase("He asked: " + ", ".join(words).upper())
        assert not shares_a_phrase(" ".join(words[:7]))


class TestData:
    def test_a_resumed_run_writes_what_an_uninterrupted_one_does(self, target: Path, tmp_path: Path) -> None:
        layers = read_target(target).layers
        prompt_ids = [(i, [1, 10 + i, 30 + i, 50]) for i in range(6)]

        def run(store: ShardStore, some: list[tuple[int, list[int]]]) -> None:
            crowd = Crowd(target, size=3, n_ctx=64, layers=layers, threads=1)
            try:
                generate(crowd, store, some, seed=7, max_new=12)
            finally:
                crowd.close()

        whole, parts = ShardStore(tmp_path / "whole"), ShardStore(tmp_path / "parts")
        run(whole, prompt_ids)
        run(parts, prompt_ids[:2])
        run(parts, prompt_ids)
        assert parts.done() == whole.done() == set(range(6)) and len(parts.paths()) == 2
        first, second = ({s.index: s for s in store.samples()} for store in (whole, parts))
        for index, sample in first.items():
            np.testing.assert_array_equal(sample.tokens, second[index].tokens)
            np.testing.assert_allclose(sample.hidden, second[index].hidden, rtol=0.02, atol=0.02)
        assert len({sample.temperature for sample in first.values()}) > 2

    def test_rows_stand_beside_their_tokens(self, lesson: Lesson) -> None:
        """Greedy replies: the most probable id of each row is the token that follows it."""
        for sample in lesson.held_out:
            reply = slice(sample.n_prompt - 1, len(sample.tokens) - 1)
            agree = sample.top_ids[reply, 0] == sample.tokens[sample.n_prompt :]
            assert agree.mean() > 0.9, sample.index
            assert sample.features.shape == (len(sample.tokens), 3 * lesson.facts.width)

    def test_top_probabilities_are_of_the_whole_vocabulary(self) -> None:
        row = np.random.default_rng(1).normal(size=1000).astype(np.float32) * 3
        ids, p = top_probabilities(row)
        everything = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        np.testing.assert_allclose(p, everything[ids], rtol=1e-4)
        assert list(ids) == list(np.argsort(-row)[:8])

    def test_texts_of_ones_own_become_samples(self, target: Path, tmp_path: Path) -> None:
        text = tmp_path / "own.txt"
        text.write_text("hello there, " * 60)
        dictation.read_texts(target, tmp_path, 1, [text], QUIET)
        samples = list(ShardStore(tmp_path / "train").samples())
        assert sum(len(sample.tokens) for sample in samples) > 300
        assert all(sample.index >= dictation.TEXT_INDEX for sample in samples)


class TestRounds:
    def test_walks_like_the_loop(self) -> None:
        hits = np.zeros((3, 12), np.bool_)
        hits[:, 0] = True  # 3 accepted: on to position 4
        hits[0, 4] = True  # 1 accepted: on to 6, where nothing is right
        tally = Tally(3)
        tally.walk(hits, 0, 9)
        assert (tally.rounds, tally.accepted) == (4, 4)
        assert list(tally.reached) == [3, 2, 1] and list(tally.right) == [2, 1, 1]


class TestFit:
    def fit(
        self, lesson: Lesson, folder: Path, *, stop_after: int = 10**9, seconds: float = 0.5
    ) -> fitting.Run:
        module = torch.nn.Linear(2, 1)
        steps = 0

        def loss(batch: object, done: float) -> torch.Tensor:
            nonlocal steps
            steps += 1
            if steps > stop_after:
                raise KeyboardInterrupt
            return (module(torch.ones(1, 2)) - 3).square().mean()

        def score() -> Tally:
            """Better the nearer the module is to 3."""
            miss = abs(float(module(torch.ones(1, 2)).detach()) - 3)
            tally = Tally(1, rounds=1000)
            tally.right[0] = int(1000 / (1 + miss))
            return tally

        plan = Plan(seconds / 60, rate=0.05, evaluate_s=0.0)  # after every step, however fast they are
        run = fit(module, lesson.corpus, plan, loss=loss, evaluate=score, folder=folder, out=QUIET)
        assert score().per_round == pytest.approx(run.best, abs=0.02)
        return run

    def test_ctrl_c_keeps_the_best_and_the_next_run_goes_on(self, lesson: Lesson, tmp_path: Path) -> None:
        first = self.fit(lesson, tmp_path, stop_after=60, seconds=60)
        assert first.curve and first.steps == 60
        second = self.fit(lesson, tmp_path, seconds=first.elapsed + 0.5)
        assert second.curve[: len(first.curve)] == first.curve and second.steps > first.steps
        assert second.best >= first.best


@pytest.mark.parametrize("kind", ["eagle3", "medusa", "draft"])
class TestKinds:
    def test_the_loop_accepts_what_training_counted(
        self, kind: str, lesson: Lesson, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Training and use agree: the written file, driven by the session, is right where training said."""
        for name in ("QUANTIZATION", "OUTPUT_ROWS", "EMBEDDING"):
            monkeypatch.setattr(trainers, name, "F32")
        file = tmp_path / f"{kind}.gguf"
        run = trainers.TRAINERS[kind](lesson, Plan(4 / 60, batch=8, rate=3e-3), tmp_path / "run", file)
        result = evaluate(target, kind, file, QUIET, workloads=SOME, max_tokens=MAX_NEW, threads=1)[-1]  # type: ignore[arg-type]
        assert result.tally.accepted > 5
        assert result.tally.per_round == pytest.approx(run.best, abs=0.08)
        self.goes_on(kind, replace(lesson, start=file), run.best, tmp_path)
        with pytest.raises(EngineError, match=r"vocabular|width|tokenizer"):
            evaluate(demo(), kind, file, QUIET, workloads=SOME, max_tokens=4, threads=1)  # type: ignore[arg-type]

    def goes_on(self, kind: str, lesson: Lesson, best: float, folder: Path) -> None:
        """A run that starts from a file is as good as the run that wrote it, before it learns anything."""
        still = Plan(0.01 / 60, rate=1e-9)
        run = trainers.TRAINERS[kind](lesson, still, folder / "again", folder / "again.gguf")
        assert run.curve[0].accepted_per_round == pytest.approx(best, abs=0.02)

    def test_a_file_of_something_else_is_no_start(
        self, kind: str, lesson: Lesson, target: Path, tmp_path: Path
    ) -> None:
        for start in (target, tmp_path / "missing.gguf", Path(__file__)):
            with pytest.raises(ModelFileError, match=re.escape(str(start))):
                trainers.TRAINERS[kind](
                    replace(lesson, start=start), Plan(1.0), tmp_path, tmp_path / "x.gguf"
                )


def demo() -> Path:
    found = demo_target_path()
    assert found is not None
    return found


def test_smoke_trains_everything() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "train_draft.py", "--smoke"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for kind in ("eagle3", "medusa", "draft"):
        assert re.search(rf"^{kind}: \d+ steps", done.stdout, re.M)
