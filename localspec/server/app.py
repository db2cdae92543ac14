"""Puts the application together: routes, guards, error shapes, the OpenAPI document."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pydantic_core
from fastapi import FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp

from localspec import __version__
from localspec.api.faults import Fault, validation_fault
from localspec.errors import LocalspecError
from localspec.server.dispatch import Dispatcher
from localspec.server.generate import refusal
from localspec.server.guards import BodyGuard, HostGuard, KeyGuard, StatusCounter
from localspec.server.metrics import Metrics
from localspec.server.routes import WARNING_HEADER, Routes
from localspec.server.settings import ServerSettings
from localspec.server.wire import fault_response

SWEEP_S = 0.25
"""How often time limits of replies are looked at."""


class JsonRequest(HttpRequest):
    """Reads bodies with a parser that bounds nesting and refuses NaN and broken Unicode."""

    async def json(self) -> Any:
        try:
            return pydantic_core.from_json(await self.body(), allow_inf_nan=False)
        except ValueError as error:
            raise HTTPException(400, f"the body is not valid JSON: {error}") from error


class JsonRoute(APIRoute):
    """A route whose bodies are JSON and are said to be.

    A web page may post any other content type to this server without asking first, so none is accepted.
    """

    def get_route_handler(self) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def with_json(request: HttpRequest) -> Response:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if request.method == "POST" and kind != "application/json":
                raise HTTPException(415, "send the body as `Content-Type: application/json`")
            return await handle(JsonRequest(request.scope, request.receive))

        return with_json


def create_app(dispatcher: Dispatcher, settings: ServerSettings, metrics: Metrics) -> ASGIApp:
    """The application; its lifespan starts and closes the dispatcher."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        dispatcher.start()
        sweeper = asyncio.create_task(_sweep(dispatcher))
        try:
            yield
        finally:
            sweeper.cancel()
            await asyncio.to_thread(dispatcher.close)

    app = FastAPI(
        title="localspec",
        version=__version__,
        summary="OpenAI-compatible API of one speculating pair",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.include_router(Routes(dispatcher, settings, metrics, route_class=JsonRoute).router)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(LocalspecError, _refused)
    app.add_exception_handler(Exception, _unexpected)
    # The last one added is the outermost.
    app.add_middleware(BodyGuard, limit=settings.limits.body_bytes)
    if settings.api_key:
        app.add_middleware(KeyGuard, key=settings.api_key)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[WARNING_HEADER],
        )
    app.add_middleware(HostGuard, allowed=settings.allow_hosts)
    app.add_middleware(StatusCounter, count=metrics.answered)
    return app


async def _sweep(dispatcher: Dispatcher) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        await asyncio.to_thread(dispatcher.sweep)  # it may have to end a hung worker


async def _invalid(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return fault_response(validation_fault(error.errors()))


async def _http_error(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    return fault_response(Fault(error.status_code, "invalid_request_error", str(error.detail)), error.headers)


async def _refused(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, LocalspecError)
    return refusal(error)


async def _unexpected(_: HttpRequest, error: Exception) -> Response:
    return fault_response(
        Fault(500, "server_error", f"unexpected {type(error).__name__}; the server's log has it")
    )
