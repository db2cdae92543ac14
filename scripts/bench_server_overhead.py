"""Time that the server adds to a streamed token.

The same scripted model process, one token a round without any computation, is read twice: directly, as a
program with the session in its hands would, and through HTTP as server-sent events. The difference per
token is the server's: crossing threads, assembling, JSON, the socket, and the client's reading of it. A
second process gives a token every 20 ms, and what counts there is how much later than a direct reader the
client has it, the first one apart. Pairs are interleaved and their median counts; the bar is 1 ms on two
slow cores.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from localspec.engine.settings import LoadSettings, Request  # noqa: E402
from localspec.interfaces import PairFiles  # noqa: E402
from localspec.worker import WorkerSession  # noqa: E402
from tests.kit import latency  # noqa: E402
from tests.kit.serving import served  # noqa: E402

BAR_MS = 1.0
FACTORY = "tests.kit.toy:open_metronome"


def direct(session: WorkerSession, tokens: int) -> float:
    """Seconds to read a reply from the worker."""
    began = time.perf_counter()
    for _ in session.reply(Request(prompt="x", max_tokens=tokens)):
        pass
    return time.perf_counter() - began


def streamed(port: int, tokens: int) -> float:
    """Seconds to read the same reply as server-sent events, with a client that only reads."""
    body = f'{{"prompt": "x", "stream": true, "max_tokens": {tokens}}}'.encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        began = time.perf_counter()
        connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        tail, words = b"", 0
        while b"[DONE]" not in tail:
            data = connection.recv(1 << 16)
            if not data:
                raise SystemExit("the server closed the stream")
            words += data.count(b'"text":" word"')
            tail = (tail + data)[-16:]
        seconds = time.perf_counter() - began
    if words < tokens * 0.99:  # a word may be split over two reads
        raise SystemExit(f"{words} of {tokens} tokens arrived")
    return seconds


def later(pairs: int) -> tuple[list[float], list[float]]:
    """Milliseconds by which a paced reply's first token, and the median one, reach a client later."""
    files = PairFiles("stamped", Path(os.devnull))
    first, every = [], []
    with (
        served(latency.STAMPED) as server,
        WorkerSession(files, LoadSettings(), factory=latency.STAMPED) as session,
    ):
        latency.streamed(server)
        for _ in range(pairs):
            near, far = latency.direct(session), latency.streamed(server)
            first.append(1000 * (far[0] - near[0]))
            every.append(1000 * (statistics.median(far) - statistics.median(near)))
    return first, every


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    files = PairFiles("metronome", Path(os.devnull))
    with served(FACTORY) as server, WorkerSession(files, LoadSettings(), factory=FACTORY) as session:
        direct(session, options.tokens)
        streamed(server.port, options.tokens)
        added = [
            1000 * (streamed(server.port, options.tokens) - direct(session, options.tokens)) / options.tokens
            for _ in range(options.pairs)
        ]
    first, every = later(options.pairs)
    missed = False
    for what, values in (
        ("per streamed token", added), ("until the first paced token", first), ("until a paced token", every)
    ):  # fmt: skip
        median = statistics.median(values)
        missed |= median > BAR_MS
        spread = f"{min(values):.3f} to {max(values):.3f}"
        print(f"server: {median:.3f} ms {what} (median of {options.pairs}, {spread})")
    print(f"bar: {BAR_MS} ms: {'missed' if missed else 'met'}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
