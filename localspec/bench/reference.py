"""Other programs on the same prompts: a command with llama.cpp's counters, or an OpenAI-compatible URL."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from localspec.bench.contestants import Answer
from localspec.errors import LocalspecError, OutsideError, UsageError

PLACE = "{prompt}"
LENGTH = "{max_tokens}"
TIMEOUT_S = 1800.0
_COUNTERS = (
    re.compile(r"decoded\s+(?P<tokens>\d+) tokens in\s+(?P<seconds>[\d.]+) seconds"),
    re.compile(r"(?<!prompt )eval time\s*=\s*(?P<ms>[\d.]+) ms\s*/\s*(?P<tokens>\d+) (?:runs|tokens)"),
)  # fmt: skip
"""What llama-speculative-simple and llama-cli print of their decoding, best first."""


@dataclass(frozen=True, slots=True)
class ReferenceCommand:
    """A command run once per prompt, without a shell; `{prompt}` and `{max_tokens}` in its words are filled.

    Only its own decode counter is used: the wall time would count loading the model.
    """

    words: tuple[str, ...]
    name: str = "reference"
    k: str = "its own"

    def answer(self, prompt: str, max_tokens: int) -> Answer:
        """Run it and read its counters.

        Raises:
            LocalspecError: it cannot be started, fails, or prints no counter.
        """
        words = [word.replace(PLACE, prompt).replace(LENGTH, str(max_tokens)) for word in self.words]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            raise LocalspecError(f"`{words[0]}` cannot be run: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise LocalspecError(f"`{words[0]}` took more than {TIMEOUT_S:.0f} s for one prompt") from error
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise LocalspecError(f"`{words[0]}` exited with {done.returncode}: {last}")
        return counters(done.stderr + "\n" + done.stdout, words[0])


def counters(text: str, name: str) -> Answer:
    """Tokens and decode seconds as a llama.cpp tool printed them.

    Raises:
        LocalspecError: it printed none.
    """
    for pattern in _COUNTERS:
        found = pattern.search(text)
        if found is not None:
            values = found.groupdict()
            seconds = float(values["ms"]) / 1000 if "ms" in values else float(values["seconds"])
            return Answer(int(values["tokens"]), seconds)
    raise LocalspecError(
        f"`{name}` printed no decode counter",
        hint="it must print `decoded N tokens in S seconds` or llama.cpp's `eval time` line",
    )


@dataclass(frozen=True, slots=True)
class ReferenceServer:
    """An OpenAI-compatible server; the clock runs from its first piece of text to its last."""

    url: str
    """With or without the final `/v1`."""
    temperature: float = 0.0
    name: str = "reference"
    k: str = "its own"

    def answer(self, prompt: str, max_tokens: int) -> Answer:
        """Stream one chat answer.

        Raises:
            OutsideError: the server cannot be reached or breaks off.
            LocalspecError: it refuses, or does not say how many tokens it sent.
        """
        import httpx2

        body = {
            "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "stream": True,
            "temperature": self.temperature, "stream_options": {"include_usage": True}, "model": "default",
        }  # fmt: skip
        base = self.url.rstrip("/").removesuffix("/v1")
        first = last = 0.0
        tokens: int | None = None
        try:
            with httpx2.stream("POST", f"{base}/v1/chat/completions", json=body, timeout=600.0) as response:
                if not response.is_success:
                    response.read()
                    raise LocalspecError(f"{base} answered {response.status_code}: {response.text[:200]}")
                for line in response.iter_lines():
                    chunk = _chunk(line)
                    if _has_text(chunk):
                        last = time.perf_counter()
                        first = first or last
                    usage = chunk.get("usage") or {}
                    tokens = usage.get("completion_tokens", tokens)
        except httpx2.TransportError as error:
            raise OutsideError(f"{base}: {error or type(error).__name__}") from error
        if tokens is None:
            raise LocalspecError(f"{base} did not say how many tokens it sent (`usage` in the stream)")
        return Answer(max(0, tokens - 1), last - first)  # the first token ends the prefill


def _chunk(line: str) -> dict[str, Any]:
    if not line.startswith("data:") or line.strip() == "data: [DONE]":
        return {}
    try:
        value = json.loads(line.removeprefix("data:"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _has_text(chunk: dict[str, Any]) -> bool:
    choices = chunk.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return bool(delta.get("content") or delta.get("reasoning_content"))


def reference(asked: str) -> ReferenceCommand | ReferenceServer:
    """What `--reference` names.

    Raises:
        UsageError: a command that has no place for the prompt.
    """
    if urlsplit(asked).scheme in ("http", "https"):
        return ReferenceServer(asked)
    try:
        words = tuple(shlex.split(asked))
    except ValueError as error:
        raise UsageError(f"`--reference` cannot be read as a command: {error}") from error
    if not any(PLACE in word for word in words):
        raise UsageError(
            f"`--reference` has no {PLACE}",
            hint=f"for example: --reference 'llama-cli -m model.gguf -st --temp 0 -n {LENGTH} -p {PLACE}'",
        )
    return ReferenceCommand(words)
