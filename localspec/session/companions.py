"""Turns a pair's companion files into drafters: verdict first, then weights, then a context of its own.

A companion that cannot draft leaves the pair usable; its reason is shown wherever speculation is named.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from localspec.budget.shape import mtp_outputs
from localspec.engine.backend.context import Context, ContextSettings
from localspec.engine.backend.features import (
    LAYER_INPUT_ARCHITECTURES,
    FeatureSource,
    LayerCapture,
    LayerInputs,
    NextnRows,
    target_layers,
)
from localspec.engine.backend.model import Model, ModelSettings, load_model
from localspec.engine.backend.sequence import Sequence
from localspec.engine.drafters.assistant import AssistantDrafter
from localspec.engine.drafters.base import Drafter
from localspec.engine.drafters.chained import ChainedDrafter
from localspec.engine.drafters.dflash import DFlashDrafter
from localspec.engine.drafters.features import FeatureDrafter
from localspec.engine.drafters.head_context import BlockCells, PairCells
from localspec.engine.drafters.model import ModelDrafter
from localspec.engine.events import Event, Loading, Notice
from localspec.engine.settings import KvType
from localspec.errors import EngineError, LocalspecError, PairingError
from localspec.header import Header, read_header
from localspec.interfaces import Companion, DraftKind, PairFiles
from localspec.pairing import Verdict, verdict
from localspec.pairs import DRAFT_KINDS
from localspec.session.blocks import block_format
from localspec.session.medusa import load_medusa
from localspec.session.reach import check_reach, draft_device

if TYPE_CHECKING:
    from localspec.engine.backend.cancel import CancelFlag
    from localspec.session.loading import LoadedPair

Notify = Callable[[Event], None]
Built = tuple[tuple[Drafter, ...], str]
"""A companion's drafters, one per slot or a single one, and the name of its model."""
HEAD_BATCH = 128
"""Rows of one decode of a head's context. Those of EAGLE-3 and DFlash have an encoder, and for such models
llama.cpp reserves an output for every row whatever it is asked for."""


def add_companion(pair: LoadedPair, companion: Companion, notify: Notify) -> None:
    """Load one drafter, or note why it cannot draft.

    Raises:
        LocalspecError: the load was cancelled.
    """
    if companion.kind in pair.drafters:
        pair.refused.append(f"`{companion.path.name}` is the second `{companion.kind}` of the pair")
        return
    try:
        drafters, name = _BUILDERS[companion.kind](pair, companion, notify)
    except LocalspecError as error:
        if pair.cancel.is_set:
            raise
        pair.refused.append(error.message)
    else:
        pair.drafters[companion.kind] = drafters
        pair.draft_names.append(name)


def warn_of_coarse_cache(kv: tuple[KvType, KvType], notify: Notify) -> None:
    """Drafters suffer from a quantised cache far more than targets do, down to no acceptance at all."""
    coarse = [kind for kind in kv if kind not in ("f32", "f16", "bf16")]
    if coarse:
        notify(Notice("info", f"a draft KV cache of {coarse[0]} lowers the acceptance; f16 does not"))


def load_weights(path: Path, role: str, settings: ModelSettings, notify: Notify, cancel: CancelFlag) -> Model:
    """Read a model, reporting progress in steps of a percent."""
    what = f"{role} {path.stem}"
    last = 0.0

    def progress(fraction: float) -> None:
        nonlocal last
        if fraction - last >= 0.01 or fraction >= 1.0:
            last = fraction
            notify(Loading(what, fraction))

    notify(Loading(what, 0.0))
    return load_model(path, settings, progress=progress, cancel=cancel)


def judged(pair: LoadedPair, companion: Companion, notify: Notify) -> Verdict:
    """What the two headers say; what will cost acceptance without forbidding the pair is notified.

    Raises:
        PairingError: the companion does not belong to the target, or is something else than was said:
            llama.cpp would abort where one kind is driven like another.
    """
    found = verdict(read_header(pair.files.target), read_header(companion.path))
    found.raise_if_refused()
    if DRAFT_KINDS.get(found.kind) != companion.kind:
        raise PairingError(f"`{companion.path.name}` is no `{companion.kind}` file but `{found.kind}`")
    for warning in found.warnings:
        notify(Notice("info", f"`{companion.path.name}`: {warning}"))
    return found


