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
from typing import Any, Literal

from localspec.errors import unknown
from localspec.selftest import targets
from localspec.selftest.assistant import ASSISTANT, write_assistant, write_gemma4
from localspec.selftest.chained import write_mimo2
from localspec.selftest.drafts import (
    Draft,
    write_dflash,
    write_dflash2,
    write_dspark,
    write_eagle3,
)
from localspec.selftest.medusa import write_medusa
from localspec.selftest.targets import Shape, Target
from localspec.selftest.vocab import CHAT_TEMPLATE, EIGHT, TEXT, THINKING_TEMPLATE
from localspec.selftest.weights import Draw
from localspec.unembedding import write_unembedding

Kind = Literal["target", "eagle3", "mtp", "dflash", "medusa", "unembedding"]

SYN, OTHER, HEADS = Draw(seed=5), Draw(seed=2), Draw(seed=3)
# Seeds whose greedy text keeps moving from any start: with few live ids most have a favourite id.
SYN_FEW, SYN_SWA, SYN_CHAIN, SYN_SHARE = Draw(seed=28), Draw(seed=10), Draw(seed=130), Draw(seed=38)
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

    yield llama(Target("syn", SYN), "dense llama, the reference target")
    yield llama(Target("syn-b", OTHER), "other weights, same vocabulary")
    yield llama(
        Target("syn-near", replace(SYN, jitter=0.08, jitter_seed=2)),
        "resembles syn: a draft that is often right",
    )
    yield llama(
        Target("syn-raw", SYN, live=range(len(TEXT))), "syn that also emits end tokens and split characters"
    )
    yield llama(Target("syn-v", SYN, TEXT.with_eot_moved()), "syn with the end-of-turn id moved")
    yield llama(
        Target("syn-w", SYN, _PADDED, live=(*TEXT.readable, *range(len(TEXT), len(_PADDED)))),
        "syn with padding rows that win the argmax unless masked",
    )
    yield llama(Target("syn-label", SYN, replace(TEXT, pre="llama-bpe")), "syn under another tokenizer label")
    yield llama(
        Target("syn-think", SYN, replace(TEXT, add_bos=False, template=THINKING_TEMPLATE)),
        "syn with a template that strips the reasoning of earlier turns",
    )
    yield llama(Target("syn-tied", SYN, tied=True), "output matrix shared with the embeddings")
    yield llama(Target("syn-moe", SYN), "four experts, two used", experts=4)
    yield llama(Target("syn-q8_0", replace(SYN, quantization="Q8_0")), "syn with Q8_0 matrices")
    yield llama(Target("syn-q4_0", replace(SYN, quantization="Q4_0")), "syn with Q4_0 matrices")
    yield llama(
        Target("syn-8", SYN, EIGHT, output_gain=0.4, quiet=1),
        "eight ids with a flat distribution, all live",
    )
    yield llama(
        Target("syn-8-near", replace(SYN, jitter=0.2, jitter_seed=9), EIGHT, output_gain=0.4, quiet=1),
        "resembles syn-8: both accepted and rejected draws",
    )
    yield _target(Target("syn-qwen2", SYN, _CHATML), "no layer inputs, no BOS", targets.write_qwen2)
    yield _target(
        Target("syn-swa", SYN_SWA), "window of 32 tokens in every second layer", targets.write_gemma3
    )
    yield _target(
        Target("syn-hyb", SYN, _CHATML),
        "recurrent and attention layers with native snapshots",
        targets.write_qwen35,
    )
    yield _target(
        Target("syn-hyb-few", SYN_FEW, _CHATML, live=FEW),
        "four live ids, for random drafters",
        targets.write_qwen35,
    )
    yield _target(
        Target("syn-hyb-nosnap", SYN),
        "recurrent and attention layers without native snapshots",
        targets.write_jamba,
    )
    yield _target(
        Target("syn-rec", SYN), "recurrent layers only, without native snapshots", targets.write_mamba
    )


