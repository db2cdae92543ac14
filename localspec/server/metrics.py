"""Prometheus metrics of the server, in a registry of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from localspec.engine.events import Done, Round

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
SEQUENCES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256)
RATES = (1, 2, 5, 10, 20, 40, 60, 80, 100, 150, 200, 300, 500, 1000)
NAMED_FIELDS = 100
"""Ignored body fields counted by name; clients choose the names, so the rest shares one label."""
FIELD_CHARS = 64


class Metrics:
    """All series; methods are called from the event loop and from the engine thread."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "localspec_requests", "HTTP requests answered", ["operation", "status"], registry=registry
        )
        self._ignored = Counter(
            "localspec_ignored_body_fields", "Unknown body fields", ["field"], registry=registry
        )
        self._field_names: set[str] = set()
        self._queued = Gauge("localspec_queue_length", "Requests waiting", registry=registry)
        self._running = Gauge("localspec_replies_running", "Replies being generated", registry=registry)
        self._queue_wait = Histogram(
            "localspec_queue_wait_seconds", "Wait before the engine", registry=registry, buckets=SECONDS
        )
        self._first_token = Histogram(
            "localspec_time_to_first_token_seconds",
            "From the request's arrival to its first token",
            registry=registry,
            buckets=SECONDS,
        )
        self._replies = Counter("localspec_replies", "Replies ended", ["reason"], registry=registry)
        self._prompt = Counter("localspec_prompt_tokens", "Prompt tokens", registry=registry)
        self._reused = Counter(
            "localspec_prompt_tokens_reused", "Prompt tokens found in the cache", registry=registry
        )
        self._prefilled = Counter(
            "localspec_prompt_tokens_prefilled", "Prompt tokens that had to be computed", registry=registry
        )
        self._last_prefilled = Gauge(
            "localspec_last_prompt_tokens_prefilled", "The same for the latest reply", registry=registry
        )
        self._completion = Counter("localspec_completion_tokens", "Tokens generated", registry=registry)
        self._prefill_s = Counter("localspec_prefill_seconds", "Time spent on prompts", registry=registry)
        self._decode_s = Counter("localspec_decode_seconds", "Time spent on tokens", registry=registry)
        self._draft_s = Counter("localspec_draft_seconds", "Part of it spent drafting", registry=registry)
        self._decode_rate = Histogram(
            "localspec_decode_tokens_per_second", "Rate of each reply", registry=registry, buckets=RATES
        )
        self._prefill_rate = Histogram(
            "localspec_prefill_tokens_per_second",
            "Prompt rate of each reply",
            registry=registry,
            buckets=[10 * rate for rate in RATES],
        )
        self._rounds = Counter("localspec_rounds", "Draft-verify rounds", registry=registry)
        self._company = Histogram(
            "localspec_round_sequences",
            "Requests that had rows in the target's pass of a round",
            registry=registry,
            buckets=SEQUENCES,
        )
        self._drafted = Counter("localspec_draft_tokens", "Tokens drafted", registry=registry)
        self._tested = Counter("localspec_draft_tokens_tested", "Drafts judged", registry=registry)
        self._accepted = Counter("localspec_draft_tokens_accepted", "Drafts accepted", registry=registry)
        self._tested_at = Counter(
            "localspec_draft_position_tested", "Drafts judged at a position", ["position"], registry=registry
        )
        self._accepted_at = Counter(
            "localspec_draft_position_accepted",
            "Drafts accepted at a position",
            ["position"],
            registry=registry,
        )
        self._speedup = Gauge(
            "localspec_speedup",
            "Measured speculative rate over measured plain rate, latest reply that measured both",
            registry=registry,
        )
        self._speedup.set(math.nan)  # unknown is not zero
        self._spoiled = Counter(
            "localspec_drafters_spoiled",
            "Drafters that proposed nothing but nonsense, by what was done about it",
            ["method", "action"],
            registry=registry,
        )
        self._restarts = Counter("localspec_worker_restarts", "Model process restarts", registry=registry)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)

    def answered(self, operation: str, status: int) -> None:
        self._requests.labels(operation, str(status)).inc()

    def ignored(self, names: Iterable[str]) -> None:
        """Count unknown fields of one body."""
        for name in names:
            known = name in self._field_names
            if not known and len(self._field_names) < NAMED_FIELDS and len(name) <= FIELD_CHARS:
                self._field_names.add(name)
                known = True
            self._ignored.labels(name if known else "(other)").inc()

    def queued(self, length: int) -> None:
        self._queued.set(length)

    def started(self, wait_s: float) -> None:
        self._queue_wait.observe(wait_s)

    def running(self, count: int) -> None:
        self._running.set(count)

    def round(self, event: Round) -> None:
        """Count a round of any reply."""
        self._company.observe(event.sequences)

    def first_token(self, after_s: float) -> None:
        self._first_token.observe(after_s)

    def failed(self) -> None:
        self._replies.labels("refused").inc()

    def restarted(self) -> None:
        self._restarts.inc()

    def finished(self, done: Done) -> None:
        """Add a reply's summary."""
        summary = done.summary
        self._replies.labels(done.reason).inc()
        self._prompt.inc(summary.prompt_tokens)
        self._reused.inc(summary.reused_tokens)
        self._prefilled.inc(summary.prompt_tokens - summary.reused_tokens)
        self._last_prefilled.set(summary.prompt_tokens - summary.reused_tokens)
        self._completion.inc(summary.completion_tokens)
        self._prefill_s.inc(summary.prefill_s)
        self._decode_s.inc(summary.decode_s)
        self._draft_s.inc(summary.draft_s)
        self._rounds.inc(summary.rounds)
        self._drafted.inc(summary.drafted)
        self._tested.inc(summary.tested)
        self._accepted.inc(summary.accepted)
        for position, count in enumerate(summary.tested_at):
            self._tested_at.labels(str(position)).inc(count)
        for position, count in enumerate(summary.accepted_at):
            self._accepted_at.labels(str(position)).inc(count)
        for action, methods in (("reset", summary.resets), ("off", summary.given_up)):
            for method in methods:
                self._spoiled.labels(method, action).inc()
        if summary.decode_tps is not None:
            self._decode_rate.observe(summary.decode_tps)
        if summary.prefill_tps is not None:
            self._prefill_rate.observe(summary.prefill_tps)
        if summary.speedup is not None:
            self._speedup.set(summary.speedup)
