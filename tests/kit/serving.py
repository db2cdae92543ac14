"""Starts a real server process on a scripted session or a model, and waits until it is ready.

`python -m tests.kit.serving FACTORY OPTIONS` is the child: it runs the product's own `serve` on a worker
with the given session factory and prints its URL.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from localspec.engine.settings import LoadSettings, Message, Request, SamplingSettings
from localspec.interfaces import Companion, PairFiles
from localspec.worker.session import OPEN_SESSION
from tests.kit.toy import words_for

if TYPE_CHECKING:
    import openai

EXACT: dict[str, Any] = {
    "threads": 1, "kv": ("f32", "f32"), "draft_kv": ("f32", "f32"), "flash_attn": "off", "k_max": 8
}  # fmt: skip
TOY = "tests.kit.toy:open_toy"
CHAT = "/v1/chat/completions"


@dataclass
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def openai(self) -> openai.OpenAI:
        """OpenAI's client of it, for a `with`; it does not try again."""
        from openai import OpenAI

        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def children(self) -> list[int]:
        """Process ids of its worker."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]


@contextlib.contextmanager
def served_model(
    target: Path, *companions: Companion, n_ctx: int = 2048, slots: int = 1, **options: Any
) -> Iterator[Served]:
    """A server on a model, with one thread and exact arithmetic."""
    files = [str(target), *[[companion.kind, str(companion.path)] for companion in companions]]
    with served(
        OPEN_SESSION, files=files, load=EXACT | {"n_ctx": n_ctx, "slots": slots}, **options
    ) as running:
        yield running


@contextlib.contextmanager
def served(
    factory: str = TOY, *, preexec: Callable[[], None] | None = None, **options: Any
) -> Iterator[Served]:
    """A server whose settings are `options`: fields of `ServerSettings`, those of `Limits` under `limits`,
    of `LoadSettings` under `load`, and the pair's files under `files`."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "tests.kit.serving",
            factory,
            json.dumps({"port": 0} | options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=preexec,
    )
    try:
        assert process.stdout is not None
        first, second = process.stdout.readline().split(), process.stdout.readline().split()
        if (first[:1], second[:1]) != (["listening"], ["ready"]):
            raise AssertionError(" ".join([*first, *second, process.stdout.read()]))
        yield Served(process, first[1])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def solo(text: str, seed: int | None = None) -> str:
    """What the toy answers to this prompt when it is alone."""
    return "".join(
        words_for(Request(messages=(Message("user", text),), sampling=SamplingSettings(seed=seed)))
    )


def metric(server: Served, name: str) -> float:
    text = httpx2.get(f"{server.url}/metrics").text
    match = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert match, name
    return float(match[1])


def settles(condition: Callable[[], bool], within_s: float = 3.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def main() -> None:
    from localspec.server.run import serve
    from localspec.server.settings import Limits, ServerSettings
    from localspec.worker import WorkerSession

    factory, options = sys.argv[1], json.loads(sys.argv[2])
    limits = Limits(**options.pop("limits", {}))
    for name in ("allow_hosts", "cors_origins"):
        options[name] = tuple(options.get(name, ()))
    target, *companions = options.pop("files", [os.devnull])
    files = PairFiles("toy", Path(target), tuple(Companion(kind, Path(path)) for kind, path in companions))
    session = WorkerSession(files, LoadSettings(**options.pop("load", {})), factory=factory)
    serve(
        session,
        ServerSettings(limits=limits, **options),
        on_listening=lambda url: print("listening", url, flush=True),
        on_ready=lambda: print("ready", flush=True),
    )


if __name__ == "__main__":
    main()
