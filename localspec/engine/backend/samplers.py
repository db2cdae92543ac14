"""llama.cpp's samplers over candidate arrays that numpy owns."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.engine.backend.library import library
from localspec.engine.backend.model import ModelVocabulary
from localspec.engine.sampling import NativeSamplers, Touched
from localspec.engine.settings import SamplingSettings
from localspec.errors import EngineError, UsageError

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Candidates:
    """A `llama_token_data_array` with room for the whole vocabulary, filled anew for every use."""

    def __init__(self, n_vocab: int) -> None:
        api = library()
        memory = np.zeros(n_vocab, CANDIDATE)
        self.ids: NDArray[np.int32] = memory["id"]
        self.logits: NDArray[np.float32] = memory["logit"]
        self.array = api.llama_token_data_array()
        self.data = ctypes.cast(memory.ctypes.data, api.llama_token_data_p)
        self.reference = ctypes.byref(self.array)


class Chain:
    """An owned sampler chain; `accept` every emitted token and no other."""

    def __init__(self, samplers: list[Any]) -> None:
        api = library()
        self._handle: Any = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        self._apply = api.llama_sampler_apply
        self.length = len(samplers)
        for sampler in samplers:
            if not sampler:
                raise EngineError("llama.cpp could not create a sampler")
            api.llama_sampler_chain_add(self._handle, sampler)  # takes ownership

    def apply(
        self, room: Candidates, ids: NDArray[np.integer], logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Run `[n]` candidates through the samplers.

        Returns:
            (ids, logits) of those that are left, in any order: views of `room`, valid until its next use.
        """
        n, array = len(ids), room.array
        room.ids[:n] = ids
        room.logits[:n] = logits
        array.data = room.data
        array.size = n
        array.selected = -1
        array.sorted = False
        self._apply(self._handle, room.reference)
        n = array.size
        return room.ids[:n], room.logits[:n]

    def accept(self, id: int) -> None:
        library().llama_sampler_accept(self._handle, id)

    def close(self) -> None:
        if self._handle is not None:
            library().llama_sampler_free(self._handle)
            self._handle = None


def history_chain(settings: SamplingSettings, vocabulary: ModelVocabulary, n_ctx: int) -> Chain:
    """Samplers that change logits without dropping candidates: bias, penalties, DRY."""
    api, chain = library(), []
    bias = biases(settings, vocabulary)
    if bias:
        rows = (api.llama_logit_bias * len(bias))(*bias.items())
        chain.append(api.llama_sampler_init_logit_bias(vocabulary.n_vocab, len(bias), rows))
    if _penalised(settings):
        last_n = settings.repeat_last_n if settings.repeat_last_n >= 0 else n_ctx
        chain.append(
            api.llama_sampler_init_penalties(
                vocabulary.n_vocab, last_n, settings.repeat_penalty,
                settings.frequency_penalty, settings.presence_penalty,
            )
        )  # fmt: skip
    if settings.dry_multiplier > 0:
        chain.append(_dry(api, settings, vocabulary, n_ctx))
    return Chain(chain)


def biases(settings: SamplingSettings, vocabulary: ModelVocabulary) -> dict[int, float]:
    """What is added to which logit: the request's biases and the model's own bans, each id once.

    Raises:
        UsageError: an id is outside the vocabulary.
    """
    found: dict[int, float] = {}
    for id, value in (*settings.logit_bias, *((id, float("-inf")) for id in vocabulary.suppressed)):
        if not 0 <= id < vocabulary.n_vocab:
            raise UsageError(f"logit bias for token {id}, but the vocabulary has {vocabulary.n_vocab} ids")
        found[id] = found.get(id, 0.0) + value
    return found


def _penalised(settings: SamplingSettings) -> bool:
    changed = settings.repeat_penalty != 1.0 or settings.frequency_penalty or settings.presence_penalty
    return bool(changed and settings.repeat_last_n != 0)


def _dry(api: Any, settings: SamplingSettings, vocabulary: ModelVocabulary, n_ctx: int) -> Any:
    breakers = [text.encode() for text in settings.dry_sequence_breakers]
    array = (ctypes.c_char_p * len(breakers))(*breakers)
    last_n = settings.dry_penalty_last_n if settings.dry_penalty_last_n >= 0 else n_ctx
    return api.llama_sampler_init_dry(
        vocabulary._handle, settings.dry_multiplier, settings.dry_base,
        settings.dry_allowed_length, last_n, array, len(breakers),
    )  # fmt: skip


def needs_history(settings: SamplingSettings) -> bool:
    """Whether emitted and prompt tokens change the chain's output."""
    return _penalised(settings) or settings.dry_multiplier > 0


def truncation_chain(settings: SamplingSettings, seed: int) -> Chain:
    """Samplers that drop candidates, then the temperature, in llama.cpp's order."""
    api, chain = library(), []
    if settings.top_k > 0:
        chain.append(api.llama_sampler_init_top_k(settings.top_k))
    if settings.typical_p < 1.0:
        chain.append(api.llama_sampler_init_typical(settings.typical_p, 1))
    if settings.top_p < 1.0:
        chain.append(api.llama_sampler_init_top_p(settings.top_p, 1))
    if settings.min_p > 0.0:
        chain.append(api.llama_sampler_init_min_p(settings.min_p, 1))
    if settings.xtc_probability > 0.0:
        chain.append(
            api.llama_sampler_init_xtc(settings.xtc_probability, settings.xtc_threshold, 1, seed & 0xFFFFFFFF)
        )
    if settings.temperature not in (0.0, 1.0):
        chain.append(api.llama_sampler_init_temp(settings.temperature))
    return Chain(chain)


class Grammar:
    """A GBNF grammar that follows the reply.

    An illegal token accepted into it would throw a C++ exception through ctypes and end the process, so
    callers accept only tokens that `apply` left legal.
    """

    def __init__(self, text: str, vocabulary: ModelVocabulary) -> None:
        handle = library().llama_sampler_init_grammar(vocabulary._handle, text.encode(), b"root")
        if not handle:
            raise UsageError("the grammar cannot be parsed", hint="GBNF needs a rule called `root`")
        self._chain = Chain([handle])

    def apply(
        self, room: Candidates, ids: NDArray[np.integer], logits: NDArray[np.float32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The logit of every illegal candidate becomes -inf."""
        return self._chain.apply(room, ids, logits)

    def accept(self, id: int) -> None:
        self._chain.accept(id)

    def close(self) -> None:
        self._chain.close()


def native_samplers(
    settings: SamplingSettings, vocabulary: ModelVocabulary, n_ctx: int, seed: int, candidates: Candidates
) -> NativeSamplers:
    """All native parts of one request's chain over the target's rows.

    Raises:
        UsageError: a biased id is outside the vocabulary, or the grammar cannot be parsed.
    """
    grammar = Grammar(settings.grammar, vocabulary) if settings.grammar is not None else None
    return NativeSamplers(
        candidates,
        history_chain(settings, vocabulary, n_ctx),
        truncation_chain(settings, seed),
        grammar,
        needs_history=needs_history(settings),
        truncation_has_state=settings.xtc_probability > 0,
        touched=Touched(biases(settings, vocabulary)),
    )


def draft_samplers(settings: SamplingSettings, seed: int, candidates: Candidates) -> NativeSamplers:
    """The same truncation for a drafter's rows, without what the reply's text changes."""
    plain = replace(settings, xtc_probability=0.0)
    return NativeSamplers(
        candidates,
        Chain([]),
        truncation_chain(plain, seed),
        None,
        needs_history=False,
        truncation_has_state=False,
        touched=Touched(),
    )
