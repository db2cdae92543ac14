"""A loaded pair and its conversation: requests in, event streams out, one reply at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from localspec.engine.adapt import AdaptivePolicy
from localspec.engine.alarms import Alarms
from localspec.engine.backend.cancel import CancelFlag
from localspec.engine.backend.devices import devices
from localspec.engine.backend.library import build_description
from localspec.engine.backend.samplers import Candidates, draft_samplers, native_samplers
from localspec.engine.control import Control, Options
from localspec.engine.drafters.base import Drafter, Ids
from localspec.engine.drafters.ngram import NgramDrafter
from localspec.engine.events import Event, Notice
from localspec.engine.policy import FixedPolicy, Policy
from localspec.engine.rule import RuleChoice
from localspec.engine.sampling import Sampler
from localspec.engine.settings import LoadSettings, Method, Request, SamplingSettings
from localspec.engine.speculative import Loop
from localspec.errors import EngineError, ModelFileError, UsageError
from localspec.interfaces import PairFiles, SessionInfo
from localspec.session.loading import LoadedPair, Notify, load_pair
from localspec.session.memory import memory_items
from localspec.session.prompting import Prompter
from localspec.session.reply import SessionReply


def open_session(files: PairFiles, load: LoadSettings, notify: Notify | None = None) -> Session:
    """Load a pair into this process.

    Args:
        notify: gets `Loading` and `Notice` events while loading.

    Raises:
        ModelFileError: the target cannot be read.
        UsageError: a setting is impossible.
        EngineError: not enough memory, or the load was cancelled.
    """
    return Session(files, load, notify or _ignore)


def _ignore(event: Event) -> None:
    pass


class Session:
    """See `interfaces.SessionLike`. Not re-entrant: a reply must end before the next one starts."""

    def __init__(self, files: PairFiles, load: LoadSettings, notify: Notify) -> None:
        self._cancel_flag = CancelFlag()
        self._pair: LoadedPair | None = load_pair(files, load, notify, self._cancel_flag)
        pair = self._pair
        if not pair.model.vocabulary.has_text:
            pair.close()
            raise ModelFileError(f"`{files.target}` has no tokenizer, so it cannot be a target")
        self._prompter = Prompter(pair.model.vocabulary)
        self._candidates = Candidates(pair.model.n_vocab)
        self._draft_candidates = Candidates(pair.model.n_vocab)
        self._policies: dict[tuple[object, ...], AdaptivePolicy] = {}
        self._alarms = Alarms(frozenset(c.kind for c in files.companions if c.path == files.target))
        self._rules: dict[tuple[object, ...], RuleChoice] = {}
        self._busy = threading.Lock()
        self._active: Control | None = None
        self.info = self._describe(pair)

    def _describe(self, pair: LoadedPair) -> SessionInfo:
        methods: list[Method] = ["auto", "off", "ngram", *pair.drafters]  # type: ignore[list-item]
        return SessionInfo(
            pair=pair.files.name,
            target=pair.model.name,
            drafts=tuple(pair.draft_names),
            methods=tuple(methods),
            n_ctx=pair.slots.n_ctx,
            n_vocab=pair.model.n_vocab,
            architecture=pair.model.architecture,
            effective=pair.settings,
            memory=memory_items(pair),
            devices=devices(),
            off_reason="; ".join(pair.refused) or None,
            build=build_description(),
            chat_template=self._prompter.template_source,
        )

    def cancel(self) -> None:
        """End the running reply from any thread; without one, nothing happens."""
        active = self._active
        if active is not None:
            active.cancel()

    def prompt_ids(self, request: Request) -> list[int]:
        """Ids of the prompt that `reply` would start from now.

        Raises:
            UsageError: the request's prompt is wrong, as in `reply`.
        """
        self._open_pair()
        return self._prompter.encode(request).ids

    def reply(self, request: Request) -> SessionReply:
        """Start a reply; see `interfaces.SessionLike.reply`."""
        pair = self._open_pair()
        if not self._busy.acquire(blocking=False):
            raise EngineError("the session is already producing a reply")
        try:
            return self._start(pair, request)
        except BaseException:
            self._busy.release()
            raise

    def _start(self, pair: LoadedPair, request: Request) -> SessionReply:
        prompt = self._prompter.encode(request)
        drafters = self._drafters(pair, request)
        seed = request.sampling.seed if request.sampling.seed is not None else _random_seed()
        rejection = self._uses_rejection(request, drafters)
        settings, unenforced = self._prompter.constrained(request.sampling)
        options = self._options(pair, request, seed, rejection)
        ids = np.array(prompt.ids, np.int32)
        native = native_samplers(settings, pair.model.vocabulary, pair.slots.n_ctx, seed, self._candidates)
        sampler = Sampler(settings, native, ids)
        draft_sampler = self._draft_sampler(settings, seed) if rejection else None
        self._cancel_flag.clear()
        control = Control(self._cancel_flag.set, self._cancel_flag.clear)
        loop = Loop(
            pair.slots.take(request.cache_key, ids),
            drafters,
            sampler,
            self._policy(request, drafters),
            options,
            control,
            draft_distribution=draft_sampler.distribution if draft_sampler is not None else None,
            alarms=self._alarms,
            rule=self._rule(request, drafters),
        )
        self._active = control

        def on_end(reply: list[int]) -> None:
            self._prompter.remember(request, prompt, reply)
            sampler.close()
            if draft_sampler is not None:
                draft_sampler.close()
            self._active = None
            self._busy.release()

        try:
            events = loop.run(ids, prompt.n_stable)
        except BaseException:
            sampler.close()
            self._active = None
            raise
        stream = self._prompter.stream(request, prompt)
        opening = self._opening(pair, request, (*prompt.notes, *unenforced))
        return SessionReply(events, stream, control, pair.model.vocabulary.piece, opening, on_end)

    # -- choices ----------------------------------------------------------------------------------

    def _drafters(self, pair: LoadedPair, request: Request) -> list[Drafter]:
        """The drafters a request may use, in order of preference.

        Raises:
            UsageError: the method is not available for this pair.
        """
        method, k = request.speculation.method, request.speculation.k
        if method == "off" or k == 0:
            return []
        ngram = NgramDrafter(self._prediction(pair, request))
        if method == "auto":
            return [ngram, *pair.drafters.values()]
        if method == "ngram":
            return [ngram]
        if method in pair.drafters:
            return [pair.drafters[method]]
        reason = "; ".join(pair.refused) or f"`{pair.files.name}` has no companion of this kind"
        if request.speculation.require:
            raise EngineError(f"method `{method}` is not available: {reason}")
        known = ", ".join(self.info.methods)
        raise UsageError(f"method `{method}` is not available: {reason}", hint=f"available here: {known}")

    def _prediction(self, pair: LoadedPair, request: Request) -> Ids | None:
        if not request.prediction:
            return None
        ids = pair.model.vocabulary.tokenize(request.prediction, special=False, add_special=False)
        return np.array(ids, np.int32)

    def _uses_rejection(self, request: Request, drafters: list[Drafter]) -> bool:
        rule, sampling = request.speculation.verify, request.sampling
        if sampling.greedy or not any(drafter.samples for drafter in drafters):
            return False
        if rule == "auto" and sampling.seed is None:
            return self._rule(request, drafters).rejection_next()
        return rule == "rejection"

    def _rule(self, request: Request, drafters: list[Drafter]) -> RuleChoice:
        """What was learned of these drafters under this truncation."""
        sampling = request.sampling
        key = (tuple(d.name for d in drafters), sampling.temperature, sampling.top_k, sampling.top_p)
        return self._rules.setdefault(key, RuleChoice())

    def _draft_sampler(self, settings: SamplingSettings, seed: int) -> Sampler:
        plain = replace(settings, xtc_probability=0.0, grammar=None, json_schema=None)
        return Sampler(plain, draft_samplers(plain, seed, self._draft_candidates))

    def _policy(self, request: Request, drafters: list[Drafter]) -> Policy:
        asked = request.speculation
        if asked.k is not None:
            return FixedPolicy(asked.k, asked.p_min)
        key = (tuple(d.name for d in drafters), asked.p_min, request.sampling.greedy, asked.verify)
        if key not in self._policies:
            self._policies[key] = AdaptivePolicy(self._open_pair().verify, p_min=asked.p_min)
        policy = self._policies[key]
        policy.begin()
        return policy

    def _options(self, pair: LoadedPair, request: Request, seed: int, rejection: bool) -> Options:
        k_max, k = pair.settings.k_max, request.speculation.k
        if k is not None and k > k_max:
            raise UsageError(
                f"k = {k}, but the pair was loaded for drafts of at most {k_max}",
                hint="reload it with that `--k`",
            )
        if request.max_tokens is not None and request.max_tokens < 0:
            raise UsageError(f"max_tokens {request.max_tokens} is negative")
        return Options(
            max_tokens=request.max_tokens,
            k_max=k_max,
            seed=seed,
            eog=frozenset() if request.ignore_eog else self._prompter.end_ids,
            rejection=rejection,
            logprobs=request.logprobs,
            require=request.speculation.require,
        )

    def _opening(self, pair: LoadedPair, request: Request, notes: tuple[str, ...]) -> tuple[Notice, ...]:
        notices = [Notice("info", text) for text in notes]
        if request.speculation.method == "auto" and pair.files.companions and not pair.drafters:
            notices.append(Notice("off", "; ".join(pair.refused)))
        return tuple(notices)

    def _open_pair(self) -> LoadedPair:
        if self._pair is None:
            raise EngineError("the session is closed")
        return self._pair

    def close(self) -> None:
        """Free everything; idempotent."""
        if self._pair is not None:
            pair, self._pair = self._pair, None
            pair.close()


def _random_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")


SessionFactory = Callable[[PairFiles, LoadSettings, Notify], Session]
