"""The operations: from a typed body to a `Call`, and the small read-only endpoints."""

from __future__ import annotations

import time
from typing import Any, Literal

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localspec.api.assemble import Choice
from localspec.api.bodies import ChatBody, CompletionBody, GenerationBody
from localspec.api.faults import Fault
from localspec.api.replies import ChatCompletion, Completion, ErrorReply, Model, ModelList
from localspec.api.requests import Ground, chat_requests, completion_requests
from localspec.api.responses import ResponseObject, ResponsesWriter
from localspec.api.responses_body import ResponsesBody, as_chat, repeated
from localspec.api.writers import ChatWriter, CompletionWriter
from localspec.engine.settings import Request
from localspec.errors import LocalspecError
from localspec.interfaces import SessionInfo
from localspec.server.dispatch import Dispatcher
from localspec.server.generate import Call, answer, stream
from localspec.server.metrics import CONTENT_TYPE, Metrics
from localspec.server.settings import ServerSettings
from localspec.server.streams import Chunks, Dialect, Events
from localspec.server.wire import EVENT_STREAM, fault_response, json_response

Body = GenerationBody | ResponsesBody
WARNING_HEADER = "X-Localspec-Warning"


class HealthReply(BaseModel):
    status: Literal["loading", "ready", "restarting", "failed"]
    reason: str | None = None
    waiting: int
    """Requests in the queue."""


Answers = dict[int | str, dict[str, Any]]
FAULTS: Answers = {status: {"model": ErrorReply} for status in ("4XX", "5XX")}


class Routes:
    """Everything the endpoints need; `router` carries them."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        settings: ServerSettings,
        metrics: Metrics,
        *,
        route_class: type[APIRoute] = APIRoute,
    ) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._metrics = metrics
        self._started = int(time.time())
        self.router = router = APIRouter(route_class=route_class)
        streams: dict[str, Any] = {"content": {EVENT_STREAM: {}}}
        text = {"content": {"text/plain": {"schema": {"type": "string"}}}}
        health = {"model": HealthReply}

        def document(ok: dict[str, Any], more: Answers = FAULTS) -> dict[str, Any]:
            # `response_model` stays off: replies are dumped by us, and only described here.
            return {"response_model": None, "responses": {200: ok, **more}}

        router.post("/v1/chat/completions", **document({"model": ChatCompletion} | streams))(self.chat)
        router.post("/v1/completions", **document({"model": Completion} | streams))(self.completion)
        router.post("/v1/responses", **document({"model": ResponseObject} | streams))(self.respond)
        router.get("/v1/models", **document({"model": ModelList}))(self.models)
        router.get("/v1/models/{model:path}", **document({"model": Model}))(self.model)
        router.get("/health", **document(health, {503: health, **FAULTS}))(self.health)
        router.get("/metrics", **document(text))(self.metrics)

    async def chat(self, http: HttpRequest, body: ChatBody) -> Response:
        """One turn of a conversation through the model's template."""
        info = self._dispatcher.info
        if (refused := self._other_model(body, info)) is not None:
            return refused
        requests = chat_requests(body, self._ground(info))
        dialect = Chunks(ChatWriter(info.pair, body.n or 1), include_usage=wants_usage(body))
        return await self._run(http, body, info, requests, dialect)

    async def completion(self, http: HttpRequest, body: CompletionBody) -> Response:
        """The continuation of a raw prompt, without a template."""
        info = self._dispatcher.info
        if (refused := self._other_model(body, info)) is not None:
            return refused
        requests = completion_requests(body, self._ground(info))
        echoes = [request.prompt or "" if body.echo else "" for request in requests]
        writer = CompletionWriter(info.pair, body.n or 1, echoes)
        return await self._run(http, body, info, requests, Chunks(writer, include_usage=wants_usage(body)))

    async def respond(self, http: HttpRequest, body: ResponsesBody) -> Response:
        """One turn of a conversation in the shape of OpenAI's Responses; nothing is stored."""
        info = self._dispatcher.info
        if (refused := self._other_model(body, info)) is not None:
            return refused
        requests = chat_requests(as_chat(body), self._ground(info))
        dialect = Events(ResponsesWriter(info.pair, repeated(body)))
        return await self._run(http, body, info, requests, dialect)

    async def models(self) -> Response:
        """The one loaded pair."""
        return json_response(ModelList(object="list", data=[self._model(self._dispatcher.info)]))

    async def model(self, model: str) -> Response:
        """The loaded pair, when `model` is its name."""
        info = self._dispatcher.info
        return json_response(self._model(info)) if model in names_of(info) else not_loaded(model, info)

    async def health(self) -> Response:
        """200 once a real generation has worked, 503 with the reason before and after."""
        health = self._dispatcher.health
        reply = HealthReply(status=health.status, reason=health.reason, waiting=self._dispatcher.waiting)
        return json_response(reply, 200 if health.status == "ready" else 503)

    async def metrics(self) -> Response:
        """Prometheus metrics."""
        return Response(self._metrics.render(), media_type=CONTENT_TYPE)

    def _ground(self, info: SessionInfo) -> Ground:
        return Ground(info, self._settings.base, self._settings.limits.reply_tokens)

    def _model(self, info: SessionInfo) -> Model:
        return Model(id=info.pair, object="model", created=self._started, owned_by="localspec")

    def _other_model(self, body: Body, info: SessionInfo) -> Response | None:
        if self._settings.strict_model and body.model and body.model not in names_of(info):
            return not_loaded(body.model, info)
        return None

    async def _run(
        self, http: HttpRequest, body: Body, info: SessionInfo, requests: list[Request], dialect: Dialect
    ) -> Response:
        self._metrics.ignored(body.model_extra or ())
        warnings = warnings_of(body, info)
        headers = {WARNING_HEADER: "; ".join(warnings)} if warnings else {}
        client = body.user or (http.client.host if http.client else "")
        call = Call([Choice(request, info) for request in requests], [], dialect, headers)
        try:
            for request in requests:
                call.tickets.append(self._dispatcher.submit(request, client))
        except LocalspecError:
            call.cancel()
            raise
        return await (stream if body.stream else answer)(http, call)


def wants_usage(body: GenerationBody) -> bool:
    return bool(body.stream_options and body.stream_options.include_usage)


def warnings_of(body: Body, info: SessionInfo) -> list[str]:
    """What the client should know although it is served, in characters that a header can carry."""
    found: list[str] = []
    name = (body.model or "").encode("ascii", "replace").decode()[:100]
    if body.model and body.model not in names_of(info):
        shown = f"model `{name}`" if name.isprintable() else "another model"
        found.append(f"{shown} is not loaded; served by `{info.pair}`")
    return found


def names_of(info: SessionInfo) -> tuple[str, str]:
    return info.pair, info.target


def not_loaded(model: str, info: SessionInfo) -> Response:
    fault = Fault(
        404,
        "invalid_request_error",
        f"the model `{model[:100]}` is not loaded; this server runs `{info.pair}`",
        "model",
        "model_not_found",
    )
    return fault_response(fault)
