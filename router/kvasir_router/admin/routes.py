"""The routes of the admin port."""

from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from kvasir.http_app import RawApp
from kvasir.openapi_document import Documentation, Endpoint
from kvasir_router.admin.audit_log import AuditLog
from kvasir_router.admin.callers import Callers
from kvasir_router.admin.explain import UnknownModelError, explain
from kvasir_router.admin.problem import ProblemError
from kvasir_router.admin.spend_report import days_of, spend_csv
from kvasir_router.admin.statistics import Statistics
from kvasir_router.admin.views import fleet_view, serving_view
from kvasir_router.discovery.specs import PolicySpec
from kvasir_router.fleet.model import Model
from kvasir_router.proxy.gateway import Gateway
from kvasir_router.proxy.local_routes import ready_object
from kvasir_router.scaling.signals import external_metrics
from kvasir_router.spend.spend_ledger import SpendLedger
from kvasir_router.store_error import StoreError
from kvasir_router.telemetry.router_metrics import CONTENT_TYPE
from kvasir_router.wire.envelope import Envelope, refusal
from kvasir_router.wire.responses import error_object

_MAX_SMALL_BODY = 4096
_MAX_NAMES = 20
_PAGE = Path(__file__).with_name("page.html")
_DOCUMENTATION = Path(__file__).with_name("openapi.yaml")
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; frame-ancestors 'none'"
    )
}


class PolicyChange(msgspec.Struct, forbid_unknown_fields=True):
    """Another policy for a model, with options of its own."""

    policy: str
    options: dict[str, Any] = {}


_decode_change = msgspec.json.Decoder(PolicyChange).decode


class AdminRoutes:
    """Handlers of the routes, a method each."""

    def __init__(
        self,
        gateway: Gateway,
        statistics: Statistics,
        spend: SpendLedger | None,
        audit: AuditLog | None,
    ) -> None:
        self._gateway = gateway
        self._statistics = statistics
        self._spend = spend
        self._audit = audit
        self._callers = Callers(gateway)

    async def page(self, request: Request) -> Response:
        """Show the fleet to a person."""
        return Response(_PAGE.read_bytes(), media_type="text/html", headers=_PAGE_HEADERS)

    async def health(self, request: Request) -> Response:
        """Tell that the process is alive and its loop turns."""
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Tell whether requests are taken, as on the main port."""
        if not self._gateway.ready:
            return _json({"status": "not ready"}, 503)
        return _json(ready_object(self._gateway.warnings()))

    async def metrics(self, request: Request) -> Response:
        """Return the metrics of all processes, in Prometheus' text format."""
        await self._statistics.gather()
        return Response(self._statistics.text(), media_type=CONTENT_TYPE.decode())

    async def fleet(self, request: Request) -> Response:
        """Return every model with its replicas: health, load and failures."""
        await self._statistics.gather()
        return _json(fleet_view(self._gateway, self._statistics))

    async def serving(self, request: Request) -> Response:
        """Return the ids of the replicas that get requests.

        Who opens engine pods' readiness gates asks here.
        """
        return _json(serving_view(self._gateway))

    async def scaling(self, request: Request) -> Response:
        """Return the scaling signals of one model."""
        await self._statistics.gather()
        report = self._statistics.scaling(self._model(request))
        form = request.query_params.get("format", "plain")
        if form == "external-metrics":
            return _json(external_metrics(report, datetime.now(UTC).strftime("%FT%TZ")))
        if form != "plain":
            message = f"format {form[:64]!r} is not plain or external-metrics"
            raise ProblemError(400, message, "bad_request")
        return _json(report)

    async def all_scaling(self, request: Request) -> Response:
        """Return the scaling signals of every model, also of those without a replica."""
        await self._statistics.gather()
        return _json({"models": self._statistics.all_scaling()})

    async def all_canaries(self, request: Request) -> Response:
        """Return the samples of every model that has a canary: of it, and of the stable revision
        beside it."""
        await self._statistics.gather()
        return _json({"models": self._statistics.all_canaries()})

    async def spend(self, request: Request) -> Response:
        """Return what each key has used of each model, by day, as CSV.

        Of today, or of the days `from` and `to` (UTC), both included.
        """
        with self._audited("spend.read", request) as details:
            details.update(dict(request.query_params))
            return await self._spend_table(request)

    async def _spend_table(self, request: Request) -> Response:
        if self._spend is None:
            message = "spend is not kept; start the router with --spend-store"
            raise ProblemError(404, message, "not_found")
        try:
            days = days_of(request.query_params.get("from"), request.query_params.get("to"))
            text = await spend_csv(self._spend, *days)
        except ValueError as error:
            raise ProblemError(400, str(error), "bad_request") from None
        except StoreError as error:
            raise ProblemError(503, str(error), "store_unavailable") from None
        return Response(text, media_type="text/csv")

    async def set_policy(self, request: Request) -> Response:
        """Set a model's policy.

        It holds until discovery names another one or the router ends.
        """
        with self._audited("policy.set", request) as details:
            self._callers.authorize(request)
            model = self._model(request)
            try:
                change = _decode_change(await _body(request, _MAX_SMALL_BODY))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                message = f'the body must be {{"policy": NAME}}: {error}'
                raise ProblemError(400, message, "bad_request") from None
            details.update(policy=change.policy, options=change.options, was=model.policy.spec.name)
            try:
                self._gateway.fleet.set_policy(model, PolicySpec(change.policy, change.options))
            except ValueError as error:
                raise ProblemError(400, str(error), "bad_request") from None
            return _json({"model": model.name, "policy": change.policy})

    async def explain(self, request: Request) -> Response:
        """Explain where a request with this body would go.

        It goes nowhere.
        """
        body = await _body(request, self._gateway.settings.limits.body_bytes)
        path = request.query_params.get("path", "/v1/chat/completions")
        try:
            return _json(explain(self._gateway, self._statistics, body, path))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProblemError(400, refusal(body, error)[0], "bad_request") from None
        except UnknownModelError as error:
            raise ProblemError(404, str(error), "model_not_found") from None

    def _audited(self, action: str, request: Request) -> AbstractContextManager[dict[str, Any]]:
        """Return what records the action that is done within."""
        if self._audit is None:
            return nullcontext({})
        who, client = self._callers.caller(request).who, self._callers.address(request)
        return self._audit.action(action, who, client, request.path_params.get("model", ""))

    def _model(self, request: Request) -> Model:
        name = request.path_params["model"]
        model = self._gateway.fleet.models.get(name)
        if model is None:
            models = ", ".join(list(self._gateway.fleet.models)[:_MAX_NAMES]) or "none"
            message = f"there is no model {name[:256]!r}; models here: {models}"
            raise ProblemError(404, message, "model_not_found")
        return model


