"""Drives the real loop over tiny models in the EXACT profile, and plain decoding that shares no code with it.

EXACT: F32 weights, F32 K and V, flash attention off, one thread. Only there may texts be compared token by
token; elsewhere row counts change logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from localspec.engine.alarms import Alarms
from localspec.engine.backend import Context, ContextSettings, Model, load_model
from localspec.engine.backend import Sequence as Cells
from localspec.engine.backend.samplers import Candidates, draft_samplers, native_samplers
from localspec.engine.control import Control, Options
from localspec.engine.drafters.base import Draft, Drafter, DraftSampling, History, Ids, More, Tokens
from localspec.engine.drafters.model import ModelDrafter
from localspec.engine.events import Done, Event, Notice, Prefill, Round, Token
from localspec.engine.policy import FixedPolicy, Policy
from localspec.engine.recovery import Health
from localspec.engine.sampling import Sampler
from localspec.engine.settings import SamplingSettings
from localspec.engine.speculative import Loop
from tests.kit.ggufs import syn

GREEDY = SamplingSettings(temperature=0.0)


@cache
def model(name: str) -> Model:
    """A tiny model, loaded once per test run."""
    return load_model(syn(name))


def exact_context(
    name: str, *, n_ctx: int = 256, k_max: int = 16, n_batch: int = 64, n_ubatch: int | None = None
) -> Context:
    """A fresh context in the EXACT profile, with native snapshots where the model has them."""
    chosen = model(name)
    return Context(
        chosen,
        ContextSettings(
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_ubatch=n_ubatch or n_batch,
            n_outputs_max=k_max + 1,
            n_rs_seq=k_max if chosen.recurrent else 0,
            kv=("f32", "f32"),
            flash_attn="off",
            threads=1,
        ),
    )


def ids(values: Sequence[int]) -> Ids:
    return np.array(values, np.int32)


def random_prompt(seed: int, length: int, name: str = "syn") -> list[int]:
    """Ids of ordinary text tokens."""
    vocabulary = model(name).vocabulary
    usable = [i for i in range(vocabulary.n_vocab) if not vocabulary.is_control(i) and vocabulary.piece(i)]
    return [int(i) for i in np.random.default_rng(seed).choice(usable, length)]


@cache
def plain(name: str, prompt: tuple[int, ...], n: int) -> tuple[int, ...]:
    """The greedy continuation, one row at a time in a fresh context: the reference of every comparison."""
    context = exact_context(name, n_ctx=len(prompt) + n + 1)
    try:
        cells = context.sequence()
        out: list[int] = []
        for start in range(len(prompt) - 1):
            cells.decode(ids(prompt[start : start + 1]), 0)
        last = prompt[-1]
        while len(out) < n:
            last = int(cells.decode(ids([last]), 1)[0].argmax())
            out.append(last)
        return tuple(out)
    finally:
        context.close()


@dataclass
class Result:
    """What a reply did."""

    events: list[Event] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [e.id for e in self.events if isinstance(e, Token)]

    @property
    def rounds(self) -> list[Round]:
        return [e for e in self.events if isinstance(e, Round)]

    @property
    def notices(self) -> list[Notice]:
        return [e for e in self.events if isinstance(e, Notice)]

    @property
    def prefills(self) -> list[Prefill]:
        return [e for e in self.events if isinstance(e, Prefill)]

    @property
    def done(self) -> Done:
        last = self.events[-1]
        assert isinstance(last, Done), f"the stream ended with {last}"
        return last


class Bench:
    """A target with drafters that answers prompts like a session does, without text."""

    def __init__(
        self,
        target: str = "syn",
        *,
        n_ctx: int = 256,
        k_max: int = 16,
        n_batch: int = 64,
        n_ubatch: int | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.name = target
        self.k_max = k_max
        self.context = exact_context(target, n_ctx=n_ctx, k_max=k_max, n_batch=n_batch, n_ubatch=n_ubatch)
        self.cells: Cells = self.context.sequence(n_ctx=n_ctx)
        self.policy = policy
        self.drafters: list[Drafter] = []
        self.alarms = Alarms()
        self.health = Health()
        self.control = Control()

    def with_draft_model(
        self, name: str, *, n_ctx: int | None = None, n_batch: int = 64, masked: Sequence[int] = ()
    ) -> Bench:
        """Add a separate draft model."""
        n_ctx = n_ctx or self.cells.n_ctx
        context = exact_context(name, n_ctx=n_ctx, k_max=0, n_batch=n_batch)
        cells = context.sequence(n_ctx=n_ctx)
        self.drafters.append(ModelDrafter(cells, self.context.n_vocab, ids(masked), context.close))
        return self

    def with_drafter(self, drafter: Drafter) -> Bench:
        self.drafters.append(drafter)
        return self

    def loop(
        self,
        *,
        k: int = 4,
        max_tokens: int | None = 32,
        sampling: SamplingSettings = GREEDY,
        seed: int = 0,
        eog: frozenset[int] = frozenset(),
        rejection: bool = False,
        logprobs: int | None = None,
        prompt: Sequence[int] = (),
        require: bool = False,
        p_min: float = 0.0,
    ) -> Loop:
        """A reply's loop; its sampler has seen `prompt`."""
        vocabulary = self.context.model.vocabulary
        native = native_samplers(sampling, vocabulary, self.cells.n_ctx, seed, Candidates(vocabulary.n_vocab))
        sampler = Sampler(sampling, native, ids(prompt))
        draft = Sampler(sampling, draft_samplers(sampling, seed, Candidates(vocabulary.n_vocab)))
        self.control = Control()
        return Loop(
            self.cells,
            self.drafters,
            sampler,
            self.policy or FixedPolicy(k, p_min),
            Options(max_tokens, self.k_max, seed, eog, rejection, logprobs, require),
            self.control,
            draft_distribution=draft.distribution,
            alarms=self.alarms,
            health=self.health,
        )

    def reply(self, prompt: Sequence[int], **options: object) -> Result:
        """Run a reply to its end."""
        result = Result()
        for event in self.start(prompt, **options):
            result.events.append(event)
        return result

    def start(self, prompt: Sequence[int], **options: object) -> Iterator[Event]:
        return self.loop(prompt=prompt, **options).run(ids(prompt))  # type: ignore[arg-type]

    def close(self) -> None:
        for drafter in self.drafters:
            drafter.close()
        self.context.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TableDrafter:
    """Proposes from a known continuation, changed by `edit(position in the reply, right id) -> id`.

    Knowing the right text makes every acceptance pattern possible, whatever the model.
    """

    name = "draft"
    samples = False
    free = False

    def __init__(self, prompt_length: int, text: Sequence[int], edit: Callable[[int, int], int]) -> None:
        self._prompt_length = prompt_length
        self._text = text
        self._edit = edit
        self.commits: list[int] = []
        self.resets = 0

    def reusable(self, prompt: Ids, n: int) -> int:
        return n

    def rewind(self, n: int) -> None:
        pass

    def reset(self) -> None:
        self.resets += 1

    def begin(self, history: History) -> None:
        pass

    def observe(self, tokens: Tokens, start: int) -> None:
        pass

    def propose(self, history: History, k: int, more: More, sampling: DraftSampling | None) -> Draft:
        at = len(history) - self._prompt_length
        right = self._text[at : at + k]
        tokens = [self._edit(at + i, id) for i, id in enumerate(right)]
        return Draft(tokens, [0.9] * len(tokens))

    def commit(self, history: History, accepted: int) -> None:
        self.commits.append(accepted)

    def close(self) -> None:
        pass


def alien(n_vocab: int) -> Callable[[int, int], int]:
    """An edit that is wrong everywhere."""
    return lambda _, id: (id + 1) % n_vocab


@contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    """Replace an attribute for the length of a block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
