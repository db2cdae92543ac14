"""Pairs with a learned drafter in the EXACT profile, what they proposed, and what they should have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from localspec.engine.alarms import Alarms
from localspec.engine.backend import Context, ContextSettings
from localspec.engine.backend.cancel import CancelFlag
from localspec.engine.backend.features import LayerInputs, NextnRows
from localspec.engine.control import Control
from localspec.engine.drafters.assistant import AssistantDrafter
from localspec.engine.drafters.base import Draft, Drafter, DraftSampling, History, Ids, More
from localspec.engine.drafters.features import FeatureDrafter
from localspec.engine.drafters.hidden import HiddenDrafter
from localspec.engine.events import Event
from localspec.engine.recovery import Health
from localspec.engine.settings import LoadSettings
from localspec.interfaces import Companion, DraftKind, PairFiles
from localspec.session.loading import load_pair
from tests.engine.harness import Bench, ids, model
from tests.kit.ggufs import syn
from tests.kit.reference import Array, Llama, Qwen2
from tests.kit.reference_assistant import Assistant
from tests.kit.reference_drafters import DFlash, Eagle3, Medusa, Nextn
from tests.kit.reference_mimo2 import Mimo2

EXACT = LoadSettings(
    n_ctx=256, threads=1, kv=("f32", "f32"), draft_kv=("f32", "f32"), flash_attn="off", k_max=8, n_batch=64,
    n_ubatch=64,
)  # fmt: skip
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Pair:
    """A target and its companion by the names of their tiny models."""

    target: str
    companion: str
    kind: DraftKind
    path: Path | None = None
    """The companion's file, when it is none of the tiny models."""

    @property
    def file(self) -> Path:
        return self.path or syn(self.companion)

    def __str__(self) -> str:
        return f"{self.target}+{self.companion}"


PAIRS = (
    Pair("syn", "eagle3", "eagle3"),
    Pair("syn", "eagle3-norm", "eagle3"),
    Pair("syn", "eagle3-d2t", "eagle3"),
    Pair("syn-hyb-few", "eagle3-few", "eagle3"),
    Pair("syn-qwen2", "eagle3", "eagle3"),
    Pair("syn-mtp", "syn-mtp", "mtp"),
    Pair("syn-mtp-few", "syn-mtp-few", "mtp"),
    Pair("syn-hyb", "syn-mtp-only", "mtp"),
    Pair("syn-chain", "syn-chain", "mtp"),
    Pair("syn-share", "assistant", "mtp"),
    Pair("syn", "dflash", "dflash"),
    Pair("syn", "dspark", "dflash"),
    Pair("syn", "dflash2", "dflash"),
    Pair("syn-hyb-few", "dflash-few", "dflash"),
    Pair("syn-hyb-few", "dspark-few", "dflash"),
    Pair("syn-hyb-few", "dflash2-few", "dflash"),
    Pair("syn-qwen2", "dflash", "dflash"),
    Pair("syn", "medusa", "medusa"),
    Pair("syn", "medusa-lm", "medusa"),
    Pair("syn-hyb-few", "medusa-few", "medusa"),
)
BY_KIND = {
    "eagle3": Pair("syn", "eagle3-norm", "eagle3"),
    "eagle3 on a recurrent target": Pair("syn-hyb-few", "eagle3-few", "eagle3"),
    "mtp": Pair("syn-mtp-few", "syn-mtp-few", "mtp"),
    "mtp layers in turn": Pair("syn-chain", "syn-chain", "mtp"),
    "assistant": Pair("syn-share", "assistant", "mtp"),
    "dflash": Pair("syn-hyb-few", "dflash-few", "dflash"),
    "dspark": Pair("syn-hyb-few", "dspark-few", "dflash"),
    "medusa": Pair("syn-hyb-few", "medusa-few", "medusa"),
}
"""One pair per protocol, with drafts that are right about one time in four."""


@dataclass
class Proposal:
    """One draft and what it was made from."""

    ids: list[int]
    tokens: list[int]
    confidences: list[float]
    seed: tuple[Array, Array] | None = None
    """(logits, hidden) of the row that gave the first token, of drafters that have such a row."""


