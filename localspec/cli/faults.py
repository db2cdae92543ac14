"""What becomes of an exception that reaches the top: lines on stderr and an exit code.

An error of ours says itself. Anything unexpected keeps its traceback in the log file and puts one line on
the screen.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from typing import TextIO

import click

from localspec.errors import INTERRUPTED, LocalspecError
from localspec.locations import locations
from localspec.output import Output

USAGE = 2


def report(error: BaseException, err: TextIO | None) -> int:
    """Say on `err` what happened and return the exit code."""
    out = Output.decide(None, err, os.environ)
    if isinstance(error, click.Abort) and error.__cause__ is not None:
        error = error.__cause__  # click wraps Ctrl+C, but also any EOFError of the program itself
    if isinstance(error, LocalspecError):
        out.error(error.message, error.hint)
        return error.exit_code
    if isinstance(error, click.ClickException):
        out.error(*explain(error))
        return USAGE
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return 1  # the reader has gone and knows why
    return _unexpected(error, out)


def _unexpected(error: BaseException, out: Output) -> int:
    from localspec.log import log_exception, start_log

    start_log(locations().log_file)
    written = log_exception(error)
    if written is None:
        import traceback

        out.note("".join(traceback.format_exception(error)).rstrip())
    what = f"unexpected {type(error).__name__}: {error}".rstrip(": ")
    out.error(what, f"the traceback is in {written}" if written else None)
    return 1


def explain(error: click.ClickException) -> tuple[str, str | None]:
    """click's message in our words: what is wrong, and the next step."""
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        return f"unknown option `{error.option_name}`", f"did you mean `{error.possibilities[0]}`?"
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "localspec"
    hint = f"`{path} --help` lists what it takes"
    if isinstance(error, click.NoSuchOption):
        return f"unknown option `{error.option_name}`", hint
    if isinstance(error, click.BadParameter) and error.param is not None and error.message:
        return f"bad value for `{error.param.opts[0]}`: {_sentence(error.message)}", hint
    return _sentence(error.format_message()), hint


def _sentence(text: str) -> str:
    """Without a capital or a full stop, and with our quotes."""
    text = re.sub(r"'([^' ]+)'", r"`\1`", text.strip().rstrip("."))
    return text[:1].lower() + text[1:]


def flushed(code: int) -> int:
    """The exit code after stdout was flushed; a reader that has gone turns success into 1, quietly."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # The interpreter would flush once more at its end and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.EPIPE:
            return code or 1
        return report(LocalspecError(f"cannot write the output: {error.strerror}"), sys.stderr)
    return code