def _with_nextn() -> Iterable[Variant]:
    def nextn(path: Path, target: Target) -> None:
        targets.write_qwen35(path, target, nextn=1)

    yield _target(Target("syn-mtp", SYN, _CHATML), "syn-hyb with one NextN layer", nextn)
    yield _target(Target("syn-mtp-b", OTHER, _CHATML), "the same with other weights", nextn)
    yield _target(
        Target("syn-mtp-few", SYN_FEW, _CHATML, live=FEW), "syn-hyb-few with one NextN layer", nextn
    )
    yield _target(
        Target("syn-chain", SYN_CHAIN, _CHATML, live=FEW), "three NextN layers that take turns", write_mimo2
    )
    yield _target(
        Target("syn-share", SYN_SHARE, _CHATML, live=FEW), "its cache is read by an assistant", write_gemma4
    )
    assistant = Draft("assistant", "syn-share", HEADS, _CHATML, ASSISTANT, "gemma4")
    yield _head("mtp", assistant, "a model on the target's cache", partial(write_assistant, live=FEW))
    alone = Target("syn-mtp-only", SYN, _CHATML, base="syn-hyb")
    yield Variant(
        alone.name,
        "mtp",
        "the NextN layer of syn-mtp in a file of its own",
        lambda path: targets.write_qwen35(path, alone, nextn=1, trunk=False),
        base=alone.base,
    )


def _companions(base: str, arch: str, suffix: str, draw: Draw) -> Iterable[Variant]:
    """One head of each kind for the target `base`; EAGLE-3 heads resemble it when `draw` is its own."""

    def draft(name: str, seed: Draw = HEADS, **more: Any) -> Draft:
        return Draft(name + suffix, base, seed, base_arch=arch, **more)

    yield _head("eagle3", draft("eagle3", draw), "shares the target's embeddings and output", write_eagle3)
    two = Shape(layers=2)
    yield _head("dflash", draft("dflash", shape=two), "block drafter", write_dflash)
    yield _head("dflash", draft("dspark", shape=two), "Markov and confidence heads", write_dspark)
    yield _head("dflash", draft("dflash2", shape=two), "convolutions and a selector", write_dflash2)
    yield _head("medusa", draft("medusa"), "four heads on the target's output matrix", write_medusa)


def _special_companions() -> Iterable[Variant]:
    reduced = partial(write_eagle3, reduced=TEXT.readable[::2])
    yield _head("eagle3", Draft("eagle3-d2t", "syn", SYN), "reduced vocabulary, no tokenizer", reduced)
    normed = partial(write_eagle3, norm_features=True)
    yield _head("eagle3", Draft("eagle3-norm", "syn", SYN), "norms before fusing and in the residual", normed)
    misfit = Draft("eagle3-misfit", "syn", SYN, target_width=96)
    yield _head("eagle3", misfit, "made for a wider target: must be refused", write_eagle3)
    own = partial(write_medusa, own_lm_heads=2)
    yield _head("medusa", Draft("medusa-lm", "syn", HEADS), "two heads own an output matrix", own)
    yield Variant("unembedding", "unembedding", "output matrix of syn as a model", _unembed_syn, base="syn")


def _head(kind: Kind, draft: Draft, purpose: str, write: Callable[[Path, Draft], None]) -> Variant:
    return Variant(draft.name, kind, purpose, lambda path: write(path, draft), base=draft.base)


def _unembed_syn(path: Path) -> None:
    matrix = Target("syn", SYN).output_matrix()
    write_unembedding(path, matrix, kind=0, width=matrix.shape[1])


def _target(target: Target, purpose: str, write: Callable[[Path, Target], None]) -> Variant:
    return Variant(target.name, "target", purpose, lambda path: write(path, target), live=target.live_ids)


VARIANTS: Mapping[str, Variant] = MappingProxyType(
    {
        variant.name: variant
        for variant in (
            *_targets(),
            *_with_nextn(),
            *_companions("syn", "llama", "", SYN),
            *_companions("syn-hyb-few", "qwen35", "-few", HEADS),
            *_special_companions(),
        )
    }
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
