"""Lets the user write a text in the editor of their choice. The caller gives up the terminal first."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from localspec.errors import UsageError


def edit_text(text: str, *, environ: Mapping[str, str] = os.environ) -> str:
    """Open $VISUAL, $EDITOR or vi on `text` and return what was saved, without the last line break.

    Raises:
        UsageError: the editor cannot be started, or reports a failure.
    """
    command = shlex.split(environ.get("VISUAL") or environ.get("EDITOR") or "vi")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompt.md"
        path.write_text(text, encoding="utf-8")
        try:
            code = subprocess.run([*command, str(path)], check=False).returncode
        except OSError as error:
            raise UsageError(f"the editor `{command[0]}` cannot be started: {error.strerror}") from error
        if code:
            raise UsageError(
                f"the editor `{command[0]}` ended with exit code {code}, the prompt is unchanged"
            )
        return path.read_text(encoding="utf-8", errors="replace").removesuffix("\n")
