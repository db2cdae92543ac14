"""`localspec chat`: decides what the prompt is and whether there is a screen to live in."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

import click

from localspec.cli.face import face
from localspec.cli.options import LOAD, PAIR, REQUEST, SAMPLING, SPECULATION, Asked, SettingCommand, takes
from localspec.errors import LocalspecError, UsageError
from localspec.interfaces import PairFiles
from localspec.output import Output

QUESTION = "> "


@click.command("chat", cls=SettingCommand)
@click.argument("words", nargs=-1, metavar="[PAIR] [PROMPT]...")
@click.option("-p", "--prompt", metavar="TEXT", help="The prompt; then the only word is the pair.")
@click.option("--plain", is_flag=True, help="Stream text to stdout also on a terminal.")
@click.option("--resume", type=int, metavar="ID", help="Carry on a stored chat, on the screen.")
@click.option("--incognito", is_flag=True, help="Do not save this chat.")
@click.option("--inline", is_flag=True, help="Draw below the shell's prompt, not over the whole terminal.")
@takes(PAIR, SPECULATION, LOAD, SAMPLING, REQUEST)
@face("Print the events of the reply as JSON Lines.")
def command(
    words: tuple[str, ...],
    prompt: str | None,
    plain: bool,
    resume: int | None,
    incognito: bool,
    inline: bool,
    asked: Asked,
    out: Output,
) -> int:
    """Talk with a pair: on a screen of its own, or streaming to stdout.

    It streams with --plain, with --json, and where stdin or stdout is no terminal. Text piped in comes
    before the prompt.
    """
    name, text = pair_and_prompt(words, prompt, has_target=asked.target is not None)
    if not plain and not out.json and has_screen():
        from localspec.cli.screen import Screen, run_screen

        if resume is not None and not (name or asked.target or incognito):
            name = _pair_of(resume, asked)
        named = name or asked.target or asked.config.default_pair
        files = _files(name, asked, words) if named else None
        return run_screen(files, asked, text, Screen(resume, incognito, inline))
    if resume is not None or inline:
        raise UsageError("`--resume` and `--inline` need the chat screen", hint="run it on a terminal")
    return stream(_files(name, asked, words), asked, text, out)


def _pair_of(resume: int, asked: Asked) -> str | None:
    """The pair that a stored chat was written with, as far as it can still be found by its name.

    Raises:
        UsageError: there is no such chat.
    """
    from localspec.locations import locations
    from localspec.pairs import resolve
    from localspec.store import ChatStore

    store = ChatStore(locations().chats_db)
    try:
        pair = store.load(resume).pair
    finally:
        store.close()
    if not pair:
        return None
    try:
        resolve(pair, models_dir=asked.config.models_dir)
    except LocalspecError:  # it was a file, or is gone: the chat goes on with another
        return None
    return pair


def has_screen() -> bool:
    """Whether stdin and stdout are a terminal that a screen can be drawn on."""
    from localspec.tui import why_no_screen

    return why_no_screen() is None


def stream(files: PairFiles, asked: Asked, prompt: str | None, out: Output) -> int:
    """Answer on stdout: once, or as a dialogue where somebody is typing and gave no prompt."""
    from localspec.cli.opening import opened
    from localspec.cli.planned import recorded
    from localspec.plain import run_plain

    request = asked.request()
    if sys.stdin is None or not sys.stdin.isatty():
        prompt = joined(piped_text(sys.stdin), prompt)
    ask = _question(out) if prompt is None else None
    with opened(files, asked, out) as session:
        return run_plain(recorded(files, session, out), request, prompt, out, ask=ask)


def pair_and_prompt(
    words: tuple[str, ...], prompt: str | None, *, has_target: bool
) -> tuple[str | None, str | None]:
    """Which word names the pair, and what the prompt is.

    Raises:
        UsageError: a prompt both as words and with `-p`.
    """
    pair, rest = (None, words) if has_target or not words else (words[0], words[1:])
    if prompt is not None and rest:
        raise UsageError("the prompt was given twice, as words and with `-p`", hint="give one of them")
    return pair, prompt if prompt is not None else " ".join(rest) or None


def _files(name: str | None, asked: Asked, words: tuple[str, ...]) -> PairFiles:
    from localspec.pairs import resolve

    try:
        return resolve(
            name,
            asked.target,
            asked.draft,
            default=asked.config.default_pair,
            models_dir=asked.config.models_dir,
        )
    except UsageError as error:
        if name is None:
            raise
        hint = f"for a prompt without a pair: localspec chat -p {shlex.quote(' '.join(words))}"
        raise UsageError(error.message, hint=f"{error.hint}; {hint}" if error.hint else hint) from error


def piped_text(stdin: TextIO | None) -> str:
    """All of a stdin that is no terminal, as UTF-8; a closed one is empty."""
    if stdin is None:
        return ""
    if isinstance(stdin, io.TextIOWrapper):
        stdin.reconfigure(encoding="utf-8", errors="replace")
    return stdin.read()


def joined(piped: str, prompt: str | None) -> str:
    """The prompt of a pipe: the piped text first, then the argument.

    Raises:
        UsageError: both are empty.
    """
    parts = [part for part in (piped.strip("\n"), prompt) if part]
    if not parts:
        raise UsageError("there is no prompt: stdin is empty", hint="localspec chat PAIR -p TEXT")
    return "\n\n".join(parts)


def _question(out: Output) -> Callable[[], str]:
    """A function that asks for the next message; it asks on stderr when stdout is a file."""
    if out.out_is_terminal:
        with suppress(ImportError):  # Windows has none; there input() edits by itself
            import readline  # noqa: F401

    def ask() -> str:
        try:
            return input(QUESTION) if out.out_is_terminal else _line(out)
        except EOFError:
            out.err.write("\n")  # the shell's prompt begins a line
            raise

    return ask


def _line(out: Output) -> str:
    out.err.write(QUESTION)
    out.err.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")
