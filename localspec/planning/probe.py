"""`python -m localspec.planning.probe QUESTION`: one JSON question, one JSON line on stdout.

The child of `localspec.planning.machine`, and the only module of planning that loads llama.cpp.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from localspec.errors import LocalspecError
from localspec.interfaces import DeviceMemory
from localspec.planning.machine import available_ram


def devices(rpc: Sequence[str]) -> dict[str, Any]:
    """Devices with the RAM that is really available, and the build."""
    from localspec.engine.backend import devices as backend
    from localspec.engine.backend.library import build_description

    for endpoint in rpc:
        backend.add_rpc_server(endpoint)
    found = [_with_available(device) for device in backend.devices()]
    return {"devices": [asdict(device) for device in found], "build": build_description()}


def _with_available(device: DeviceMemory) -> DeviceMemory:
    """llama.cpp calls all RAM free."""
    free = available_ram() if device.kind == "cpu" else None
    return device if free is None else replace(device, free_bytes=min(free, device.total_bytes))


def main(argv: Sequence[str]) -> None:
    """Answer on stdout; an error of ours is an answer too."""
    question = json.loads(argv[0])
    try:
        answer = devices(question["rpc"])
    except LocalspecError as error:
        answer = {"error": error.message}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
