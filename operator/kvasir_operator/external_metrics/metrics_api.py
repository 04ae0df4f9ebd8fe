"""The routes of external.metrics.k8s.io/v1beta1.

https://github.com/kubernetes/metrics/blob/master/pkg/apis/external_metrics/v1beta1/types.go
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from kvasir.kube.objects import Object, holds, name_of, namespace_of
from kvasir.resource.ownership.name_claims import names_of
from kvasir_operator.external_metrics.combine import METRICS, Combine, quantity
from kvasir_operator.external_metrics.front_proxy import FrontProxy
from kvasir_operator.external_metrics.router_reports import NoReportError, RouterReports
from kvasir_operator.external_metrics.selector import SelectorError, parse_selector

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
MODEL, DEPLOYMENT = "model", "deployment"
"""Labels of a metric: the name that clients use, and the LLMDeployment's."""
_MAX_AT_ONCE = 64
_MAX_BODY_BYTES = 1024

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class MetricsApi:
    """Handlers that answer the API server, and nobody else."""

    def __init__(
        self, resources: Callable[[], list[Object]], reports: RouterReports, proxy: FrontProxy
    ) -> None:
        self.proxy = proxy
        self._resources = resources
        self._reports = reports
        self._at_once = 0

    def application(self) -> web.Application:
        """Return the application of all routes."""
        app = web.Application(middlewares=[self._pass], client_max_size=_MAX_BODY_BYTES)
        base = f"/apis/{GROUP}/{VERSION}"
        app.router.add_get("/apis", self.groups)
        app.router.add_get(f"/apis/{GROUP}", self.group)
        app.router.add_get(base, self.resources)
        app.router.add_get(f"{base}/namespaces/{{namespace}}/{{metric}}", self.metric)
        return app

    @web.middleware
    async def _pass(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        transport = request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        if not self.proxy.sent(certificate, request.headers):
            return _refusal(401, "Unauthorized", "only the API server's front proxy is answered")
        if self._at_once >= _MAX_AT_ONCE:
            return _refusal(429, "TooManyRequests", "too many requests at once; ask again")
        self._at_once += 1
        try:
            return await handler(request)
        except web.HTTPException as error:
            return _refusal(error.status, error.reason.replace(" ", ""), error.reason)
        finally:
            self._at_once -= 1

    async def groups(self, _: web.Request) -> web.Response:
        """GET /apis."""
        return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]})

    async def group(self, _: web.Request) -> web.Response:
        """GET /apis/{group}."""
        return web.json_response(_GROUP)

    async def resources(self, _: web.Request) -> web.Response:
        """GET /apis/{group}/{version}: the metrics."""
        listed = [
            {
                "name": name,
                "singularName": "",
                "namespaced": True,
                "kind": "ExternalMetricValueList",
                "verbs": ["get"],
            }
            for name in METRICS
        ]
        return web.json_response(
            {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{GROUP}/{VERSION}",
                "resources": listed,
            }
        )

    async def metric(self, request: web.Request) -> web.Response:
        """GET a metric of a namespace's LLMDeployments, one value each."""
        name = request.match_info["metric"]
        combine = METRICS.get(name)
        if combine is None:
            known = ", ".join(METRICS)
            return _refusal(404, "NotFound", f"there is no metric {name[:100]!r}; there is {known}")
        try:
            selects = parse_selector(request.query.get("labelSelector", ""))
            chosen = [
                labels
                for each in self._resources()
                if namespace_of(each) == request.match_info["namespace"]
                and selects(labels := labels_of(each))
                and holds(each, "Accepted")
            ]
            items = [item for labels in chosen if (item := await self._item(name, combine, labels))]
        except SelectorError as error:
            return _refusal(400, "BadRequest", str(error))
        except NoReportError as error:
            return _refusal(503, "ServiceUnavailable", str(error))
        return web.json_response(
            {
                "kind": "ExternalMetricValueList",
                "apiVersion": f"{GROUP}/{VERSION}",
                "metadata": {},
                "items": items,
            }
        )

    async def _item(
        self, name: str, combine: Combine, labels: dict[str, str]
    ) -> dict[str, Any] | None:
        """Return one value; None where there is none, such as a percentile of no requests."""
        value = combine(await self._reports.of(labels[MODEL]))
        if value is None:
            return None
        return {
            "metricName": name,
            "metricLabels": {MODEL: labels[MODEL], DEPLOYMENT: labels[DEPLOYMENT]},
            "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "value": quantity(value),
        }


def labels_of(resource: Object) -> dict[str, str]:
    """Return the labels that select a deployment's metrics: its own, its name and its model's."""
    own = resource["metadata"].get("labels") or {}
    return {**own, MODEL: names_of(resource)[0], DEPLOYMENT: name_of(resource)}


_GROUP = {
    "kind": "APIGroup",
    "apiVersion": "v1",
    "name": GROUP,
    "versions": [{"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}],
    "preferredVersion": {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION},
}


def _refusal(status: int, reason: str, message: str) -> web.Response:
    """Return a refusal as every API server does: a Status."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": status,
        "reason": reason,
        "message": message,
    }
    return web.json_response(body, status=status)
