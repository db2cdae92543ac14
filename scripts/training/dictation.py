"""Fills the data folder: replies to the training and held-out prompts, and texts that exist already."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from localspec.engine.backend import Model
from localspec.engine.settings import Message
from localspec.engine.text.template import ChatTemplate
from localspec.errors import UsageError
from localspec.output import Output
from localspec.workloads import Workload
from training.asking import Questions
from training.generate import MAX_PROMPT, Crowd, generate
from training.heldout import HELD_OUT
from training.prompts import prompt_stream
from training.shards import ShardStore
from training.target import read_target, write_fast_copy

QUESTIONS_PER_PROMPT = 3
"""Questions of the target's own after each written prompt, …"""
TOKENS_PER_QUESTION = 330
"""… of which one is asked for so many tokens of training data."""
TEXT_INDEX = 1 << 40
"""Number of the first sample that came from a text file: far above those of prompts."""


def write_held_out(
    target: Path,
    data: Path,
    threads: int,
    max_new: int,
    out: Output,
    workloads: Sequence[Workload] = HELD_OUT,
) -> None:
    """Greedy replies to the held-out prompts, by the target's own file."""
    store = ShardStore(data / "held-out")
    prompts = [prompt for workload in workloads for prompt in workload.prompts]
    if len(store.done()) == len(prompts):
        return
    crowd = _crowd(target, target, len(prompts), max_new, threads)
    try:
        encoded = enumerate(_encoded(crowd.model, prompts))
        with out.progress("held-out replies", len(prompts)) as bar:
            generate(
                crowd, store, encoded, seed=0, max_new=max_new, temperatures=(0.0,),
                progress=lambda tokens, samples: bar.update(samples),
            )  # fmt: skip
    finally:
        crowd.close()


def write_training(
    target: Path, data: Path, threads: int, out: Output, *, tokens: int, size: int, max_new: int, seed: int,
    exact: bool = False,
) -> None:  # fmt: skip
    """Replies to the training prompts until this run decoded about `tokens` tokens; Ctrl+C keeps them."""
    writing = target
    if not exact:
        writing = data / "target-bf16.gguf"
        if not writing.exists():
            out.note("unpacking the weights to a faster BF16 copy")
            write_fast_copy(target, writing)
    crowd = _crowd(target, writing, size, max_new, threads)
    try:
        texts = _prompts(target, data, crowd, tokens, seed, out)
        with out.progress("writing", tokens, "tokens") as bar:
            generate(
                crowd, ShardStore(data / "train"), enumerate(_encoded(crowd.model, texts)),
                seed=seed, max_new=max_new, tokens=tokens,
                progress=lambda tokens, samples: bar.update(tokens, f"writing, {samples} replies"),
            )  # fmt: skip
    except KeyboardInterrupt:
        out.note("stopped; run it again to go on")
    finally:
        crowd.close()


def _prompts(target: Path, data: Path, crowd: Crowd, tokens: int, seed: int, out: Output) -> Iterator[str]:
    """Written prompts, and between them the target's own questions as long as there are any."""
    questions = Questions(data / "questions.jsonl")
    with out.progress("questions", tokens // TOKENS_PER_QUESTION) as bar:
        questions.ask(crowd, tokens // TOKENS_PER_QUESTION, seed, bar.update)
    asked = iter(questions.texts())
    for _, text in prompt_stream(read_target(target).tokens, seed):
        yield text
        yield from itertools.islice(asked, QUESTIONS_PER_PROMPT)


def read_texts(target: Path, data: Path, threads: int, texts: Sequence[Path], out: Output) -> None:
    """Add text files, read through the target's own file in pieces of `MAX_PROMPT` tokens.

    Raises:
        UsageError: a file is missing or no UTF-8 text.
    """
    crowd = _crowd(target, target, 1, 0, threads)
    store = ShardStore(data / "train")
    index = max(TEXT_INDEX, 1 + max(store.done(), default=0))
    try:
        for path in texts:
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"`{path}` cannot be read as text: {error}") from error
            ids = crowd.model.vocabulary.tokenize(text, special=False, add_special=True)
            pieces = [ids[start : start + MAX_PROMPT] for start in range(0, len(ids), MAX_PROMPT)]
            samples = [crowd.read(index + i, piece) for i, piece in enumerate(pieces) if len(piece) > 1]
            if samples:
                store.write(samples)
                index = samples[-1].index + 1
            out.note(f"{path}: {len(ids)} tokens")
    finally:
        crowd.close()


def _crowd(target: Path, writing: Path, size: int, max_new: int, threads: int) -> Crowd:
    layers = read_target(target).layers
    return Crowd(writing, size=size, n_ctx=MAX_PROMPT + max_new, layers=layers, threads=threads)


def _encoded(model: Model, texts: Iterable[str]) -> Iterator[list[int]]:
    template = ChatTemplate(model.vocabulary)
    for text in texts:
        yield template.render((Message("user", text),)).ids
