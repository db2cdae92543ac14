"""The shipped heads of the embedded pair: they draft what the target says, and for no other target."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from localspec.catalog import load_catalog
from localspec.engine.settings import LoadSettings, Message, Request, SamplingSettings, SpeculationSettings
from localspec.interfaces import Companion, DraftKind, PairFiles
from localspec.measuring import run
from localspec.pairs import resolve
from localspec.session import open_session
from tests.kit.ggufs import syn

pytestmark = pytest.mark.real_model
KINDS: tuple[DraftKind, ...] = ("eagle3", "medusa", "draft")
PROMPTS = (
    "Write a Python class that models a bank account with deposit, withdraw and balance.",
    "Give three reasons to plant trees in a city.",
)
LOAD = LoadSettings(n_ctx=512, threads=1)
MB = 1_000_000


def head(kind: DraftKind) -> Path:
    return next(c.path for c in resolve("demo").companions if c.kind == kind)


def accepted_per_round(kind: DraftKind, path: Path) -> float:
    """In the product's loop, greedy, k = 4."""
    session = open_session(PairFiles("demo", resolve("demo").target, (Companion(kind, path),)), LOAD)
    try:
        assert session.info.off_reason is None
        rounds = accepted = 0
        for prompt in PROMPTS:
            counts = run(
                session,
                Request(
                    messages=(Message("user", prompt),),
                    sampling=SamplingSettings(temperature=0.0),
                    max_tokens=96,
                    speculation=SpeculationSettings(method=kind, k=4),
                ),
            ).counts
            rounds += counts.rounds
            accepted += counts.accepted
    finally:
        session.close()
    return accepted / rounds


def shuffled(path: Path, folder: Path) -> Path:
    """A copy in which the rows of every matrix stand in another order: same sizes, same values, no sense."""
    copy = folder / path.name
    shutil.copyfile(path, copy)
    random = np.random.default_rng(7)
    for tensor in gguf.GGUFReader(copy, "r+").tensors:
        if len(tensor.shape) > 1 and tensor.shape[1] > 1:
            tensor.data[:] = tensor.data[random.permutation(len(tensor.data))]
    return copy


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_head_learned_is_what_makes_it_accepted(kind: DraftKind, tmp_path: Path) -> None:
    learned = accepted_per_round(kind, head(kind))
    nonsense = accepted_per_round(kind, shuffled(head(kind), tmp_path))
    assert nonsense <= 0.1 and learned >= 5 * max(nonsense, 0.05), (learned, nonsense)


def test_the_embedded_pair_offers_every_method() -> None:
    pair = load_catalog().pair("demo")
    assert [drafter.kind for drafter in pair.drafters] == ["ngram", *KINDS]
    sizes = [head(kind).stat().st_size for kind in KINDS]
    assert max(sizes) <= 12 * MB and sum(sizes) <= 30 * MB


@pytest.mark.parametrize("kind", KINDS)
def test_another_target_refuses_them_with_the_reason(kind: DraftKind) -> None:
    session = open_session(PairFiles("other", syn("syn"), (Companion(kind, head(kind)),)), LOAD)
    try:
        assert kind not in session.info.methods
        assert session.info.off_reason
    finally:
        session.close()


def test_the_model_card_tells_of_these_files() -> None:
    card = head("eagle3").with_name("README.md").read_text(encoding="utf-8")
    for kind in KINDS:
        assert head(kind).name in card
    figures = json.loads(head("eagle3").with_name("figures.json").read_text(encoding="utf-8"))
    assert set(figures) == set(KINDS)
    for rows in figures.values():
        assert [row["workload"] for row in rows][-1] == "all"
        assert f"| {rows[-1]['accepted_per_round']:.2f} |" in card
