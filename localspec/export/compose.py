"""A launch of vLLM as a Docker Compose file."""

from __future__ import annotations

import json

from localspec.export.launch import Launch

IMAGE = "vllm/vllm-openai"
PORT = 8000
TEMPLATE = """\
# vLLM {version}: arguments compared with its own definitions on {checked}.
services:
  vllm:
    image: {image}
    entrypoint: {entrypoint}
    command: {command}
    ports:
      - {ports}
    volumes:
      - ${{HF_HOME:-~/.cache/huggingface}}:/root/.cache/huggingface
    environment:
      HF_TOKEN: ${{HF_TOKEN:-}}
    # Tensor-parallel workers share memory.
    ipc: host
    restart: unless-stopped
    healthcheck:
      test: ["CMD", "python3", "-c", {probe}]
      interval: 15s
      start_period: 20m
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: {gpus}
              capabilities: [gpu]
"""
PROBE = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}/health', timeout=5)"


def compose(launch: Launch, *, gpus: int, host: str | None, port: int | None) -> str:
    """The file's text: JSON values in YAML, so that no word can be read as anything but itself.

    Args:
        launch: `vllm serve …` without host and port.
        gpus: Cards the container gets.
        host: Address of the host that is published; loopback by default.
        port: Port of the host.
    """
    # `$` starts a variable in a compose file.
    words = [word.replace("$", "$$") for word in launch.argv]
    return TEMPLATE.format(
        version=launch.version,
        checked=launch.checked,
        image=json.dumps(f"{IMAGE}:v{launch.version}"),
        entrypoint=json.dumps(words[:2]),
        command=json.dumps([*words[2:], "--host", "0.0.0.0", "--port", str(PORT)]),
        ports=json.dumps(f"{host or '127.0.0.1'}:{port or PORT}:{PORT}"),
        probe=json.dumps(PROBE.format(port=PORT)),
        gpus=gpus,
    )
