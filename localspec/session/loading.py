"""Puts a pair into memory: target, drafters' models, contexts sized for verification, and their costs.

What cannot speculate is decided here, at load, and said in one sentence; it never waits for the first
request to fail.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from localspec.engine.backend.cancel import CancelFlag
from localspec.engine.backend.context import Context, ContextSettings, Sequence
from localspec.engine.backend.devices import add_rpc_server
from localspec.engine.backend.model import Model, ModelSettings, load_model
from localspec.engine.costs import VerifyCosts
from localspec.engine.drafters.base import Drafter, Ids
from localspec.engine.drafters.model import ModelDrafter
from localspec.engine.events import Event, Loading, Notice
from localspec.engine.settings import LoadSettings
from localspec.errors import EngineError, LocalspecError, UsageError
from localspec.interfaces import Companion, PairFiles

DEFAULT_CTX = 8192
"""Context when none is asked for, unless the model was trained for less."""
CALIBRATION_S = 0.5
"""Most time spent on measuring decode costs at load."""
CALIBRATED_ROWS = (1, 2, 4, 8, 16)

Notify = Callable[[Event], None]


@dataclass(slots=True)
class LoadedPair:
    """Everything native that a session owns, closed in the right order."""

    files: PairFiles
    settings: LoadSettings
    """Effective: defaults filled in, too small values raised."""
    cancel: CancelFlag
    model: Model
    context: Context
    target: Sequence
    drafters: dict[str, Drafter] = field(default_factory=dict)
    draft_names: list[str] = field(default_factory=list)
    draft_contexts: list[Context] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Why a companion does not draft, one sentence each."""
    verify: VerifyCosts = field(default_factory=VerifyCosts)

    def close(self) -> None:
        """Free drafts before the target they may share tensors with; idempotent."""
        for drafter in self.drafters.values():
            drafter.close()
        self.drafters.clear()
        self.context.close()
        self.model.close()


def load_pair(files: PairFiles, load: LoadSettings, notify: Notify, cancel: CancelFlag) -> LoadedPair:
    """Load a target and whatever drafts for it.

    Raises:
        ModelFileError: the target's file is missing, unreadable, not GGUF or truncated.
        UsageError: a setting is impossible.
        EngineError: memory, or the load was cancelled.
    """
    for endpoint in load.rpc:
        add_rpc_server(endpoint)
    settings = effective_settings(load, notify)
    model = _load(files.target, "target", _model_settings(settings, files), notify, cancel)
    try:
        settings = replace(settings, n_ctx=_context_length(load.n_ctx, model))
        context = Context(model, _target_context(settings, model), cancel=cancel)
    except LocalspecError:
        model.close()
        raise
    pair = LoadedPair(files, settings, cancel, model, context, context.sequence())
    try:
        for companion in files.companions:
            _add_companion(pair, companion, notify)
        calibrate(pair.target, pair.verify, settings.k_max)
    except BaseException:
        pair.close()
        raise
    return pair


def effective_settings(load: LoadSettings, notify: Notify) -> LoadSettings:
    """Fill in what depends on the machine and raise batches that cannot hold a verification."""
    if load.k_max < 0:
        raise UsageError(f"k_max {load.k_max} is negative")
    need = load.k_max + 2  # one more than the rows: a recurrent target keeps its snapshots in one micro-batch
    sizes = {"n_batch": load.n_batch, "n_ubatch": load.n_ubatch}
    for name, size in sizes.items():
        if size < need:
            notify(Notice("raised", f"{name} {size} raised to {need} for drafts of {load.k_max}"))
            sizes[name] = need
    threads = load.threads or physical_cores()
    return replace(load, threads=threads, n_batch=sizes["n_batch"], n_ubatch=sizes["n_ubatch"])


def physical_cores() -> int:
    """Cores this process may use, hyper-threads not counted; at least 1."""
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:
        return max(1, (os.cpu_count() or 2) // 2)
    cores = set()
    for cpu in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(topology.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))


def _context_length(asked: int | None, model: Model) -> int:
    if asked is None:
        return min(model.n_ctx_train or DEFAULT_CTX, DEFAULT_CTX)
    if asked < 2:
        raise UsageError(f"a context of {asked} tokens is too small", hint="use at least `--ctx 2`")
    return asked