def make_admin_app(
    gateway: Gateway,
    statistics: Statistics,
    spend: SpendLedger | None = None,
    audit: AuditLog | None = None,
) -> FastAPI:
    """Return the application on the admin port, for operators and probes; not for clients."""
    routes = AdminRoutes(gateway, statistics, spend, audit)
    return RawApp(
        [
            Endpoint("/", routes.page),
            Endpoint("/health", routes.health),
            Endpoint("/ready", routes.ready),
            Endpoint("/metrics", routes.metrics),
            Endpoint("/serving", routes.serving),
            Endpoint("/debug/fleet", routes.fleet),
            Endpoint("/debug/route", routes.explain, ("POST",), Envelope),
            Endpoint("/scaling", routes.all_scaling),
            Endpoint("/scaling/{model:path}", routes.scaling),
            Endpoint("/canaries", routes.all_canaries),
            Endpoint("/spend", routes.spend),
            Endpoint("/policy/{model:path}", routes.set_policy, ("PUT", "POST"), PolicyChange),
        ],
        Documentation(
            "Kvasir router", _DOCUMENTATION, lambda: next(iter(gateway.fleet.models), "MODEL")
        ),
        exception_handlers={ProblemError: _answer_problem, HTTPException: _answer_no_route},
    )


async def _answer_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, ProblemError)  # noqa: S101 - registered for these alone
    return _json(error_object(problem.status, str(problem), problem.code), problem.status)


async def _answer_no_route(request: Request, problem: Exception) -> Response:
    """Starlette's own 404 and 405."""
    assert isinstance(problem, HTTPException)  # noqa: S101 - registered for these alone
    what = f"{request.method} {request.url.path[:256]}"
    allowed = (problem.headers or {}).get("Allow")
    if allowed:
        message, code = f"{what} is not possible; use {allowed}", "method_not_allowed"
    else:
        message, code = f"there is no route {what} on the admin port", "not_found"
    answer = _json(error_object(problem.status_code, message, code), problem.status_code)
    answer.headers.update(problem.headers or {})
    return answer


async def _body(request: Request, limit: int) -> bytes:
    """Raise ProblemError when it is larger than `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise ProblemError(413, f"the body is larger than {limit} bytes", "request_too_large")
        parts.append(part)
    return b"".join(parts)


def _json(content: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")
