"""Every tiny model by name: what it is for and how it is written.

All share the width and, unless they say otherwise, the vocabulary `TEXT`; targets that share a seed share
their weights. Whether a target passes `history_matters` is asserted by the tests for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from localspec.errors import unknown
from localspec.selftest import targets
from localspec.selftest.drafts import (
    TWO_LAYERS,
    Draft,
    write_dflash,
    write_dflash2,
    write_dspark,
    write_eagle3,
)
from localspec.selftest.medusa import write_medusa, write_unembedding
from localspec.selftest.targets import Target
from localspec.selftest.vocab import CHAT_TEMPLATE, EIGHT, TEXT, THINKING_TEMPLATE
from localspec.selftest.weights import Draw

Kind = Literal["target", "eagle3", "mtp", "dflash", "medusa", "unembedding"]

A, B, C, D, E = (Draw(seed=seed) for seed in (1, 2, 3, 22, 5))
FEW = tuple(TEXT.tokens.index(letter) for letter in "abcd")
"""Live ids of the `-few` targets: random drafts are then right about one time in four."""
_CHATML = replace(TEXT, add_bos=False, template=CHAT_TEMPLATE.removeprefix("{{ bos_token }}"))
_PADDED = TEXT.padded(11)


@dataclass(frozen=True, slots=True)
class Variant:
    """One tiny model."""

    name: str
    kind: Kind
    purpose: str
    write: Callable[[Path], None]
    """Writes the file at the given path."""
    live: Sequence[int] = ()
    """Ids a target puts into its text."""
    base: str | None = None
    """Target a companion was made for."""


def _targets() -> Iterable[Variant]:
    def llama(target: Target, purpose: str, experts: int = 0) -> Variant:
        return _target(target, purpose, partial(targets.write_llama, experts=experts))

    yield llama(Target("syn", A), "dense llama, the reference target")
    yield llama(Target("syn-b", B), "other weights, same vocabulary")
    yield llama(
        Target("syn-near", replace(A, jitter=0.08, jitter_seed=2)),
        "resembles syn: a draft that is often right",
    )
    yield llama(
        Target("syn-raw", A, live=range(len(TEXT))), "syn that also emits end tokens and split characters"
    )
    yield llama(Target("syn-v", A, TEXT.with_eot_moved()), "syn with the end-of-turn id moved")
    yield llama(
        Target("syn-w", A, _PADDED, live=(*TEXT.readable, *range(len(TEXT), len(_PADDED)))),
        "syn with padding rows that win the argmax unless masked",
    )
    yield llama(Target("syn-label", A, replace(TEXT, pre="llama-bpe")), "syn under another tokenizer label")
    yield llama(
        Target("syn-think", A, replace(TEXT, add_bos=False, template=THINKING_TEMPLATE)),
        "syn with a template that strips the reasoning of earlier turns",
    )
    yield llama(Target("syn-tied", A, tied=True), "output matrix shared with the embeddings")
    yield llama(Target("syn-moe", A), "four experts, two used", experts=4)
    yield llama(Target("syn-q8_0", replace(A, quantization="Q8_0")), "syn with Q8_0 matrices")
    yield llama(Target("syn-q4_0", replace(A, quantization="Q4_0")), "syn with Q4_0 matrices")
    yield llama(
        Target("syn-8", D, EIGHT, output_gain=0.4, quiet=1), "eight ids with a flat distribution, all live"
    )
    yield llama(
        Target("syn-8-near", replace(D, jitter=0.2, jitter_seed=6), EIGHT, output_gain=0.4, quiet=1),
        "resembles syn-8: both accepted and rejected draws",
    )
    yield _target(Target("syn-qwen2", A, _CHATML), "no layer inputs, no BOS", targets.write_qwen2)
    yield _target(Target("syn-swa", A), "window of 32 tokens in every second layer", targets.write_gemma3)
    yield _target(
        Target("syn-hyb", A, _CHATML),
        "recurrent and attention layers with native snapshots",
        targets.write_qwen35,
    )
    yield _target(
        Target("syn-hyb-few", E, _CHATML, live=FEW),
        "four live ids, for random drafters",
        targets.write_qwen35,
    )
    yield _target(
        Target("syn-hyb-nosnap", A),
        "recurrent and attention layers without native snapshots",
        targets.write_jamba,
    )
    yield _target(
        Target("syn-rec", A), "recurrent layers only, without native snapshots", targets.write_mamba
    )


def _with_nextn() -> Iterable[Variant]:
    def nextn(path: Path, target: Target) -> None:
        targets.write_qwen35(path, target, nextn=1)

    yield _target(Target("syn-mtp", A, _CHATML), "syn-hyb with one NextN layer", nextn)
    yield _target(Target("syn-mtp-b", B, _CHATML), "the same with other weights", nextn)
    yield _target(Target("syn-mtp-few", E, _CHATML, live=FEW), "syn-hyb-few with one NextN layer", nextn)
    alone = Target("syn-mtp-only", A, _CHATML)
    yield Variant(
        alone.name,
        "mtp",
        "the NextN layer of syn-mtp in a file of its own",
        lambda path: targets.write_qwen35(path, alone, nextn=1, trunk=False),
        base="syn-hyb",
    )


def _companions() -> Iterable[Variant]:
    def head(kind: Kind, draft: Draft, purpose: str, write: Callable[[Path, Draft], None]) -> Variant:
        return Variant(draft.name, kind, purpose, lambda path: write(path, draft), base=draft.base)

    yield head("eagle3", Draft("eagle3", "syn", A), "shares the target's embeddings and output", write_eagle3)
    yield head(
        "eagle3",
        Draft("eagle3-d2t", "syn", A),
        "own output over a reduced vocabulary, no tokenizer",
        partial(write_eagle3, reduced=TEXT.readable[::2]),
    )
    yield head(
        "eagle3", Draft("eagle3-norm", "syn", A), "normed features", partial(write_eagle3, norm_features=True)
    )
    yield head(
        "eagle3", Draft("eagle3-misfit", "syn", A, target_width=96), "for a wider target", write_eagle3
    )
    yield head("dflash", Draft("dflash", "syn", C, shape=TWO_LAYERS), "block drafter", write_dflash)
    yield head(
        "dflash", Draft("dspark", "syn", C, shape=TWO_LAYERS), "Markov and confidence heads", write_dspark
    )
    yield head(
        "dflash", Draft("dflash2", "syn", C, shape=TWO_LAYERS), "convolutions and selector", write_dflash2
    )
    yield head("medusa", Draft("medusa", "syn", C), "heads on the target's output matrix", write_medusa)
    yield head(
        "medusa",
        Draft("medusa-lm", "syn", C),
        "two own output matrices",
        partial(write_medusa, own_lm_heads=2),
    )
    yield Variant("unembedding", "unembedding", "output matrix of syn as a model", _unembed_syn, base="syn")


def _unembed_syn(path: Path) -> None:
    matrix = Target("syn", A).output_matrix()
    write_unembedding(path, matrix, kind=0, width=matrix.shape[1])


def _target(target: Target, purpose: str, write: Callable[[Path, Target], None]) -> Variant:
    return Variant(target.name, "target", purpose, lambda path: write(path, target), live=target.live_ids)


VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {variant.name: variant for variant in (*_targets(), *_with_nextn(), *_companions())}
)


def write(name: str, folder: Path) -> Path:
    """Write the tiny model `name` into `folder` unless it is there, and return its path.

    Raises:
        UsageError: no tiny model has this name.
    """
    if name not in VARIANTS:
        raise unknown("tiny model", name, VARIANTS)
    path = folder / f"{name}.gguf"
    if not path.exists():
        VARIANTS[name].write(path)
    return path