def capture_for(files: PairFiles, model: Model) -> LayerCapture | None:
    """A graph callback that reads layer inputs, when a companion needs them and the target hides them."""
    if model.architecture in LAYER_INPUT_ARCHITECTURES:
        return None
    for companion in files.companions:
        if companion.kind in ("eagle3", "dflash"):
            layers = _layers_of(read_header(companion.path))
            return LayerCapture(layers, model.n_embd) if layers else None
    return None


def _layers_of(header: Header) -> list[int]:
    layers = header.get(f"{header.get('general.architecture')}.target_layers")
    return [int(layer) for layer in layers] if isinstance(layers, list | tuple) else []


def _draft_model(pair: LoadedPair, companion: Companion, notify: Notify) -> Built:
    """A separate model of the same vocabulary; each slot has a sequence in its context."""
    masked = np.array(judged(pair, companion, notify).masked_ids, np.int32)
    model = load_weights(companion.path, "draft", _placement(pair), notify, pair.cancel)
    slots = pair.settings.slots
    context, close = _draft_context(pair, model, batch=pair.settings.n_batch, outputs=slots, slots=slots)
    caches = pair.sequences(context)
    if not pair.dry:
        _warm_up(caches[0])
    # The first one frees what all of them live in.
    closes = [close, *(None for _ in caches[1:])]
    n_vocab = pair.model.n_vocab
    drafters = [
        ModelDrafter(cache, n_vocab, masked, each) for cache, each in zip(caches, closes, strict=True)
    ]
    return tuple(drafters), model.name


def _eagle3(pair: LoadedPair, companion: Companion, notify: Notify) -> Built:
    judged(pair, companion, notify)
    check_reach(pair, companion.path)
    model = load_weights(companion.path, "EAGLE-3 head", _placement(pair), notify, pair.cancel)
    context, close = _head_context(pair, model)
    try:
        features = _layer_features(pair, "eagle3", target_layers(context))
        cells = PairCells(context, close, features=features.width)
    except LocalspecError:
        close()
        raise
    return (FeatureDrafter("eagle3", cells, features, pair.model.n_vocab, offset=0),), model.name


def _head_context(pair: LoadedPair, model: Model) -> tuple[Context, Callable[[], None]]:
    """A context for a model that borrows the target's matrices, whose ids must then be the target's.

    Raises:
        PairingError: they are not; the file did not say so.
    """
    if model.n_vocab != pair.model.n_vocab:
        model.close()
        raise PairingError(
            f"`{model.path.name}` has a vocabulary of {model.n_vocab} tokens, the target's has "
            f"{pair.model.n_vocab}"
        )
    return _draft_context(pair, model, batch=HEAD_BATCH, outputs=HEAD_BATCH, shares=True)


def _layer_features(pair: LoadedPair, kind: DraftKind, layers: tuple[int, ...]) -> FeatureSource:
    capture = pair.capture
    if capture is None:
        source = LayerInputs(pair.context, layers)
        return pair.hold(kind, source.read, source.width) or source
    if capture.taken or capture.layers != layers:
        raise PairingError(
            f"`{pair.model.architecture}` targets hide their layers: only one learned drafter can read them"
        )
    capture.taken = True
    return pair.hold(kind, capture.read, capture.width) or capture


def _dflash(pair: LoadedPair, companion: Companion, notify: Notify) -> Built:
    judged(pair, companion, notify)
    check_reach(pair, companion.path)
    model = load_weights(companion.path, "DFlash drafter", _placement(pair), notify, pair.cancel)
    context, close = _head_context(pair, model)
    try:
        form = block_format(read_header(companion.path), model.vocabulary.mask)
        features = _layer_features(pair, "dflash", target_layers(context))
        cells = BlockCells(context, close, form, features=features.width, n_vocab=pair.model.n_vocab)
    except LocalspecError:
        close()
        raise
    return (DFlashDrafter(cells, features),), model.name


