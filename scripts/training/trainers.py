"""Trains each kind of draft for a target from a folder of shards, and writes its file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from localspec.errors import ModelFileError, UsageError
from localspec.output import Output
from training import draft, eagle3, export, medusa
from training.corpus import Batch, Corpus, ReducedVocabulary, batch_of, coverage, frequent_ids
from training.export import tensor_name
from training.fitting import Plan, Run, fit
from training.rounds import Tally
from training.shards import STATES, Sample, ShardStore
from training.target import TargetFacts, layer_matrices, matrix, read_target, tensors, unpack

K = 4
"""Draft length that training evaluates."""
QUANTIZATION = "Q8_0"
"""ggml type of the matrices of every file, …"""
OUTPUT_ROWS, EMBEDDING = "Q4_0", "Q5_0"
"""… but of an EAGLE-3 head's output rows and of a draft's embedding."""
STEPS = 3
"""Steps of an EAGLE-3 chain in training, …"""
SINGLE_UNTIL = 0.5
"""… after this share of a run from nothing; before it one, as no chain is worth training while its first
step is wrong."""


@dataclass(slots=True)
class Lesson:
    """A target and what it wrote."""

    target: Path
    facts: TargetFacts
    corpus: Corpus
    held_out: list[Sample]
    """Greedy replies to the held-out prompts."""
    keep: int
    """Ids a reduced vocabulary may have."""
    out: Output
    start: Path | None = None
    """File of the kind to be trained, to go on from."""

    def kept(self) -> ReducedVocabulary:
        """The ids the target writes most, as far as the data goes by now."""
        ids = frequent_ids(self.corpus.samples, self.facts.n_vocab, self.keep)
        return ReducedVocabulary(torch.from_numpy(ids), self.facts.n_vocab)

    def tally(self, hits: Callable[[Batch], Tensor]) -> Tally:
        """Rounds over the held-out replies; `hits` gives `[k, B, T]`."""
        tally = Tally(K)
        for start in range(0, len(self.held_out), 8):
            samples = self.held_out[start : start + 8]
            found = hits(batch_of(samples)).numpy()
            for i, sample in enumerate(samples):
                tally.walk(found[:, i], sample.n_prompt - 1, len(sample.tokens))
        return tally


def read_lesson(
    target: Path,
    data: Path,
    keep: int,
    out: Output,
    *,
    states: Collection[str] = STATES,
    start: Path | None = None,
) -> Lesson:
    """Load the shards under `data`: folders `train` and `held-out`.

    Args:
        states: those of the target that the training texts need beside their tokens.

    Raises:
        UsageError: there is no data yet.
    """
    facts = read_target(target)
    corpus, held_out = Corpus(data / "train", states), list(ShardStore(data / "held-out").samples())
    if not corpus.samples or not held_out:
        raise UsageError(f"no training data in `{data}`", hint="run scripts/train_draft data first")
    lesson = Lesson(target, facts, corpus, held_out, min(keep, facts.n_vocab), out, start)
    ids = lesson.kept().ids.numpy()
    covered = coverage(corpus.samples, ids), coverage(held_out, ids)
    out.note(
        f"{len(corpus.samples)} replies, {corpus.n_tokens} tokens; "
        f"{len(ids)} ids cover {covered[0]:.1%} of them and {covered[1]:.1%} of the held-out ones"
    )
    return lesson


def train_eagle3(lesson: Lesson, plan: Plan, folder: Path, path: Path) -> Run:
    torch.manual_seed(plan.seed)
    facts = lesson.facts
    unembedding = matrix(lesson.target, "output.weight", "token_embd.weight")
    head = eagle3.Eagle3(facts, matrix(lesson.target, "token_embd.weight"), unembedding)
    head.start_from(
        _reply_features(lesson.corpus.samples[:60]), matrix(lesson.target, "output_norm.weight"),
        layer_matrices(lesson.target, facts.layers[-1]),
    )  # fmt: skip

    def loss(batch: Batch, done: float) -> Tensor:
        alone = lesson.start is None and done < SINGLE_UNTIL
        return eagle3.loss(head, batch, 1 if alone else STEPS)

    def evaluate() -> Tally:
        kept = lesson.kept()
        return lesson.tally(lambda batch: eagle3.hits(head, batch, K, kept))

    start_from_file(head, lesson.start)
    run = fit(
        head, lesson.corpus, plan, loss=loss,
        evaluate=evaluate, folder=folder, out=lesson.out,
    )  # fmt: skip
    rows = lesson.kept().ids.numpy()
    export.write_eagle3(path, facts, weights_of(head), unembedding, rows, QUANTIZATION, OUTPUT_ROWS)
    return run


def _reply_features(samples: Sequence[Sample]) -> np.ndarray:
    return np.concatenate([s.features[s.n_prompt :].astype(np.float32) for s in samples])


def train_medusa(lesson: Lesson, plan: Plan, folder: Path, path: Path) -> Run:
    torch.manual_seed(plan.seed)
    module = medusa.Medusa(lesson.facts, matrix(lesson.target, "output.weight", "token_embd.weight"))
    start_from_file(module, lesson.start)
    run = fit(
        module, lesson.corpus, plan, loss=lambda batch, done: medusa.loss(module, batch),
        evaluate=lambda: lesson.tally(lambda batch: medusa.hits(module, batch, K)),
        folder=folder, out=lesson.out,
    )  # fmt: skip
    export.write_medusa(path, lesson.facts, weights_of(module), QUANTIZATION)
    return run


def train_draft(lesson: Lesson, plan: Plan, folder: Path, path: Path) -> Run:
    torch.manual_seed(plan.seed)
    size = draft.Size(width=min(draft.Size.width, lesson.facts.width))
    model = draft.SmallLlama(lesson.facts, matrix(lesson.target, "token_embd.weight"), size)
    start_from_file(model, lesson.start)
    run = fit(
        model, lesson.corpus, plan, loss=lambda batch, done: draft.loss(model, batch),
        evaluate=lambda: lesson.tally(lambda batch: draft.hits(model, batch, K)),
        folder=folder, out=lesson.out,
    )  # fmt: skip
    export.write_draft(
        path, lesson.facts, weights_of(model), lesson.target, QUANTIZATION, EMBEDDING,
        head_size=size.head_size,
    )  # fmt: skip
    return run


def weights_of(module: nn.Module) -> export.Weights:
    return {name: value.detach().float().numpy() for name, value in module.state_dict().items()}


def start_from_file(module: nn.Module, path: Path | None) -> None:
    """Take over what a file written by these trainers holds; parameters that it lacks stay as they are.

    Raises:
        ModelFileError: it holds none of them, or of another shape.
    """
    if path is None:
        return
    found = tensors(path)
    wanted = {name: tensor_name(name) for name, _ in module.named_parameters()}
    known = {name: unpack(found[stored]) for name, stored in wanted.items() if stored in found}
    if not known:
        raise ModelFileError(f"`{path}` holds nothing of what is to be trained")
    with torch.no_grad():
        for name, values in known.items():
            parameter = module.get_parameter(name)
            if parameter.shape != values.shape:
                shapes = f"{list(values.shape)} in `{path}`, {list(parameter.shape)} wanted"
                raise ModelFileError(f"`{wanted[name]}` has another shape: {shapes}")
            parameter.copy_(torch.tensor(values))


STATES_READ: dict[str, tuple[str, ...]] = {"eagle3": STATES, "medusa": ("hidden",), "draft": ()}
"""By kind: the states of the target that it learns from."""
TRAINERS = {"eagle3": train_eagle3, "medusa": train_medusa, "draft": train_draft}
"""By kind: trains in a folder of checkpoints and writes the file at the last path."""