@dataclass
class Read:
    """Features of one target decode."""

    start: int
    tokens: list[int]
    rows: Array


@dataclass
class Record:
    """What a drafter saw and said."""

    proposals: list[Proposal] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)

    def of(self, drafter: Any) -> Record:
        """Start recording `drafter`."""
        propose, observe = drafter.propose, drafter.observe
        seeds: list[tuple[Array, Array]] = []

        def recorded(history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
            seeds.clear()
            before = history.ids.tolist()
            draft: Draft = propose(history, k, more, sampling)
            said = Proposal(before, list(draft.tokens), list(draft.confidences), *seeds[:1])
            self.proposals.append(said)
            return draft

        drafter.propose = recorded
        source = drafter._features if isinstance(drafter, HiddenDrafter) else drafter._latest._source
        read = source.read

        def observed(tokens: Ids, start: int) -> None:
            rows: list[Any] = []

            def noted(n: int) -> Any:
                rows.append(read(n))
                return rows[-1]

            source.read = noted
            observe(tokens, start)
            source.read = read
            if rows and rows[0] is not None:
                self.reads.append(Read(start, [int(id) for id in tokens], rows[0].copy()))

        drafter.observe = observed
        if isinstance(drafter, FeatureDrafter | AssistantDrafter):
            context: Any = drafter._context
            last = context.last

            def noted_last(n: int) -> Any:
                logits, hidden = last(n)
                seeds.append((logits.copy(), hidden.copy()))
                return logits, hidden

            context.last = noted_last
        return self


class Learned(Bench):
    """A loaded pair that answers prompts with its learned drafter only."""

    def __init__(self, pair: Pair, *, n_ctx: int = 256, load: LoadSettings = EXACT) -> None:
        files = PairFiles(str(pair), syn(pair.target), (Companion(pair.kind, pair.file),))
        loaded = load_pair(files, replace(load, n_ctx=n_ctx), _silent, CancelFlag())
        assert not loaded.refused, loaded.refused
        self.name, self.pair, self.policy = pair.target, loaded, None
        self.k_max = load.k_max
        self.context = loaded.context
        self.cells = loaded.context.sequence(n_ctx=n_ctx)
        self.drafters: list[Drafter] = [loaded.drafter(pair.kind, 0)]
        self.alarms, self.health, self.control = Alarms(), Health(), Control()
        self.record = Record().of(self.drafters[0])

    def close(self) -> None:
        self.pair.close()


def _silent(event: Event) -> None:
    pass


class Reference:
    """What the drafter of a pair should see and say along a text."""

    def __init__(self, pair: Pair, text: Sequence[int]) -> None:
        self._text, self._pair = list(text), pair
        if pair.target == "syn-chain":
            self._nextn: Any = Mimo2(pair.file)
            self.features = self._nextn.forward(text).hidden
            self._drafts: Callable[[int, int], list[tuple[int, float | None]]] = self._mtp
            return
        dense = (Qwen2 if pair.target == "syn-qwen2" else Llama)(syn(pair.target))
        if pair.target in ("syn", "syn-qwen2"):
            trace = dense.forward(text)
            inputs, hidden = trace.features, trace.hidden
        else:
            inputs, hidden = _one_pass(pair.target, text, dense.output)
        if pair.kind == "eagle3":
            self._eagle = Eagle3(pair.file, dense)
            self.features = inputs(self._eagle.layers)
            self._drafts = self._eagle3
        elif pair.companion == "assistant":
            self._nextn, self.features = Assistant(pair.file, syn(pair.target), inputs), hidden
            self._drafts = self._mtp
        elif pair.kind == "mtp":
            self._nextn, self.features = Nextn(pair.file), hidden
            self._drafts = self._mtp
        elif pair.kind == "dflash":
            self._block = DFlash(pair.file, dense)
            self.features = inputs(self._block.layers)
            self._drafts = lambda n, k: list(self._block.propose(self.features[: n - 1], text[n - 1], k))
        else:
            self._heads, self.features = Medusa(pair.file, dense.output), hidden
            self._drafts = self._medusa

    def drafts(self, n: int, k: int) -> list[tuple[int, float | None]]:
        """The `k` tokens to draft behind the first `n` of the text, with confidences where comparable."""
        return self._drafts(n, k)

    def seed(self, n: int) -> tuple[Array, Array] | None:
        """(logits, hidden) of the row that gives the first drafted token behind the first `n`."""
        text = self._text[:n]
        if self._pair.kind == "eagle3":
            logits, hidden = self._eagle.decode(text[1:], self._eagle.encode(self.features[: n - 1]))
        elif self._pair.companion == "assistant":
            return self._nextn.step(n, text[-1], self.features[n - 2])  # type: ignore[no-any-return]
        elif self._pair.target == "syn-chain":
            return self._nextn.seed(text, self.features[: n - 1])
        elif self._pair.kind == "mtp":
            width = self.features.shape[1]
            rows = np.concatenate([np.zeros((1, width)), self.features[: n - 1]])
            logits, hidden = self._nextn.decode(text, rows)
        else:
            return None
        return logits[-1], hidden[-1]

    def _eagle3(self, n: int, k: int) -> list[tuple[int, float | None]]:
        return [(id, None) for id in self._eagle.draft(self._text[:n], self.features[: n - 1], k)]

    def _mtp(self, n: int, k: int) -> list[tuple[int, float | None]]:
        return [(id, None) for id in self._nextn.draft(self._text[:n], self.features[: n - 1], k)]

    def _medusa(self, n: int, k: int) -> list[tuple[int, float | None]]:
        logits = self._heads.logits(self.features[n - 2])[:k]
        chances = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        return [(int(row.argmax()), float(row.max())) for row in chances]


def _one_pass(
    target: str, text: Sequence[int], output: Array
) -> tuple[Callable[[Sequence[int]], Array], Array]:
    """Layer inputs and final hidden states of a recurrent target, read in one decode of a fresh context."""
    n = len(text)
    settings = ContextSettings(
        n_ctx=n, n_batch=n, n_ubatch=n, n_outputs_max=n, kv=("f32", "f32"), flash_attn="off"
    )
    context = Context(model(target), settings)
    layers = LayerInputs(context, range(3))
    final = NextnRows(context)
    logits = context.run(ids(text), 0, 0, n).copy()
    features, hidden = layers.read(n), final.read(n)
    context.close()
    assert np.abs(hidden @ output.T - logits).max() < TOLERANCE, "the hidden state is the normed one"
    width = features.shape[1] // 3

    def inputs(wanted: Sequence[int]) -> Array:
        return np.concatenate([features[:, i * width : (i + 1) * width] for i in wanted], axis=1)

    return inputs, hidden


def far_off(got: Array, wanted: Array) -> float:
    """The largest difference, relative to the row's largest value where that is above one."""
    return float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max()))


