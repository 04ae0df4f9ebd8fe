"""The HTTP application of one API process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from kvasir.http_app import RawApp
from kvasir.openapi_document import Documentation, Endpoint
from kvasir_engine.core.client import CoreClient
from kvasir_engine.metric_registry import MetricRegistry
from kvasir_engine.sampling_params import PARAMETERS
from kvasir_engine.server.anthropic.messages_body import CountTokensBody, MessagesBody
from kvasir_engine.server.anthropic.messages_error import has_messages_errors, messages_error
from kvasir_engine.server.generation.api_metrics import ApiMetrics
from kvasir_engine.server.http.adapter_routes import AdapterRoutes
from kvasir_engine.server.http.http_metrics import HttpMetrics
from kvasir_engine.server.http.middleware import RequestMiddleware, RootPathMiddleware
from kvasir_engine.server.http.oip_routes import OipRoutes
from kvasir_engine.server.http.ops_routes import OpsRoutes
from kvasir_engine.server.http.routes import ApiRoutes, json_response
from kvasir_engine.server.loaded_adapters import LoadBody, UnloadBody
from kvasir_engine.server.oip.infer import InferBody, error_body
from kvasir_engine.server.openai.api_error import FAILED_SENTENCE, ApiError
from kvasir_engine.server.openai.schema import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from kvasir_engine.server.openai_responses.responses_body import ResponsesBody
from kvasir_engine.server.served_model import ServedModel
from kvasir_engine.server.server_settings import ServerSettings
from kvasir_engine.server.server_state import ServerState

KSERVE_PREFIX = "/openai"
"""KServe's own server has OpenAI's routes under it, and so its clients' addresses do."""
OIP_PREFIX = "/v2"
_DOCUMENTATION = Path(__file__).with_name("openapi.yaml")

_ERRORS = {
    404: ("There is no route {path!r}.", "not_found"),
    405: ("{path!r} does not take {method}; use {allow}.", "method_not_allowed"),
}


def create_app(client: CoreClient, model: ServedModel, settings: ServerSettings) -> FastAPI:
    """The application; `app.state.server` is its ServerState.

    It may listen before the core serves: /live is 200, /health and /ready 503 until then. Whoever
    runs it calls `app.state.server.lifecycle.drain(seconds)` on SIGTERM, before it closes the
    listener.
    """
    registry = MetricRegistry(settings.metrics_prefix, model.name)
    state = ServerState(client, model, settings, ApiMetrics(registry))

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(state.lifecycle.start())
        state.fleet_secret.follow()
        state.api_key_file.follow()
        try:
            yield
        finally:
            state.fleet_secret.stop()
            state.api_key_file.stop()
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await starting
            await state.body_workers.close()

    endpoints = _endpoints(state)
    http_metrics = HttpMetrics(registry, [each.path for each in endpoints])
    handlers: dict[Any, Any] = {ApiError: _api_error, HTTPException: _http_error, 500: _crash}
    app = RawApp(
        endpoints,
        Documentation(
            "Kvasir engine",
            _DOCUMENTATION,
            lambda: model.name,
            fields={name: parameter.schema for name, parameter in PARAMETERS.items()},
            bearer=bool(settings.api_keys or settings.api_key_file),
            root_path=settings.root_path,
        ),
        middleware=[
            *([Middleware(RootPathMiddleware, settings.root_path)] if settings.root_path else ()),
            *_cross_origin(settings.origins),
            Middleware(RequestMiddleware, keyring=state.keyring, count=http_metrics.count),
        ],
        exception_handlers=handlers,
        lifespan=lifespan,
    )
    app.state.server = state
    return app


def _cross_origin(origins: Sequence[str]) -> Iterator[Middleware]:
    """Yield what answers browsers that ask whether a page of another origin may call; before the
    keys are checked, since they ask without one."""
    if origins:
        yield Middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )


def _endpoints(state: ServerState) -> list[Endpoint]:
    api, ops, adapters = ApiRoutes(state), OpsRoutes(state), AdapterRoutes(state)
    oip = OipRoutes(state, api, ops)
    openai = [
        Endpoint("/v1/completions", api.completions, ("POST",), CompletionBody),
        Endpoint("/v1/chat/completions", api.chat_completions, ("POST",), ChatBody),
        Endpoint("/v1/responses", api.responses, ("POST",), ResponsesBody),
        Endpoint("/v1/models", api.models),
        Endpoint("/v1/models/{name:path}", api.model),
    ]
    return [
        *openai,
        *(replace(each, path=KSERVE_PREFIX + each.path) for each in openai),
        Endpoint("/v1/load_lora_adapter", adapters.load, ("POST",), LoadBody),
        Endpoint("/v1/unload_lora_adapter", adapters.unload, ("POST",), UnloadBody),
        Endpoint("/v1/messages", api.messages, ("POST",), MessagesBody),
        Endpoint("/v1/messages/count_tokens", api.count_tokens, ("POST",), CountTokensBody),
        Endpoint(OIP_PREFIX, oip.server),
        Endpoint("/v2/health/live", oip.live),
        Endpoint("/v2/health/ready", oip.ready),
        Endpoint("/v2/models/{name:path}/ready", oip.model_ready),
        Endpoint("/v2/models/{name:path}/infer", oip.infer, ("POST",), InferBody),
        Endpoint("/v2/models/{name:path}", oip.model),
        Endpoint("/tokenize", api.tokenize, ("POST",), TokenizeBody),
        Endpoint("/detokenize", api.detokenize, ("POST",), DetokenizeBody),
        Endpoint("/health", ops.health),
        Endpoint("/live", ops.live),
        Endpoint("/ready", ops.ready),
        Endpoint("/load", ops.load),
        Endpoint("/reset_prefix_cache", ops.reset_prefix_cache, ("POST",)),
        Endpoint("/metrics", ops.metrics),
        Endpoint("/version", ops.version),
    ]


async def _api_error(request: Request, error: ApiError) -> Response:
    if request.url.path.startswith(f"{OIP_PREFIX}/"):
        return json_response(error_body(error), error.status, error.headers)
    if has_messages_errors(request.url.path):
        return json_response(messages_error(error), error.status, error.headers)
    return error.response()


async def _http_error(request: Request, error: HTTPException) -> Response:
    headers = dict(error.headers or {})
    template, code = _ERRORS.get(error.status_code, (str(error.detail), "bad_request"))
    message = template.format(
        path=request.url.path[:200], method=request.method, allow=headers.get("Allow", "another")
    )
    return await _api_error(
        request, ApiError(error.status_code, message, code=code, headers=headers)
    )


async def _crash(request: Request, _error: Exception) -> Response:
    # Answered outside of the gate, which sets this header otherwise.
    headers = {"x-request-id": request.scope["state"]["request_id"]}
    return await _api_error(request, ApiError(500, FAILED_SENTENCE, headers=headers))
