"""What every command shares: `--json`, `--quiet`, one `Output`, and the log file."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from localspec.locations import locations
from localspec.output import Output


def face(json_help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command `--json` and `--quiet`; it receives one `Output` named `out` and has a log file."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("--json", is_flag=True, help=json_help)
        @click.option("--quiet", "-q", is_flag=True, help="No narration and no progress on stderr.")
        @functools.wraps(command)
        def call(json: bool, quiet: bool, **values: Any) -> Any:
            from localspec.log import start_log  # logging costs 15 ms, which --help does not need

            start_log(locations().log_file)
            out = Output.decide(sys.stdout, sys.stderr, os.environ, json=json, quiet=quiet)
            return command(out=out, **values)

        return call

    return decorate
