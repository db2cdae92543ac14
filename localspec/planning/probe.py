"""`python -m localspec.planning.probe QUESTION`: one JSON question, one JSON line on stdout.

The child of `localspec.planning.machine`, and the only module of planning that loads llama.cpp.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from localspec.engine.settings import LoadSettings
from localspec.errors import LocalspecError
from localspec.interfaces import Companion, DeviceMemory, PairFiles
from localspec.planning.machine import available_ram


def devices(rpc: Sequence[str]) -> dict[str, Any]:
    """Devices with the RAM that is really available, and the build."""
    from localspec.engine.backend import devices as backend
    from localspec.engine.backend.library import build_description

    for endpoint in rpc:
        backend.add_rpc_server(endpoint)
    found = [_with_available(device) for device in backend.devices()]
    return {"devices": [asdict(device) for device in found], "build": build_description()}


def dry_run(target: str, companions: Sequence[tuple[str, str]], load: Mapping[str, Any]) -> dict[str, Any]:
    """What llama.cpp would allocate for files on this disk, as (term, device, bytes)."""
    from localspec.engine.backend.cancel import CancelFlag
    from localspec.session.loading import load_pair
    from localspec.session.memory import memory_items

    lists = {name: tuple(value) for name, value in load.items() if isinstance(value, list)}
    settings = LoadSettings(**{**load, **lists, "mmap": False})
    drafting = tuple(Companion(kind, Path(path)) for kind, path in companions)  # type: ignore[arg-type]
    files = PairFiles("pair", Path(target), drafting)
    pair = load_pair(files, settings, lambda _: None, CancelFlag(), dry=True)
    try:
        if pair.refused:
            return {"error": pair.refused[0]}
        return {"items": [[item.term, item.device, item.size_bytes] for item in memory_items(pair)]}
    finally:
        pair.close()


def _with_available(device: DeviceMemory) -> DeviceMemory:
    """llama.cpp calls all RAM free."""
    free = available_ram() if device.kind == "cpu" else None
    return device if free is None else replace(device, free_bytes=min(free, device.total_bytes))


def main(argv: Sequence[str]) -> None:
    """Answer on stdout; an error of ours is an answer too."""
    question = json.loads(argv[0])
    try:
        if question["ask"] == "devices":
            answer = devices(question["rpc"])
        else:
            answer = dry_run(question["target"], question["companions"], question["load"])
    except LocalspecError as error:
        answer = {"error": error.message}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
