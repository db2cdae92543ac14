"""A loaded pair and its conversations: requests in, event streams out, one reply per slot at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from localspec.engine.adapt import AdaptivePolicy, Start
from localspec.engine.alarms import Alarms
from localspec.engine.backend.cancel import CancelFlag
from localspec.engine.backend.devices import devices
from localspec.engine.backend.library import build_description
from localspec.engine.backend.passes import Passes, SharedSequence
from localspec.engine.backend.samplers import draft_samplers, native_samplers
from localspec.engine.control import Control, Options
from localspec.engine.drafters.base import Drafter, Ids, common_prefix
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
from localspec.session.place import Place, places_of
from localspec.session.prompting import Prompter
from localspec.session.reply import SessionReply
from localspec.session.tuning import expect_acceptance, keep_acceptance, with_tuned


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
    """See `interfaces.SessionLike`. Each slot answers one request at a time.

    With several slots, replies may be started and consumed in different threads; their decodes are merged
    (`engine.backend.passes`). A drafter that follows one conversation serves one of them at a time.
    """

    def __init__(self, files: PairFiles, load: LoadSettings, notify: Notify) -> None:
        self._cancel_flag = CancelFlag()
        self._passes = Passes(self._cancel_flag) if load.slots > 1 else None
        try:
            pair = self._load(files, load, notify)
        except BaseException:
            self._close_passes()
            raise
        self._pair: LoadedPair | None = pair
        self._places: dict[int, Place] = {}
        if not pair.model.vocabulary.has_text:
            self.close()
            raise ModelFileError(f"`{files.target}` has no tokenizer, so it cannot be a target")
        self._prompter = Prompter(pair.model.vocabulary)
        self._places = places_of(pair)
        self._followed: dict[str, Place] = {}
        """Where the drafters are in use that follow one conversation, by kind."""
        self._starting = threading.Lock()
        self._lock = threading.Lock()
        """Guards slots, places and the turns that are remembered."""
        self.info = with_tuned(files, self._describe(pair), notify)
        expect_acceptance(files, self.info, self._alarms(), notify)

    def _alarms(self) -> list[Alarms]:
        return [place.alarms for place in self._places.values()]

    def _load(self, files: PairFiles, load: LoadSettings, notify: Notify) -> LoadedPair:
        if self._passes is None:
            return load_pair(files, load, notify, self._cancel_flag)
        passes = self._passes
        return passes.call(lambda: load_pair(files, load, notify, self._cancel_flag, passes=passes))

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
        """End the running replies from any thread; without one, nothing happens."""
        for place in self._places.values():
            control = place.control
            if control is not None:
                control.cancel()

    def prompt_ids(self, request: Request) -> list[int]:
        """Ids of the prompt that `reply` would start from now.

        Raises:
            UsageError: the request's prompt is wrong, as in `reply`.
        """
        self._open_pair()
        with self._starting:
            return self._prompter.encode(request).ids

    def reply(self, request: Request) -> SessionReply:
        """Start a reply; see `interfaces.SessionLike.reply`."""
        pair = self._open_pair()
        with self._starting:  # releasing a slot needs no start, so one that is free stays free here
            if pair.slots.all_taken:
                n = len(pair.slots)
                what = "a reply" if n == 1 else f"{n} replies"
                raise EngineError(f"the session is already producing {what}")
            return self._start(pair, request)

    def _start(self, pair: LoadedPair, request: Request) -> SessionReply:
        prompt = self._prompter.encode(request)
        ids = np.array(prompt.ids, np.int32)
        with self._lock:
            place = self._places[pair.slots.choose(request.cache_key, ids).seq_id]
        held = place.slot.ids[: place.slot.n_past]
        place.health.begin(request.cache_key, continued=0 < len(held) == common_prefix(held, ids))
        drafters, busy = self._drafters(pair, request, place)
        seed = request.sampling.seed if request.sampling.seed is not None else _random_seed()
        rejection = self._uses_rejection(request, drafters, place)
        settings, unenforced = self._prompter.constrained(request.sampling)
        options = self._options(pair, request, seed, rejection)
        stream = self._prompter.stream(request, prompt)
        control = self._control(place)
        native = native_samplers(settings, pair.model.vocabulary, pair.slots.n_ctx, seed, place.candidates)
        with ExitStack() as undo:
            sampler = Sampler(settings, native, ids)
            undo.callback(sampler.close)
            draft_sampler = self._draft_sampler(settings, seed, place) if rejection else None
            if draft_sampler is not None:
                undo.callback(draft_sampler.close)
            loop = Loop(
                place.slot,
                drafters,
                sampler,
                self._policy(request, drafters, place),
                options,
                control,
                draft_distribution=draft_sampler.distribution if draft_sampler is not None else None,
                alarms=place.alarms,
                health=place.health,
                rule=self._rule(request, drafters, place),
            )
            events = loop.run(ids, prompt.n_stable)
            closing = undo.pop_all()
        self._occupy(pair, place, request, drafters, control)

        def on_end(reply: list[int]) -> None:
            closing.close()
            with self._lock:
                self._prompter.remember(request, prompt, reply)
                self._leave(pair, place)

        opening = self._opening(pair, request, (*prompt.notes, *unenforced, *busy))
        return SessionReply(events, stream, control, pair.model.vocabulary.piece, opening, on_end)

    def _control(self, place: Place) -> Control:
        """A cancel also stops the decode that runs, unless others share it, and those that follow."""
        if isinstance(place.slot, SharedSequence):
            return Control(place.slot.interrupt, place.slot.resume)
        self._cancel_flag.clear()
        return Control(self._cancel_flag.set, self._cancel_flag.clear)

    def _occupy(
        self, pair: LoadedPair, place: Place, request: Request, drafters: list[Drafter], control: Control
    ) -> None:
        """The slot, and the drafters that follow one conversation, are this reply's from now on."""
        with self._lock:
            pair.slots.take(place.slot, request.cache_key)
            place.control = control
            mine = [drafter.name for drafter in drafters if drafter.name in pair.held]
            self._followed |= dict.fromkeys(mine, place)
        if mine and isinstance(place.slot, SharedSequence):
            held = [pair.held[name] for name in mine]

            def read(total: int, first: int, rows: int) -> None:
                for each in held:
                    each.grab(total, first, rows)

            place.slot.read = read

    def _leave(self, pair: LoadedPair, place: Place) -> None:
        """The reply is over; the caller holds the lock."""
        if place.control is not None:
            place.control.retire()
        if isinstance(place.slot, SharedSequence):
            place.slot.leave()
        place.control = None
        self._followed = {kind: where for kind, where in self._followed.items() if where is not place}
        pair.slots.release(place.slot)

    # -- choices ----------------------------------------------------------------------------------

    def _drafters(
        self, pair: LoadedPair, request: Request, place: Place
    ) -> tuple[list[Drafter], tuple[str, ...]]:
        """The drafters a request may use, in order of preference, and what is said of those in use.

        Raises:
            EngineError: the one that the request requires follows another request.
            UsageError: the method is not available for this pair.
        """
        method, k = request.speculation.method, request.speculation.k
        if method == "off" or k == 0:
            return [], ()
        ngram = NgramDrafter(self._prediction(pair, request))
        wanted = {"auto": list(pair.drafters), "ngram": []}.get(method, [method])
        if all(kind in pair.drafters for kind in wanted):
            busy = [kind for kind in wanted if kind in self._followed]
            if busy and request.speculation.require and method != "auto":
                raise EngineError(f"the `{method}` drafter follows another request now")
            found = [pair.drafter(kind, place.slot.seq_id) for kind in wanted if kind not in busy]
            if method in ("auto", "ngram") or busy:
                found = [ngram, *found]
            tuned = self.info.start_of(request.speculation)
            if tuned is not None:
                found.sort(key=lambda drafter: drafter.name != tuned.method)
            return found, tuple(
                f"the `{kind}` drafter follows another request; this one drafts without it" for kind in busy
            )
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

    def _uses_rejection(self, request: Request, drafters: list[Drafter], place: Place) -> bool:
        rule, sampling = request.speculation.verify, request.sampling
        if sampling.greedy or not any(drafter.samples for drafter in drafters):
            return False
        if rule == "auto" and sampling.seed is None:
            return self._rule(request, drafters, place).rejection_next()
        return rule == "rejection"

    def _rule(self, request: Request, drafters: list[Drafter], place: Place) -> RuleChoice:
        """What was learned of these drafters under this truncation and temperature."""
        sampling = request.sampling
        truncation = (sampling.top_k, sampling.typical_p, sampling.top_p, sampling.min_p)
        key = (tuple(d.name for d in drafters), sampling.temperature, *truncation)
        return place.rules.setdefault(key, RuleChoice())

    def _draft_sampler(self, settings: SamplingSettings, seed: int, place: Place) -> Sampler:
        plain = replace(settings, xtc_probability=0.0, grammar=None, json_schema=None)
        return Sampler(plain, draft_samplers(plain, seed, place.draft_candidates))

    def _policy(self, request: Request, drafters: list[Drafter], place: Place) -> Policy:
        asked = request.speculation
        if asked.k is not None:
            return FixedPolicy(asked.k, asked.p_min)
        tuned = self.info.start_of(asked)
        start = Start(tuned.method, tuned.k) if tuned is not None else None
        p_min = asked.p_min or (tuned.p_min if tuned is not None else 0.0)
        key = (tuple(d.name for d in drafters), p_min, request.sampling.greedy, asked.verify, start)
        if key not in place.policies:
            place.policies[key] = AdaptivePolicy(place.costs, p_min=p_min, start=start)
        policy = place.policies[key]
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
        tuned = self.info.start_of(request.speculation)
        if tuned is not None and tuned.method == "off":
            notices.append(Notice("paused", "plain decoding was the fastest here when this pair was tuned"))
        return tuple(notices)

    def _open_pair(self) -> LoadedPair:
        if self._pair is None:
            raise EngineError("the session is closed")
        return self._pair

    def close(self) -> None:
        """Free everything; idempotent."""
        if self._pair is not None:
            pair, self._pair = self._pair, None
            if self._places:
                keep_acceptance(pair.files, self.info, self._alarms())
            self._close_passes()
            pair.close()

    def _close_passes(self) -> None:
        if self._passes is not None:
            self._passes.close()


def _random_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")


SessionFactory = Callable[[PairFiles, LoadSettings, Notify], Session]
