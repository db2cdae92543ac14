"""Runs the server process: sockets, signals, file limits, the first load."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Callable

import uvicorn

from localspec.errors import LocalspecError, OutsideError, UsageError
from localspec.server.app import create_app
from localspec.server.connections import ACCEPTED_AT_ONCE, connection_cap, guarded_protocol, raise_fd_limit
from localspec.server.dispatch import Dispatcher, ServedSession
from localspec.server.metrics import Metrics
from localspec.server.settings import ServerSettings

KEEP_ALIVE_S = 30
"""How long a connection may rest between two requests."""
SHUTDOWN_S = 5
"""How long running replies may go on after the first Ctrl+C; after a second one not at all."""
LAST_WORDS_S = 3
"""How long the session then has to end, and the clients to hear of it."""
KERNEL_BACKLOG = 1024
"""Connections the kernel holds while the event loop is busy."""


def serve(
    session: ServedSession,
    settings: ServerSettings,
    *,
    on_listening: Callable[[str], None] = lambda url: None,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal; the session is closed at the end.

    Args:
        session: A session that may still be loading.
        settings: Where to listen and whom to serve.
        on_listening: Called with the base URL once connections are accepted; `/health` answers from then on.
        on_ready: Called from another thread once the pair has generated its first tokens.

    Raises:
        UsageError: the address cannot be listened on.
        LocalspecError: the pair could not be loaded; the error of the load.
    """
    cap = connection_cap(raise_fd_limit())
    try:
        listener = bind(settings.host, settings.port)
    except LocalspecError:
        session.close()
        raise
    metrics = Metrics()
    dispatcher = Dispatcher(session, settings.limits, metrics)
    config = uvicorn.Config(
        create_app(dispatcher, settings, metrics),
        http=guarded_protocol(settings.limits, cap),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S + LAST_WORDS_S,
        # The proxy in front may say who the client is only when the operator made it the only way in.
        proxy_headers=False,
    )
    server = _Server(config, listener, dispatcher, lambda: on_listening(base_url(listener)))
    failure: list[LocalspecError] = []

    def await_load() -> None:
        error = dispatcher.wait_settled()
        if error is None:
            on_ready()
        else:
            failure.append(error)
            server.should_exit = True

    threading.Thread(target=await_load, name="first-load", daemon=True).start()
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        dispatcher.close()
        listener.close()
    if failure:
        raise failure[0]


class _Server(uvicorn.Server):
    """Tells when it listens, and lets the kernel hold more connections than the loop accepts at once.

    At the end replies that still run get an error of their protocol, where uvicorn would cut them off.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        dispatcher: Dispatcher,
        on_listening: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._listener = listener
        self._dispatcher = dispatcher
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listener.listen(KERNEL_BACKLOG)
        self._on_listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_replies())
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn waited for nobody
            await ending
            if tasks := list(self.server_state.tasks):
                await asyncio.wait(tasks, timeout=LAST_WORDS_S)
        ending.cancel()

    async def _end_replies(self) -> None:
        until = time.monotonic() + SHUTDOWN_S
        while time.monotonic() < until and not self.force_exit:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(self._dispatcher.close)


def base_url(listener: socket.socket) -> str:
    """`http://host:port` of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind(host: str, port: int) -> socket.socket:
    """A bound socket.

    Raises:
        UsageError: the host name or address is not this machine's.
        OutsideError: the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UsageError(f"cannot listen on `{host}`: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            hint = "stop the other program or choose another --port; 0 takes a free one"
            raise OutsideError(f"port {port} on `{host}` is taken", hint=hint) from error
        raise UsageError(f"cannot listen on `{host}` port {port}: {error.strerror}") from error
    return listener
