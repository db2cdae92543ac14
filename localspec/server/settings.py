"""What the operator decides about the server; the engine's own settings are elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.engine.settings import Request

READY_TOKENS = 16
"""Length of the generation that proves the pair works before `/health` says so."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may cost. Times are seconds."""

    body_bytes: int = 8 << 20
    reply_tokens: int | None = None
    """Longest reply; a request that asks for more gets this many. None = until the context is full."""
    queued: int = 256
    """Requests that may wait; the next one is told to come back later."""
    queue_s: float = 600.0
    reply_s: float = 600.0
    """Longest run of one reply."""
    start_s: float = 60.0
    """Longest preparation of one reply (template, grammar, tokens); then the worker is restarted."""
    head_s: float = 10.0
    """Time a connection has for a complete request head."""
    request_s: float = 30.0
    """Time a connection has for the body after the head."""
    stall_s: float = 60.0
    """A client that takes nothing of what is sent to it for this long is dropped."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where to listen and whom to serve."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    allow_hosts: tuple[str, ...] = ()
    """Further names a `Host` header may carry; loopback and the address of the connection always may."""
    cors_origins: tuple[str, ...] = ()
    strict_model: bool = False
    """Answer 404 to a model name that is not loaded, instead of a warning header."""
    limits: Limits = field(default_factory=Limits)
    base: Request = field(default_factory=Request)
    """What a request gets where its body says nothing."""
