"""The argument tree: which commands exist, where they live, and what happens to their errors.

A command's module is imported when the command runs; `localspec --help` reads only the table below.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from localspec import __version__
from localspec.cli import faults
from localspec.errors import unknown

COMMANDS = {
    "batch": ("localspec.cli.batch", "Answer many prompts from a file, on a pair or on an endpoint."),
    "chat": ("localspec.cli.chat", "Talk with a pair on its own screen, or streaming to stdout."),
    "demo": ("localspec.cli.demo", "Race the embedded pair: plain decoding against speculation."),
    "bench": ("localspec.cli.bench", "Measure plain decoding against every method of a pair."),
    "verify": ("localspec.cli.verify", "Prove that speculation emits the target's own text."),
    "doctor": ("localspec.cli.doctor", "Say what this machine and build can do, and what is missing."),
    "serve": ("localspec.cli.serve", "Answer OpenAI-compatible clients with a pair."),
    "export": ("localspec.cli.export", "Print the command that runs a pair on another engine."),
    "pick-models": ("localspec.cli.pick_models", "Browse the pairs: what fits, what it gains, what is here."),
    "pull": ("localspec.cli.pull", "Download pairs, checked before and after."),
    "plan": ("localspec.cli.plan", "Say whether a pair fits, item by item, before any download."),
    "models": ("localspec.cli.models", "List, add, remove, verify and find models and drafts."),
    "config": ("localspec.cli.config", "Show and check the settings."),
    "paths": ("localspec.cli.paths", "Print where localspec keeps things."),
}
"""Command name → (module whose `command` it is, its help in one line)."""


class LazyGroup(click.Group):
    """A group whose commands are imported when used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise unknown("command", args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Without a command: chat. Exit codes: 0 done, 1 failed, 2 usage, 3 outside cause (worth another "
    "try), 4 does not fit, 5 no permission, 130 interrupted.",
)
@click.version_option(__version__, prog_name="localspec")
def tree() -> None:
    """Speculative decoding for GGUF models: the same answers, faster."""


def run(argv: Sequence[str]) -> int:
    """Run a command line and return its exit code; its error is on stderr by then."""
    try:
        code = tree.main(list(argv) or ["chat"], prog_name="localspec", standalone_mode=False)
    except BaseException as error:  # noqa: BLE001 (the one place where every exception ends)
        return faults.report(error, sys.stderr)
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """Entry point of `localspec` and `python -m localspec`."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _leave)
    sys.exit(faults.flushed(run(sys.argv[1:])))


def _leave(number: int, _: FrameType | None) -> NoReturn:
    """Unwind on SIGTERM and SIGHUP, so that a hidden cursor or an alternate screen is given back."""
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    raise SystemExit(128 + number)
