"""Programs of others as clients and as servers, each as a real process: `llm`, llama-cpp-python's server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from localspec import cli
from localspec.catalog import demo_target_path
from localspec.engine.settings import Message, Request
from tests.kit.serving import Served, served
from tests.kit.toy import words_for
from tests.test_batch import line, read


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


class TestLlm:
    """Simon Willison's `llm` through its OpenAI-compatible models."""

    @pytest.fixture
    def llm(self, server: Served, tmp_path: Path) -> Any:
        models = [{"model_id": "local", "model_name": "toy", "api_base": f"{server.url}/v1"}]
        # JSON is YAML.
        (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))
        environ = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}

        def run(*argv: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "llm", "-m", "local", "--no-log", *argv]
            return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120)

        return run

    def test_a_streamed_prompt_with_a_system_message(self, llm: Any) -> None:
        asked = Request(messages=(Message("system", "be brief"), Message("user", "hi")))
        result = llm("-s", "be brief", "hi")
        assert (result.returncode, result.stdout.strip()) == (0, "".join(words_for(asked)))


@pytest.fixture(scope="module")
def foreign() -> Iterator[str]:
    """llama-cpp-python's own server with the embedded model."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "llama_cpp.server", "--model", str(demo_target_path()), "--port", str(port),
        "--n_ctx", "512", "--n_threads", "1", "--model_alias", "smol",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/v1"
    try:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and process.poll() is None:
            try:
                httpx2.get(f"{url}/models", timeout=5)
                break
            except httpx2.TransportError:
                time.sleep(0.2)
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.mark.real_model
def test_a_batch_on_llama_cpp_python_s_server(
    foreign: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good = [line(f"id-{n}", f"Say the number {n}.", max_tokens=6, temperature=0) for n in range(3)]
    source.write_text("\n".join([*good, line("bad", "x", max_tokens="many")]))
    code = cli.run(["batch", str(source), "-o", str(out), "--endpoint", foreign, "--concurrency", "2"])
    assert code == 1, capsys.readouterr().err
    results = read(out)
    assert [r["custom_id"] for r in results] == ["id-0", "id-1", "id-2", "bad"]
    assert [r["response"]["status_code"] for r in results[:3]] == [200] * 3
    assert results[3]["response"]["status_code"] >= 400
    assert {r["response"]["body"]["model"] for r in results[:3]} == {"smol"}
    assert all(r["response"]["body"]["usage"]["completion_tokens"] <= 6 for r in results[:3])
