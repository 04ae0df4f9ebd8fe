"""Scale the routers' own Deployment by what they carry.

Requests in flight and requests a second are what the routers tell anyway, so no metrics-server is
needed; CPU would miss streams that are open and wait for tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import structlog

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object
from kvasir.resource.autoscaling_spec import Autoscaling
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.kinds import DEPLOYMENTS
from kvasir_operator.scaling.events import MANAGER
from kvasir_operator.scaling.fleet_reports import Report
from kvasir_operator.scaling.load import WINDOW_SECONDS, Load, load_of
from kvasir_operator.scaling.model_scaler import ModelScaler
from kvasir_operator.scaling.recommendation import Recommendation, Replicas
from kvasir_operator.settings import OperatorSettings

LOOK_SECONDS = 5.0
"""Between two looks: a router takes that long to start."""
_WHOLE = 1000
"""Amount that stands for the work of one router."""

_log = structlog.get_logger("kvasir_operator.scaling")


class Carried(NamedTuple):
    """Work of all routers."""

    in_flight: float
    """Requests that run or wait, of all models."""
    requests_per_second: float
    """Requests that ended, the mean over the last minute."""


def carried_by(reports: Mapping[str, Sequence[Report]]) -> Carried:
    """Sum the reports of all models."""
    loads = [load_of(each) for each in reports.values()]
    ended = sum(load.requests for load in loads)
    return Carried(sum(load.concurrency for load in loads), ended / WINDOW_SECONDS)


class RouterScaler:
    """Writer of the replicas of the routers' Deployment, through its scale subresource."""

    def __init__(self, cluster: Cluster, settings: OperatorSettings, metrics: Metrics) -> None:
        self._cluster = cluster
        self._settings = settings
        self._metrics = metrics
        self._scaler = ModelScaler()
        self._looked: float | None = None
        self._problem = ""

    @property
    def wanted(self) -> bool:
        """True if the operator shall scale the routers."""
        return bool(self._settings.router_deployment)

    async def look(
        self, now: float, ready: int, reports: Mapping[str, Sequence[Report]] | None
    ) -> None:
        """Look at the routers, if it is time; `reports` is None where one of them is silent: then
        only the minimum holds."""
        if not self.wanted or (self._looked is not None and now - self._looked < LOOK_SECONDS):
            return
        self._looked = now
        try:
            problem = await self._scale(now, ready, reports)
        except ApiError as error:
            # One that has changed meanwhile is looked at again
            problem = "" if error.status == 409 else str(error)
        if problem and problem != self._problem:
            _log.warning("the routers are not scaled", why=problem)
        self._problem = problem

    async def _scale(
        self, now: float, ready: int, reports: Mapping[str, Sequence[Report]] | None
    ) -> str:
        settings = self._settings
        namespace, name = settings.router_namespace, settings.router_deployment
        live = await self._cluster.get(DEPLOYMENTS, namespace, name)
        if live is None:
            return f"there is no Deployment {namespace}/{name}"
        replicas = Replicas(int(live["spec"].get("replicas", 1)), ready)
        if replicas.wanted == 0:
            return f"Deployment {namespace}/{name} was scaled to 0 by hand"
        decided = self._decide(now, replicas, reports)
        if decided.replicas != replicas.wanted:
            await self._write(live, decided, replicas)
            self._scaler.changed(now, decided.replicas - replicas.wanted)
        return ""

    def _decide(
        self, now: float, replicas: Replicas, reports: Mapping[str, Sequence[Report]] | None
    ) -> Recommendation:
        settings = self._settings
        bounds = {
            "minReplicas": settings.router_min_replicas,
            "maxReplicas": settings.router_max_replicas,
            "targets": {"concurrency": _WHOLE},
        }
        if reports is None:
            low = max(settings.router_min_replicas, replicas.wanted)
            return Recommendation(low, f"minReplicas is {settings.router_min_replicas}")
        carried = carried_by(reports)
        routers = max(
            carried.in_flight / settings.router_in_flight,
            carried.requests_per_second / settings.router_requests_per_second,
        )
        load = Load(concurrency=routers * _WHOLE)
        found = self._scaler.decide(now, Autoscaling.model_validate(bounds), replicas, load)
        why = (
            f"{carried.in_flight:g} requests in flight, {carried.requests_per_second:.0f} a second"
        )
        return Recommendation(found.replicas, why)

    async def _write(self, live: Object, decided: Recommendation, before: Replicas) -> None:
        namespace, name = live["metadata"]["namespace"], live["metadata"]["name"]
        version = str(live["metadata"]["resourceVersion"])
        await self._cluster.scale(DEPLOYMENTS, namespace, name, decided.replicas, version, MANAGER)
        self._metrics.count_write(DEPLOYMENTS.plural, "scale")
        _log.info(
            "routers scaled", replicas=decided.replicas, before=before.wanted, why=decided.why
        )
