"""How fast a pair was on this machine: rates of replies, kept after each one and shown instead of estimates.

Benchmarks, the demo and everyday use feed the same list, through `Recording`. A rate holds for the same
files, device, build, threads, KV types and placement only.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from localspec.engine.events import Done, Event
from localspec.engine.settings import LoadSettings, Request
from localspec.engine.stats import Summary
from localspec.interfaces import PairFiles, Reply, SessionInfo, SessionLike
from localspec.planning.measured import configuration, of_pair, placed
from localspec.planning.result import MeasuredSpeed, PairPlan
from localspec.store.measurements import Measurements

KIND = "speed"
PLAIN, AUTO = "plain", "auto"
MIN_TOKENS = 32
"""A shorter reply is mostly start-up."""
KEPT = 16
"""Newest replies per method."""
METHODS = 8
"""Methods kept per pair beside plain decoding: `auto` and the last used ones."""

Rates = dict[str, float]
"""Method (`plain`, `auto`, `draft k=5`, …) -> tokens per second of one reply."""


def rates_of(request: Request, summary: Summary) -> Rates:
    """What a finished reply tells: its own rate, and the plain one where most of it was decoded plainly."""
    rate = summary.decode_tps
    if rate is None or summary.completion_tokens < MIN_TOKENS:
        return {}
    asked = request.speculation
    if asked.method == "off" or asked.k == 0:
        return {PLAIN: rate}
    rates = {asked.method + (f" k={asked.k}" if asked.k is not None else ""): rate}
    if 2 * summary.plain_tokens >= summary.completion_tokens and summary.plain_tokens >= MIN_TOKENS:
        rates[PLAIN] = summary.plain_tokens / summary.plain_s
    return rates


def remember_rates(
    files: PairFiles,
    info: SessionInfo,
    rates: Rates,
    measurements: Measurements,
    *,
    now: Callable[[], float] = time.time,
) -> None:
    """Add the rates of a reply; those of another placement of the same pair are dropped.

    Raises:
        ModelFileError: a file has gone meanwhile.
        LocalspecError: the database cannot be written.
    """
    key, where = configuration(files, info), _placement(info.effective)
    stored = measurements.get(key, KIND)
    methods: dict[str, Any] = stored["methods"] if stored and stored["placement"] == where else {}
    for method, rate in rates.items():
        older = methods.pop(method, {"tps": []})["tps"]
        methods[method] = {"tps": [*older, rate][-KEPT:], "at": now()}
    others = sorted((name for name in methods if name != PLAIN), key=lambda n: (n == AUTO, methods[n]["at"]))
    for name in others[:-METHODS]:
        del methods[name]
    measurements.put(key, KIND, {"placement": where, "methods": methods})


def _placement(settings: LoadSettings) -> dict[str, Any]:
    return {
        "gpu_layers": settings.gpu_layers,
        "draft_gpu_layers": settings.draft_gpu_layers,
        "n_cpu_moe": settings.n_cpu_moe,
        "device": settings.device,
        "draft_device": settings.draft_device,
        "flash_attn": settings.flash_attn,
        "tensor_split": list(settings.tensor_split),
    }


def speed_of(
    plan: PairPlan, files: PairFiles, load: LoadSettings, build: str, measurements: Measurements
) -> MeasuredSpeed | None:
    """The median rates of the newest replies of this pair, placed as the plan says; None without any.

    Raises:
        ModelFileError: a file has gone meanwhile.
    """
    where = _placement(placed(plan, load))
    for stored, _ in of_pair(KIND, plan, files, load, build, measurements):
        if stored["placement"] == where:
            return _speed(stored["methods"])
    return None


def _speed(methods: dict[str, Any]) -> MeasuredSpeed | None:
    """`auto` stands for the pair where it was used, else the method used last."""
    plain = methods.get(PLAIN)
    drafting = [name for name in methods if name != PLAIN]
    method = AUTO if AUTO in drafting else max(drafting, key=lambda n: methods[n]["at"], default="")
    own = methods.get(method)
    rates = (own or plain or {"tps": []})["tps"]
    if not rates:
        return None
    return MeasuredSpeed(
        method=method or PLAIN,
        spec_tps=statistics.median(own["tps"]) if own else None,
        plain_tps=statistics.median(plain["tps"]) if plain else None,
        low=min(rates),
        high=max(rates),
        replies=len(rates),
        measured_at=max(methods[name]["at"] for name in (method, PLAIN) if name in methods),
    )


Keep = Callable[[Rates], None]


@dataclass(frozen=True, slots=True)
class Recording:
    """A session whose replies' rates are kept."""

    session: SessionLike
    keep: Keep
    """Called in the thread that reads the reply, at its end."""

    @property
    def info(self) -> SessionInfo:
        return self.session.info

    def reply(self, request: Request) -> Reply:
        return RecordedReply(self.session.reply(request), request, self.keep)

    def close(self) -> None:
        self.session.close()


class Restartable(SessionLike, Protocol):
    """A session in another process."""

    @property
    def alive(self) -> bool: ...

    def restart(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RecordingWorker(Recording):
    """The same of a session that can die and be started again."""

    session: Restartable

    @property
    def alive(self) -> bool:
        return self.session.alive

    def restart(self) -> None:
        self.session.restart()


class RecordedReply:
    """A reply that tells its rates when it ends; one that failed or shared its passes tells none."""

    def __init__(self, reply: Reply, request: Request, keep: Keep) -> None:
        self._reply = reply
        self._request = request
        self._keep = keep

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        event = next(self._reply)
        if isinstance(event, Done) and event.reason != "error" and not event.summary.shared_rounds:
            rates = rates_of(self._request, event.summary)
            if rates:
                self._keep(rates)
        return event

    def cancel(self) -> None:
        self._reply.cancel()

    def close(self) -> None:
        self._reply.close()
