"""How long a token travels: from its making in the model process to the one who reads it.

The session stamps each token with the system-wide clock, in the place of its log-probability, and paces its
events. A round's tokens are told with their round, so both readers count from there.
"""

from __future__ import annotations

import json
import time

import httpx2

from localspec.engine.events import Round, Token
from localspec.engine.settings import Request
from localspec.worker import WorkerSession
from tests.kit.serving import CHAT, Served, user

STAMPED = "tests.kit.worker_factories:stamped"


def direct(session: WorkerSession) -> list[float]:
    """Seconds from each token to the end of its round, for a reader of the worker."""
    found: list[float] = []
    stamp = 0.0
    for event in session.reply(Request(prompt="x")):
        if isinstance(event, Token):
            assert event.logprob is not None
            stamp = event.logprob
        elif isinstance(event, Round):
            found.append(time.monotonic() - stamp)
    return found


def streamed(server: Served) -> list[float]:
    """The same for a client that reads server-sent events."""
    found: list[float] = []
    body = {"messages": user("x"), "stream": True, "logprobs": True}
    with httpx2.stream("POST", server.url + CHAT, json=body, timeout=60) as response:
        for line in response.iter_lines():
            now = time.monotonic()
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    told = (choice["logprobs"] or {}).get("content", [])
                    found += [now - token["logprob"] for token in told]
    return found