def check(pair: Pair, record: Record, text: Sequence[int], *, at_least: int = 5) -> None:
    """Every proposal along `text` is the reference's, and so is every feature that was read on the way."""
    reference = Reference(pair, text)
    read = 0
    for seen in record.reads:
        for i, id in enumerate(seen.tokens):
            at = seen.start + i
            if list(text[seen.start : at + 1]) != seen.tokens[: i + 1] or at >= len(text) or text[at] != id:
                break
            assert far_off(seen.rows[i], reference.features[at]) < TOLERANCE, f"feature of {at}"
            read += 1
    compared = 0
    for said in record.proposals:
        n = len(said.ids)
        assert said.ids == list(text[:n])
        if not said.tokens:
            continue
        expected = reference.drafts(n, len(said.tokens))
        assert said.tokens == [id for id, _ in expected], f"draft behind {n} tokens"
        for got, (_, wanted) in zip(said.confidences, expected, strict=True):
            assert wanted is None or abs(got - wanted) < TOLERANCE
        seed = reference.seed(n)
        if seed is not None:
            assert said.seed is not None
            possible = np.isfinite(seed[0])
            assert np.array_equal(possible, np.isfinite(said.seed[0]))
            assert far_off(said.seed[0][possible], seed[0][possible]) < TOLERANCE, "logits"
            assert far_off(said.seed[1], seed[1]) < TOLERANCE, "hidden row"
        compared += 1
    assert compared >= at_least and read >= at_least, (compared, read)
