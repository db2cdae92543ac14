"""`localspec batch`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localspec.cli.face import face
from localspec.cli.options import LOAD, PAIR, REQUEST, SAMPLING, SPECULATION, Asked, SettingCommand, takes
from localspec.errors import LocalspecError, UsageError
from localspec.output import Output, to_json

if TYPE_CHECKING:
    from localspec.batch.endpoint import Endpoint
    from localspec.batch.lines import Item
    from localspec.batch.results import Result
    from localspec.batch.run import Answer, Opening, Tally


@click.command("batch", cls=SettingCommand)
@click.argument("source", metavar="IN")
@click.option("-o", "--output", metavar="OUT", type=click.Path(path_type=Path), help="File for the results.")
@click.option("--pair", metavar="PAIR", help="Pair that answers; without one the default pair.")
@click.option("--endpoint", metavar="URL", help="OpenAI-compatible server that answers instead of a pair.")
@click.option(
    "--concurrency",
    metavar="N",
    type=click.IntRange(1, 1024),
    help="Requests at once; each takes a context of its own in a pair. [default: 8, of a pair 1]",
)
@click.option("--model", metavar="NAME", help="Model name for the endpoint. [default: its first]")
@click.option("--api-key", metavar="KEY", envvar="LOCALSPEC_API_KEY", help="Key for the endpoint.")
@click.option(
    "--format", type=click.Choice(["auto", "jsonl", "lines"]), default="auto", help="What IN holds."
)
@click.option("--unordered", is_flag=True, help="Write results as they finish, not in the order of IN.")
@click.option("--resume/--no-resume", default=True, help="Go on with OUT, or start over. [default: resume]")
@takes(PAIR, SPECULATION, LOAD, SAMPLING, REQUEST)
@face("Print the summary as one JSON object; needs -o.")
def command(
    source: str,
    output: Path | None,
    pair: str | None,
    endpoint: str | None,
    concurrency: int | None,
    model: str | None,
    api_key: str | None,
    format: Any,
    unordered: bool,
    resume: bool,
    asked: Asked,
    out: Output,
) -> int:
    """Answer many prompts: OpenAI Batch JSONL, or one prompt per line; `-` reads stdin.

    Results are OpenAI Batch lines with speculation statistics. With -o a run that was ended, however it was
    ended, goes on where it stopped when the same command is given again. A request that fails is a result
    too, and the exit code is then 1.
    """
    if out.json and output is None:
        raise UsageError("`--json` needs `-o`: without it stdout carries the results")
    from localspec.batch.lines import read_items

    if endpoint is None:
        refuse_given({"--model": model}, "`{}` needs `--endpoint`")
    items = read_items(*_input(source), format)
    if endpoint is not None:
        asks = _remote(endpoint, concurrency, model, api_key, pair, asked)
        opening = _by_endpoint(asks)
        made_with = {"endpoint": asks.base, "model": model, "defaults": asks.defaults}
    else:
        if concurrency is not None:
            asked = replace(asked, given={**asked.given, "load.slots": concurrency})
        opening, made_with = _by_pair(pair, asked, out)
    try:
        tally = _run(items, output, made_with, opening, out, ordered=not unordered, resume=resume)
    except KeyboardInterrupt:
        if output is not None:
            out.note(f"what was finished is kept; give the same command again to go on with `{output}`")
        raise
    out.note(tally.line())
    if out.json:
        out.record(tally)
    return 1 if tally.failed else 0


def refuse_given(options: dict[str, Any], message: str) -> None:
    """Refuse the first option that was given where it has no effect."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(message.format(name))


def _input(source: str) -> tuple[bytes, str]:
    try:
        if source == "-":
            return sys.stdin.buffer.read(), "standard input"
        return Path(source).read_bytes(), source
    except OSError as error:
        raise LocalspecError(f"cannot read `{source}`: {error.strerror}") from error


def _run(
    items: list[Item],
    output: Path | None,
    made_with: dict[str, Any],
    opening: Opening,
    out: Output,
    *,
    ordered: bool,
    resume: bool,
) -> Tally:
    from localspec.batch.run import run_into_file, run_into_stream
    from localspec.batch.store import Store

    with out.progress("answering", len(items), "requests") as progress:

        def on_progress(finished: int, failed: int) -> None:
            progress.update(finished, f"answering, {failed} failed" if failed else None)

        if output is None:
            return run_into_stream(items, out.line, opening, on_progress, ordered=ordered)
        store = Store(output, items, json.loads(to_json(made_with)), ordered=ordered)
        return run_into_file(items, store, opening, on_progress, resume=resume)


def _by_pair(pair: str | None, asked: Asked, out: Output) -> tuple[Opening, dict[str, Any]]:
    from localspec.pairs import resolve

    files = resolve(
        pair, asked.target, asked.draft, default=asked.config.default_pair, models_dir=asked.config.models_dir
    )
    base = asked.request()

    @contextmanager
    def opening() -> Generator[Answer, None, None]:
        from localspec.batch.local import answers
        from localspec.cli.planned import recorded_worker, remember
        from localspec.cli.working import start_worker

        with start_worker(files, asked, out) as session:
            remember(files, session.info, out)

            recording = recorded_worker(files, session, out)

            def answer(items: list[Item], take: Callable[[Result], None]) -> None:
                for result in answers(recording, items, base, out.warn):
                    take(result)

            yield answer

    return opening, {"pair": files.name, "target": files.target.name, "request": base}


def _remote(
    endpoint: str,
    concurrency: int | None,
    model: str | None,
    api_key: str | None,
    pair: str | None,
    asked: Asked,
) -> Endpoint:
    """The endpoint with what was given; options that only a pair of ours could obey are refused."""
    from localspec.batch.defaults import body_fields
    from localspec.batch.endpoint import Endpoint

    refuse_given({"--pair": pair}, "`{}` and `--endpoint` exclude each other")
    asked.request()  # refuses what contradicts itself
    given = asked.given
    for option in (*LOAD, *PAIR):
        if option.fills in given:
            raise UsageError(f"`{option.flags[0]}` has no effect on an endpoint, which loads its own model")

    def section(name: str) -> dict[str, Any]:
        return {
            key.removeprefix(f"{name}."): value for key, value in given.items() if key.startswith(f"{name}.")
        }

    request = section("request")
    made = Endpoint(
        endpoint,
        api_key,
        model,
        defaults=body_fields(section("sampling"), section("speculation"), request),
        system=request.get("system"),
    )
    return made if concurrency is None else replace(made, concurrency=concurrency)


def _by_endpoint(endpoint: Endpoint) -> Opening:
    def answer(items: list[Item], take: Callable[[Result], None]) -> None:
        import asyncio

        from localspec.batch.endpoint import ask_all

        asyncio.run(ask_all(endpoint, items, take))

    return lambda: nullcontext(answer)