def _mtp(pair: LoadedPair, companion: Companion, notify: Notify) -> Built:
    """NextN layers inside the target's file or in a sidecar, or an assistant on the target's cache."""
    assistant = False
    if companion.path == pair.files.target:
        model, owned = pair.model, False
        if not model.n_layer_nextn:
            raise PairingError(f"`{companion.path.name}` has no MTP layers that this llama.cpp build reads")
    else:
        assistant = judged(pair, companion, notify).kind == "gemma4-assistant"
        if assistant:
            check_reach(pair, companion.path, cache=True)
        placement = _placement(pair, load_mtp=True)
        model, owned = load_weights(companion.path, "MTP layers", placement, notify, pair.cancel), True
    if model.n_embd_out != pair.model.n_embd_out:
        if owned:
            model.close()
        raise PairingError(
            f"`{companion.path.name}` works on hidden states of {model.n_embd_out}, the target's have "
            f"{pair.model.n_embd_out}"
        )
    outputs = mtp_outputs(pair.settings.k_max, model.n_layer_nextn, assistant=assistant)
    batch = max(min(HEAD_BATCH, pair.settings.n_batch), outputs)
    if assistant and pair.settings.slots > 1:
        model.close()
        raise PairingError(
            f"`{companion.path.name}` reads the target's own cache, which works with one slot only",
            hint="use `--slots 1`",
        )
    # An assistant reads the target's cells as they are stored.
    kv = pair.settings.kv if assistant else None
    context, close = _draft_context(
        pair, model, batch=batch, outputs=outputs, shares=True, mtp=True, owned=owned, kv=kv
    )
    try:
        source = NextnRows(pair.context)
        features = pair.hold("mtp", source.read, source.width) or source
        if assistant:
            steps = PairCells(context, close, features=None)
            return (AssistantDrafter("mtp", steps, features, pair.model.n_vocab),), model.name
        cells = PairCells(context, close, features=None, n_layers=model.n_layer_nextn)
    except LocalspecError:
        close()
        raise
    if cells.n_layers > 1:
        return (ChainedDrafter("mtp", cells, features, pair.model.n_vocab),), model.name
    return (FeatureDrafter("mtp", cells, features, pair.model.n_vocab, offset=1),), model.name


def _medusa(pair: LoadedPair, companion: Companion, notify: Notify) -> Built:
    judged(pair, companion, notify)
    notify(Loading(f"Medusa heads {companion.path.stem}", None))
    drafter, name = load_medusa(pair, companion.path)
    return (drafter,), name


_BUILDERS: dict[str, Callable[[LoadedPair, Companion, Notify], Built]] = {
    "draft": _draft_model,
    "eagle3": _eagle3,
    "mtp": _mtp,
    "dflash": _dflash,
    "medusa": _medusa,
}


def _placement(pair: LoadedPair, *, load_mtp: bool = False) -> ModelSettings:
    settings = pair.settings
    return ModelSettings(
        gpu_layers=-1 if settings.draft_gpu_layers is None else settings.draft_gpu_layers,
        mmap=settings.mmap,
        mlock=settings.mlock,
        device=draft_device(settings),
        load_mtp=load_mtp,
        no_alloc=pair.dry,
    )


def _draft_context(
    pair: LoadedPair,
    model: Model,
    *,
    batch: int,
    outputs: int = 1,
    shares: bool = False,
    slots: int = 1,
    mtp: bool = False,
    owned: bool = True,
    kv: tuple[KvType, KvType] | None = None,
) -> tuple[Context, Callable[[], None]]:
    """A context for a draft model and the function that frees both.

    Args:
        shares: the draft uses tensors of the target.
        slots: sequences; each is as long as the target's.
        owned: the model belongs to the draft (else it is the target's own).
        kv: types of the cache; None = what is asked for drafts.
    """
    settings = pair.settings
    assert settings.n_ctx is not None and settings.threads is not None
    try:
        context = Context(
            model,
            ContextSettings(
                n_ctx=settings.n_ctx * slots,
                n_batch=batch,
                n_ubatch=min(batch, settings.n_ubatch),
                n_outputs_max=outputs,
                n_seq_max=slots,
                kv=kv or settings.draft_kv,
                flash_attn=settings.flash_attn,
                threads=settings.threads,
                mtp=mtp,
            ),
            cancel=pair.cancel,
            other=pair.context if shares else None,
        )
    except EngineError:
        if owned:
            model.close()
        raise
    if pair.passes is not None:
        context.caller = pair.passes.call
    pair.draft_contexts.append(context)

    def close() -> None:
        if context in pair.draft_contexts:
            pair.draft_contexts.remove(context)
        context.close()
        if owned:
            model.close()

    return context, close


def _warm_up(cache: Sequence) -> None:
    """One token through a fresh context: the first decode sets kernels up and would skew statistics."""
    cache.decode(np.zeros(1, np.int32), 1)
    cache.truncate(0)