def _model_settings(settings: LoadSettings, files: PairFiles) -> ModelSettings:
    return ModelSettings(
        gpu_layers=-1 if settings.gpu_layers is None else settings.gpu_layers,
        mmap=settings.mmap,
        mlock=settings.mlock,
        device=settings.device,
        tensor_split=settings.tensor_split,
        n_cpu_moe=settings.n_cpu_moe,
    )


def _target_context(settings: LoadSettings, model: Model) -> ContextSettings:
    assert settings.n_ctx is not None and settings.threads is not None
    return ContextSettings(
        n_ctx=settings.n_ctx,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        n_outputs_max=settings.k_max + 1,
        n_rs_seq=settings.k_max if model.recurrent else 0,
        kv=settings.kv,
        flash_attn=settings.flash_attn,
        threads=settings.threads,
    )


def _load(path: Path, role: str, settings: ModelSettings, notify: Notify, cancel: CancelFlag) -> Model:
    what = f"{role} {path.stem}"
    last = -1.0

    def progress(fraction: float) -> None:
        nonlocal last
        if fraction - last >= 0.01 or fraction >= 1.0:
            last = fraction
            notify(Loading(what, fraction))

    notify(Loading(what, 0.0))
    return load_model(path, settings, progress=progress, cancel=cancel)


def _add_companion(pair: LoadedPair, companion: Companion, notify: Notify) -> None:
    """Load one drafter's model; a failure leaves the pair usable and says why."""
    try:
        drafter, name = _BUILDERS[companion.kind](pair, companion, notify)
    except KeyError:
        pair.refused.append(f"`{companion.kind}` drafts are not supported by this version")
    except LocalspecError as error:
        if pair.cancel.is_set:
            raise
        pair.refused.append(error.message)
    else:
        pair.drafters[companion.kind] = drafter
        pair.draft_names.append(name)


def _draft_model(pair: LoadedPair, companion: Companion, notify: Notify) -> tuple[Drafter, str]:
    """A separate model of the same vocabulary with its own context of the target's length."""
    masked = _masked_ids(pair.files.target, companion.path)
    settings = pair.settings
    assert settings.n_ctx is not None and settings.threads is not None
    placement = ModelSettings(
        gpu_layers=-1 if settings.draft_gpu_layers is None else settings.draft_gpu_layers,
        mmap=settings.mmap,
        mlock=settings.mlock,
        device=settings.draft_device,
    )
    model = _load(companion.path, "draft", placement, notify, pair.cancel)
    try:
        context = Context(
            model,
            ContextSettings(
                n_ctx=settings.n_ctx,
                n_batch=settings.n_batch,
                n_ubatch=settings.n_ubatch,
                kv=settings.draft_kv,
                flash_attn=settings.flash_attn,
                threads=settings.threads,
            ),
            cancel=pair.cancel,
        )
    except EngineError:
        model.close()
        raise

    def close() -> None:
        context.close()
        model.close()

    pair.draft_contexts.append(context)
    cache = context.sequence()
    _warm_up(cache)
    return ModelDrafter(cache, pair.model.n_vocab, masked, close), model.name


def _masked_ids(target: Path, draft: Path) -> Ids | None:
    """Ids whose text differs between the vocabularies.

    Raises:
        PairingError: the vocabularies do not match.
    """
    from localspec.header import read_header
    from localspec.pairing import verdict

    found = verdict(read_header(target), read_header(draft))
    found.raise_if_refused()
    return np.array(found.masked_ids, np.int32) if found.masked_ids else None


_BUILDERS = {"draft": _draft_model}


def _warm_up(cache: Sequence) -> None:
    """One token through a fresh context: the first decode sets kernels up and would skew statistics."""
    cache.decode(np.zeros(1, np.int32), 1)
    cache.truncate(0)


def calibrate(
    target: Sequence, costs: VerifyCosts, k_max: int, now: Callable[[], float] = time.perf_counter
) -> None:
    """Time decodes of a few row counts on an empty cache, within `CALIBRATION_S`.

    Each is run twice: the first run of a shape builds its graph.
    """
    deadline = now() + CALIBRATION_S
    for rows in (n for n in CALIBRATED_ROWS if n <= k_max + 1):
        if costs.known(rows):
            continue
        tokens = np.zeros(rows, np.int32)
        for attempt in range(3 if rows == 1 else 2):
            target.guard()
            before = now()
            target.decode(tokens, rows)
            took = now() - before
            target.truncate(0)
            if attempt:
                costs.observe(rows, 0, took)
            if now() + took > deadline and costs.known(1):
                return
