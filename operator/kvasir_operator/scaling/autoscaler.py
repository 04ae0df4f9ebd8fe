"""The loop: ask the routers, decide for every model, write through the scale subresource."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog
from pydantic import ValidationError

from kvasir.kube import ApiError
from kvasir.kube.client import Cluster
from kvasir.kube.objects import Object, is_terminating, name_of, namespace_of
from kvasir.resource.autoscaling_spec import Autoscaling
from kvasir.resource.ownership.name_claims import names_of
from kvasir_operator.controller.metrics import Metrics
from kvasir_operator.controller.view import View
from kvasir_operator.controller.work_queue import Key
from kvasir_operator.external_metrics.router_reports import NoReportError
from kvasir_operator.kinds import LLMDEPLOYMENTS
from kvasir_operator.plan.observed import ScalingProblem
from kvasir_operator.scaling.events import MANAGER, Events
from kvasir_operator.scaling.fleet_reports import FleetReports, Report
from kvasir_operator.scaling.foreign_autoscalers import ForeignAutoscalers
from kvasir_operator.scaling.load import load_of
from kvasir_operator.scaling.model_scaler import ModelScaler
from kvasir_operator.scaling.recommendation import Recommendation, Replicas
from kvasir_operator.scaling.router_scaler import RouterScaler
from kvasir_operator.scaling.schedules import Bounds, ScheduleClock
from kvasir_operator.settings import OperatorSettings

LOOK_SECONDS = 1.0
"""Between two looks: a request for a model without a replica waits no longer until one is made."""
TOLD_SECONDS = 15.0
"""A problem that lasts this long is told in the condition ScalingActive."""

_log = structlog.get_logger("kvasir_operator.scaling")


@dataclass
class _Model:
    """One LLMDeployment that is scaled."""

    uid: str
    scaler: ModelScaler
    clock: ScheduleClock = field(default_factory=ScheduleClock)
    active: tuple[str, ...] | None = None
    """Schedules that were active at the last look; None = there was none."""
    problem: str = ""
    """Reason why nothing is scaled now; "" = it is."""
    since: float = 0.0
    """When the problem began."""
    told: ScalingProblem | None = None
    """The last that was handed to the status."""


class Autoscaler:
    """Writer of `spec.replicas`, and of nothing else; every other part of the operator reads it."""

    def __init__(
        self,
        cluster: Cluster,
        view: View,
        settings: OperatorSettings,
        metrics: Metrics,
        changed: Callable[[Key], None],
        now: Callable[[], float] = time.monotonic,
        utc_now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._utc_now = utc_now
        self._events = Events(cluster, metrics)
        self._view = view
        self._settings = settings
        self._metrics = metrics
        self._changed = changed
        self._now = now
        self._foreign = ForeignAutoscalers(cluster, settings, now)
        self._routers = RouterScaler(cluster, settings, metrics)
        self._models: dict[Key, _Model] = {}

    def problem(self, key: Key) -> ScalingProblem | None:
        """Return what keeps a model from being scaled; None = not known yet."""
        found = self._models.get(key)
        return found.told if found is not None else None

    async def run(self) -> None:
        """Scale for ever; a look that fails is told and made again."""
        routers = self._view.ready_routers
        where = self._settings.router_namespace
        async with FleetReports(lambda: routers(where), self._settings) as reports:
            while True:
                try:
                    await self.look(reports)
                except Exception:  # a defect of one look must not end the work on all models
                    _log.exception("a look at the models failed")
                await asyncio.sleep(LOOK_SECONDS)

    async def look(self, reports: FleetReports) -> None:
        """Look at all models once."""
        scaled = {}
        for resource in self._view.held():
            wanted = _autoscaling_of(resource)
            if wanted is not None:
                scaled[Key(namespace_of(resource), name_of(resource))] = resource, wanted
        for key in self._models.keys() - scaled.keys():
            del self._models[key]
        if not scaled and not self._routers.wanted:
            return
        try:
            found, silent = await reports.ask(), ""
        except NoReportError as error:
            found, silent = {}, str(error)
        ready = len(self._view.ready_routers(self._settings.router_namespace))
        await self._routers.look(self._now(), ready, None if silent else found)
        foreign = await self._foreign.of({key.namespace for key in scaled})
        for key, (resource, wanted) in scaled.items():
            model = self._model(key, resource)
            if key in foreign:
                self._tell(key, model, f"{foreign[key]} scales it", by=foreign[key])
                continue
            bounds = model.clock.bounds(wanted, self._utc_now())
            await self._tell_schedules(model, resource, bounds)
            asked = bounds.of(wanted)
            problem = await self._scale(model, resource, asked, None if silent else found)
            self._tell(key, model, silent or problem)

    async def _scale(
        self,
        model: _Model,
        resource: Object,
        wanted: Autoscaling,
        found: dict[str, list[Report]] | None,
    ) -> str:
        """Scale one model; return why that was not possible, "" if it was. `found` is None where
        a router is silent: then only minReplicas holds."""
        name = names_of(resource)[0]
        known = found.get(name) if found is not None else None
        status = resource.get("status") or {}
        replicas = Replicas(
            int(resource["spec"].get("replicas", 1)), int(status.get("readyReplicas") or 0)
        )
        now = self._now()
        if known is not None:
            problem, decided = "", model.scaler.decide(now, wanted, replicas, load_of(known))
        else:
            problem, decided = f"no router knows the model {name} yet", _at_least(wanted, replicas)
        if decided.replicas == replicas.wanted:
            return problem
        try:
            await self._write(resource, replicas, decided)
        except ApiError as error:
            # It has changed or is gone, and the watch will say so
            return problem if error.status in (404, 409) else str(error)
        model.scaler.changed(now, decided.replicas - replicas.wanted)
        return problem

    async def _tell_schedules(self, model: _Model, resource: Object, bounds: Bounds) -> None:
        """Tell in events which schedules have begun and ended since the last look; not at the
        first one, as after a start of the operator."""
        before, model.active = model.active, bounds.active
        if before is None or before == bounds.active:
            return
        self._changed(Key(namespace_of(resource), name_of(resource)))
        within = f"replicas are from {bounds.low} to {bounds.high}"
        for title in (each for each in bounds.active if each not in before):
            await self._events.tell(resource, "ScheduleStarted", f"{title}: {within} from now on.")
        for title in (each for each in before if each not in bounds.active):
            await self._events.tell(resource, "ScheduleEnded", f"{title}: {within} from now on.")

    async def _write(self, resource: Object, replicas: Replicas, decided: Recommendation) -> None:
        namespace, name = namespace_of(resource), name_of(resource)
        version = str(resource["metadata"]["resourceVersion"])
        await self._cluster.scale(
            LLMDEPLOYMENTS, namespace, name, decided.replicas, version, MANAGER
        )
        self._metrics.count_write(LLMDEPLOYMENTS.plural, "scale")
        _log.info(
            "scaled",
            namespace=namespace,
            name=name,
            replicas=decided.replicas,
            before=replicas.wanted,
            why=decided.why,
        )
        message = f"From {replicas.wanted} replicas to {decided.replicas}: {decided.why}."
        await self._events.tell(resource, "Scaled", message)

    def _model(self, key: Key, resource: Object) -> _Model:
        uid = str(resource["metadata"]["uid"])
        found = self._models.get(key)
        if found is None or found.uid != uid:
            found = self._models[key] = _Model(uid, ModelScaler())
        return found

    def _tell(self, key: Key, model: _Model, problem: str, by: str = "") -> None:
        """Note how a look went; a problem is told when it has lasted, or somebody else scales."""
        now = self._now()
        if bool(problem) != bool(model.problem):
            model.since = now
        model.problem = problem
        if problem and not by and now - model.since < TOLD_SECONDS:
            return
        told = ScalingProblem(problem, by)
        if told != model.told:
            model.told = told
            self._changed(key)


def _at_least(wanted: Autoscaling, replicas: Replicas) -> Recommendation:
    """Return what holds whatever the load is: a fleet never shrinks on a load that is not known."""
    low = wanted.min_replicas
    return Recommendation(max(low, replicas.wanted), f"minReplicas is {low}")


def _autoscaling_of(resource: Object) -> Autoscaling | None:
    """Return what to scale by; None for one that others scale, or that is to be left alone."""
    spec = resource["spec"]
    given = spec.get("autoscaling")
    if not given or spec.get("paused") or is_terminating(resource):
        return None
    try:
        wanted = Autoscaling.model_validate(given)
    except ValidationError:
        return None  # as the condition Accepted says
    return wanted if wanted.controller == "kvasir" else None
