"""Work beside the screen that leaving does not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_background(work: Callable[[], T]) -> T:
    """The outcome of `work`, run in a daemon thread: unlike an executor's, it never delays the way out."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        """Boundary between threads: whatever `work` raises is raised again where it is awaited."""
        value, error = None, None
        try:
            value = work()
        except BaseException as raised:  # noqa: BLE001
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="background", daemon=True).start()
    return await outcome
