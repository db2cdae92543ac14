"""`localspec serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from localspec.cli.face import face
from localspec.cli.options import (
    LISTEN,
    LOAD,
    PAIR,
    REQUEST,
    SAMPLING,
    SLOTS,
    SPECULATION,
    Asked,
    SettingCommand,
    takes,
)
from localspec.errors import LocalspecError
from localspec.output import Output

if TYPE_CHECKING:
    from localspec.server.settings import ServerSettings

MIB = 1 << 20


@click.command("serve", cls=SettingCommand)
@click.argument("pair", required=False)
@click.option(
    "--api-key",
    metavar="KEY",
    envvar="LOCALSPEC_API_KEY",
    help="Key that clients must send. Better in LOCALSPEC_API_KEY: others can read a command line.",
)
@click.option(
    "--allow-host", "allow_hosts", metavar="NAME", multiple=True, help="Further `Host` to answer to."
)
@click.option("--cors-origin", "cors_origins", metavar="URL", multiple=True, help="Web origin that may ask.")
@click.option("--strict-model", is_flag=True, help="Refuse other model names instead of serving them.")
@click.option(
    "--reply-limit", metavar="N", type=click.IntRange(1), help="Longest reply anybody gets, in tokens."
)
@click.option("--reply-timeout", metavar="S", type=click.FloatRange(1), help="Longest run of one reply.")
@click.option("--queue-limit", metavar="N", type=click.IntRange(1), help="Requests that may wait.")
@click.option("--body-limit", metavar="MIB", type=click.IntRange(1, 1024), help="Largest request body.")
@takes(LISTEN, PAIR, SPECULATION, SLOTS, LOAD, SAMPLING, REQUEST)
@face("Print where it listens as one JSON object.")
def command(pair: str | None, asked: Asked, out: Output, **options: Any) -> None:
    """Answer OpenAI-compatible clients with a pair until Ctrl+C.

    Engine options are what a request gets where its body says nothing. `/health` answers 200 once the pair
    has generated; `/metrics` is for Prometheus.
    """
    try:
        from localspec.server.run import serve
    except ModuleNotFoundError as error:
        hint = "pip install 'localspec[serve]'"
        raise LocalspecError(
            f"`localspec serve` needs `{error.name}`, which is not installed", hint=hint
        ) from error
    from localspec.cli.planned import recorded_worker, remember
    from localspec.cli.working import start_worker
    from localspec.pairs import resolve

    files = resolve(
        pair, asked.target, asked.draft, default=asked.config.default_pair, models_dir=asked.config.models_dir
    )
    settings = server_settings(asked, **options)
    for warning in exposure(settings):
        out.warn(warning)
    session = start_worker(files, asked, out)
    urls: list[str] = []

    def ready() -> None:
        info = session.info
        slots = info.effective.slots
        remember(files, info, out)
        url = f"{urls[0]}/v1"
        if out.json:
            out.record({"url": url, "pair": info.pair, "n_ctx": info.n_ctx, "slots": slots})
        else:
            out.line(url)
        if info.off_reason is not None:
            out.warn(f"speculation is off: {info.off_reason}")
        methods = ", ".join(info.methods)
        at_once = f" · {slots} requests at once" if slots > 1 else ""
        out.note(f"{info.pair} is ready · context {info.n_ctx}{at_once} · methods {methods} · Ctrl+C ends it")

    serve(recorded_worker(files, session, out), settings, on_listening=urls.append, on_ready=ready)


def server_settings(
    asked: Asked,
    *,
    reply_limit: int | None,
    reply_timeout: float | None,
    queue_limit: int | None,
    body_limit: int | None,
    **options: Any,
) -> ServerSettings:
    """The server's settings: flags over the configuration over the defaults."""
    from localspec.server.settings import Limits, ServerSettings

    given: dict[str, Any] = {
        "reply_tokens": reply_limit,
        "reply_s": reply_timeout,
        "queued": queue_limit,
        "body_bytes": body_limit and body_limit * MIB,
    }
    config = asked.config.with_flags(asked.given)
    return ServerSettings(
        host=config.host,
        port=config.port,
        limits=Limits(**{name: value for name, value in given.items() if value is not None}),
        base=asked.request(),
        **options,
    )


def exposure(settings: ServerSettings) -> list[str]:
    """What the operator should know about who can reach the server."""
    from localspec.server.guards import is_loopback

    if is_loopback(settings.host):
        return []
    if settings.api_key:
        return [
            f"`{settings.host}` is reachable from other machines, and HTTP shows them the key and the text"
        ]
    return [f"anybody who can reach `{settings.host}` can use this server; set a key, or keep to 127.0.0.1"]
