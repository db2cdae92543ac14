"""Puts a pair into memory: target, drafters' models, contexts sized for verification, and their costs.

What cannot speculate is decided here, at load, and said in one sentence; it never waits for the first
request to fail.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from localspec.budget.shape import row_bytes
from localspec.engine.backend.cancel import CancelFlag
from localspec.engine.backend.context import Context, ContextSettings
from localspec.engine.backend.devices import add_rpc_server, devices
from localspec.engine.backend.features import Floats, HeldRows, LayerCapture
from localspec.engine.backend.model import Model, ModelSettings
from localspec.engine.backend.passes import Passes, SharedSequence
from localspec.engine.backend.sequence import Sequence
from localspec.engine.costs import VerifyCosts
from localspec.engine.drafters.base import Drafter
from localspec.engine.events import Event, Notice
from localspec.engine.settings import LoadSettings
from localspec.errors import DoesNotFitError, LocalspecError, UsageError
from localspec.header import facts_from_header, read_header
from localspec.interfaces import PairFiles
from localspec.session.companions import add_companion, capture_for, load_weights, warn_of_coarse_cache
from localspec.session.slots import Slots

DEFAULT_CTX = 8192
"""Context when none is asked for, unless the model was trained for less."""
CALIBRATION_S = 0.5
"""Most time spent on measuring decode costs at load."""
CALIBRATED_ROWS = (1, 2, 4, 8, 16)
MOST_SLOTS = 256
"""Sequences that llama.cpp has room for."""

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
    capture: LayerCapture | None = None
    """Reads layer inputs of a target that does not expose them."""
    dry: bool = False
    """No weights were read, so nothing can be decoded."""
    passes: Passes | None = None
    """Merges the decodes of replies that run at once; None where only one can."""
    drafters: dict[str, tuple[Drafter, ...]] = field(default_factory=dict)
    """By kind: one for each slot, or a single one that follows one conversation at a time."""
    held: dict[str, HeldRows] = field(default_factory=dict)
    """What such a single drafter reads of the target, by kind, where passes are shared."""
    draft_names: list[str] = field(default_factory=list)
    draft_contexts: list[Context] = field(default_factory=list)
    draft_host_bytes: int = 0
    """Weights of drafters that are computed outside llama.cpp."""
    refused: list[str] = field(default_factory=list)
    """Why a companion does not draft, one sentence each."""
    verify: VerifyCosts = field(default_factory=VerifyCosts)
    slots: Slots = field(init=False)

    def __post_init__(self) -> None:
        self.slots = Slots(self.sequences(self.context))

    def sequences(self, context: Context) -> list[Sequence]:
        """One sequence per slot of the target's or a draft's context."""
        n_ctx, passes = self.settings.n_ctx, self.passes
        assert n_ctx is not None
        if passes is None:
            return [context.sequence(i, n_ctx) for i in range(self.settings.slots)]
        return [SharedSequence(passes, context, i, n_ctx) for i in range(self.settings.slots)]

    def drafter(self, kind: str, seq_id: int) -> Drafter:
        """What drafts for the slot `seq_id`."""
        drafters = self.drafters[kind]
        return drafters[seq_id] if len(drafters) > 1 else drafters[0]

    def hold(self, kind: str, source: Callable[[int], Floats | None], width: int = 0) -> HeldRows | None:
        """Hidden states kept for a drafter where passes are shared; None where `source` itself will do."""
        if self.passes is None:
            return None
        self.held[kind] = HeldRows(source, width)
        return self.held[kind]

    def close(self) -> None:
        """Free drafts before the target they may share tensors with; idempotent."""
        for drafters in self.drafters.values():
            for drafter in drafters:
                drafter.close()
        self.drafters.clear()
        self.context.close()
        self.model.close()


def load_pair(
    files: PairFiles,
    load: LoadSettings,
    notify: Notify,
    cancel: CancelFlag,
    *,
    dry: bool = False,
    passes: Passes | None = None,
) -> LoadedPair:
    """Load a target and whatever drafts for it.

    Args:
        passes: for several slots that answer at once; call this in its thread.
        dry: reserve nothing and read no weights: only `session.memory` may look at the pair, to see what
            llama.cpp would allocate.

    Raises:
        ModelFileError: the target's file is missing, unreadable, not GGUF or truncated.
        UsageError: a setting is impossible.
        EngineError: memory, or the load was cancelled.
    """
    for endpoint in load.rpc:
        add_rpc_server(endpoint)
    settings = effective_settings(load, notify)
    placement = replace(_model_settings(settings, files), no_alloc=dry)
    model = load_weights(files.target, "target", placement, notify, cancel)
    try:
        settings = replace(settings, n_ctx=_context_length(load.n_ctx, model))
        check_cache(files, settings)
        capture = capture_for(files, model)
        context = Context(model, _target_context(settings, model), cancel=cancel, cb_eval=capture)
    except LocalspecError:
        model.close()
        raise
    pair = LoadedPair(files, settings, cancel, model, context, capture, dry=dry, passes=passes)
    if passes is not None:
        passes.prefer(context)
        context.caller = passes.call
    try:
        if files.companions:
            warn_of_coarse_cache(settings.draft_kv, notify)
        for companion in files.companions:
            add_companion(pair, companion, notify)
        if not dry:
            calibrate(context.sequence(n_ctx=settings.n_ctx), pair.verify, settings.k_max)
            if settings.slots > 1:
                notify(Notice("info", gain_of_slots(pair.verify, settings.slots)))
    except BaseException:
        pair.close()
        raise
    return pair


def effective_settings(load: LoadSettings, notify: Notify) -> LoadSettings:
    """Fill in what depends on the machine and raise batches that cannot hold a verification."""
    if load.k_max < 0:
        raise UsageError(f"k_max {load.k_max} is negative")
    if not 1 <= load.slots <= MOST_SLOTS:
        raise UsageError(f"{load.slots} slots, where 1 to {MOST_SLOTS} are possible")
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


def check_cache(files: PairFiles, settings: LoadSettings) -> None:
    """Refuse a KV cache beyond all memory there is: the system would end the process, not the load.

    Raises:
        DoesNotFitError: the cache alone is larger than the memory of all devices.
    """
    facts = facts_from_header(read_header(files.target))
    kind_k, kind_v = settings.kv
    per_token = sum(
        row_bytes(kind_k, layer.n_head_kv * layer.head_k) + row_bytes(kind_v, layer.n_head_kv * layer.head_v)
        for layer in facts.layers
        if layer.own_kv and not layer.windowed and layer.kind not in ("recurrent", "none")
    )
    need = per_token * (settings.n_ctx or 0) * settings.slots
    have = sum(device.total_bytes for device in devices())
    if need > have:
        raise DoesNotFitError(
            f"a context of {settings.n_ctx} tokens needs a KV cache of {need / 2**30:.1f} GiB, all devices "
            f"together have {have / 2**30:.1f} GiB",
            hint="choose a smaller `--ctx`, or `--kv q8_0`",
        )


def _model_settings(settings: LoadSettings, files: PairFiles) -> ModelSettings:
    return ModelSettings(
        gpu_layers=-1 if settings.gpu_layers is None else settings.gpu_layers,
        mmap=settings.mmap,
        mlock=settings.mlock,
        device=settings.device,
        tensor_split=settings.tensor_split,
        n_cpu_moe=settings.n_cpu_moe,
        load_mtp=any(c.kind == "mtp" and c.path == files.target for c in files.companions),
    )


def _target_context(settings: LoadSettings, model: Model) -> ContextSettings:
    assert settings.n_ctx is not None and settings.threads is not None
    return ContextSettings(
        n_ctx=settings.n_ctx * settings.slots,
        n_batch=settings.n_batch,
        n_ubatch=settings.n_ubatch,
        n_outputs_max=settings.k_max + 1,
        n_seq_max=settings.slots,
        # Snapshots do not survive a pass without their sequence, so slots go back to saved states instead.
        n_rs_seq=settings.k_max if model.recurrent and settings.slots == 1 else 0,
        kv=settings.kv,
        flash_attn=settings.flash_attn,
        threads=settings.threads,
    )


def gain_of_slots(costs: VerifyCosts, slots: int) -> str:
    """What requests at once get out of shared passes, on an empty cache."""
    one, all_rows = costs.seconds(1, 0), costs.seconds(slots, 0)
    dearer = all_rows / one if one else 1.0
    return (
        f"a pass with a row of each of {slots} requests takes {dearer:.1f}× that of one row, so together "
        f"they get {slots / dearer:.1f}× the tokens per second of one after another"
    )


def calibrate(
    target: Sequence, costs: VerifyCosts, k_max: int, now: Callable[[], float] = time.perf_counter
) -> None:
    """Time decodes of a few row counts on an empty cache, within `CALIBRATION_S`.

    Each is run three times: the first run of a shape builds its graph, and of the others the faster one
    counts, since another process can only slow a decode down.
    """
    deadline = now() + CALIBRATION_S
    for rows in (n for n in CALIBRATED_ROWS if n <= k_max + 1):
        if costs.known(rows):
            continue
        tokens = np.zeros(rows, np.int32)
        fastest = math.inf
        for attempt in range(3):
            target.guard()
            before = now()
            target.decode(tokens, rows)
            took = now() - before
            target.truncate(0)
            if attempt:
                fastest = min(fastest, took)
        costs.observe(rows, 0, fastest)
        if now() + 4 * fastest > deadline:
            return
