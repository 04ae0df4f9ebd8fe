"""A FastAPI application whose endpoints take the raw request.

Bodies are msgspec's: FastAPI makes the routes and the document, and spends nothing on a request.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, request_response
from starlette.staticfiles import StaticFiles

from kvasir import __version__
from kvasir.openapi_document import Documentation, Endpoint, describe

_STATIC_PATH = "/docs/static"
_SCRIPT, _STYLE, _ICON = (
    f"{_STATIC_PATH}/{name}" for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")
)
DOCS_PATHS = frozenset({"/docs", "/openapi.json", _SCRIPT, _STYLE, _ICON})
"""Paths that a browser loads to show the document."""


class RawRoute(APIRoute):
    """A route that calls its endpoint as Starlette does, without FastAPI's dependencies."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self.app = request_response(endpoint)
        if self.methods and "GET" in self.methods:
            self.methods.add("HEAD")

    matches = Route.matches
    handle = Route.handle


class RawApp(FastAPI):
    """FastAPI's application of RawRoutes: what it wraps around other routes is left out."""

    __call__ = Starlette.__call__
    build_middleware_stack = Starlette.build_middleware_stack

    def __init__(
        self, endpoints: Sequence[Endpoint], documentation: Documentation, **options: Any
    ) -> None:
        """Make the application of `endpoints`; `options` are FastAPI's."""
        super().__init__(
            title=documentation.title,
            version=__version__,
            openapi_url=None,
            **options,
        )
        self._endpoints = endpoints
        self._documentation = documentation
        self.router.route_class = RawRoute
        for each in endpoints:
            summary, _, description = (inspect.getdoc(each.handler) or "").partition("\n")
            self.add_api_route(
                each.path,
                each.handler,
                methods=list(each.methods),
                summary=summary.rstrip("."),
                description=description.strip(),
            )
        self.add_route("/openapi.json", self._document, include_in_schema=False)
        self.add_route("/docs", self._page, include_in_schema=False)
        self.mount(_STATIC_PATH, StaticFiles(packages=[("fastapi_offline", "static")]))

    def openapi(self) -> dict[str, Any]:
        """Return the document, made at the first call."""
        if not self.openapi_schema:
            self.openapi_schema = describe(self, self._endpoints, self._documentation)
        return self.openapi_schema

    async def _document(self, _request: Request) -> Response:
        # In a thread: the loop that others' answers stream from would stall.
        return JSONResponse(await run_in_threadpool(self.openapi))

    async def _page(self, _request: Request) -> Response:
        return get_swagger_ui_html(  # relative URLs, for a proxy that puts a prefix before them
            openapi_url="openapi.json",
            title=self.title,
            swagger_js_url=_SCRIPT[1:],
            swagger_css_url=_STYLE[1:],
            swagger_favicon_url=_ICON[1:],
        )
