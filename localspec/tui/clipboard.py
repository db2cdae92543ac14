"""Copies text by OSC 52, which works over ssh, and by the system's own program where there is one.

Some terminals (macOS Terminal, some tmux set-ups) ignore OSC 52, and the screen cannot tell.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import Protocol

TIMEOUT_S = 1.0


class TakesText(Protocol):
    """The part of an app that is needed here."""

    def copy_to_clipboard(self, text: str) -> None: ...


def copy(
    app: TakesText,
    text: str,
    *,
    environ: Mapping[str, str] = os.environ,
    which: Callable[[str], str | None] = shutil.which,
) -> None:
    """Put text on the clipboard in every way there is."""
    app.copy_to_clipboard(text)
    command = system_command(environ, which)
    if command is None:
        return
    try:
        subprocess.run(
            command, input=text.encode(), check=False, timeout=TIMEOUT_S,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return  # OSC 52 was sent


def system_command(environ: Mapping[str, str], which: Callable[[str], str | None]) -> list[str] | None:
    """The program that owns this desktop's clipboard, or None."""
    if "SSH_CONNECTION" in environ:
        return None  # it would be the clipboard of the far machine
    wayland, x11 = "WAYLAND_DISPLAY" in environ, "DISPLAY" in environ
    candidates = (
        (True, ["pbcopy"]), (True, ["clip.exe"]), (wayland, ["wl-copy"]),
        (x11, ["xclip", "-selection", "clipboard"]), (x11, ["xsel", "--clipboard", "--input"]),
    )  # fmt: skip
    for usable, (name, *options) in candidates:
        found = which(name) if usable else None
        if found is not None:
            return [found, *options]
    return None
