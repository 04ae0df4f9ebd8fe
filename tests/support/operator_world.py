"""Build what the operator observes: resources, pods, Jobs and claims as an API server has them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kvasir.resource import labels
from kvasir.resource.deployment_status import Status
from kvasir.wire.fleet_secret_file import FleetSecretFile
from kvasir_operator.objects import format_time
from kvasir_operator.plan import Plan, plan
from kvasir_operator.plan.canary.canary_workload import canary_name
from kvasir_operator.plan.engine.pod_template import REVISION
from kvasir_operator.plan.observed import Observed, parse_resource
from kvasir_operator.settings import Images, OperatorSettings

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BUILTIN = {"model": {"uri": "builtin://kvasir-tiny"}}
SETTINGS = OperatorSettings(
    namespace="kvasir",
    router_namespace="kvasir",
    router_url="http://kvasir-router.kvasir:8080",
    images=Images(cpu="cpu:1", cuda="cuda:1", sim="sim:1"),
    image_pull_secrets=("pull",),
    fleet_secret=FleetSecretFile("s3cret"),
)


def merged(base: dict[str, Any], *changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, dictionary by dictionary."""
    result = copy.deepcopy(base)
    for change in changes:
        for key, value in change.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else value
    return result


class World:
    """One LLMDeployment and what a cluster has made of it, to be planned again and again."""

    def __init__(
        self, spec: dict[str, Any] = BUILTIN, settings: OperatorSettings = SETTINGS
    ) -> None:
        self.settings = settings
        self.observed = Observed(
            resource={
                "apiVersion": "kvasir.dev/v1alpha1",
                "kind": "LLMDeployment",
                "metadata": {"name": "m", "namespace": "ns", "uid": "u1", "generation": 1},
                "spec": spec,
            },
            now=NOW,
            ready_routers=1,
        )

    def plan(self) -> Plan:
        """The plan, whose status the schema must know."""
        it = self.observed
        made = plan(parse_resource(it.resource, it.inherited), it, self.settings)
        Status.model_validate(made.status)
        return made

    def see(self, **changes: Any) -> World:
        self.observed = replace(self.observed, **changes)
        return self

    def later(self, seconds: float) -> World:
        return self.see(now=self.observed.now + timedelta(seconds=seconds))

    def edit(self, *changes: dict[str, Any]) -> World:
        """The user changes the spec."""
        resource = copy.deepcopy(self.observed.resource)
        resource["spec"] = merged(resource["spec"], *changes)
        resource["metadata"]["generation"] += 1
        return self.see(resource=resource)

    def step(self) -> Plan:
        """Plans, and lets the cluster have the Deployment and the status."""
        made = self.plan()
        resource = {**self.observed.resource, "status": made.status}
        self.see(resource=resource)
        for manifest in made.manifests:
            if manifest["kind"] == "Deployment":
                is_canary = manifest["metadata"]["name"] == canary_name("m")
                field = "canary_deployment" if is_canary else "deployment"
                self.see(**{field: copy.deepcopy(manifest)})
        for deleted in made.deletions:
            if deleted["metadata"]["name"] == canary_name("m"):
                self.see(canary_deployment=None)
        return made

    @property
    def revision(self) -> str:
        """Revision of the Deployment that the cluster has."""
        assert self.observed.deployment is not None
        template = self.observed.deployment["spec"]["template"]
        return str(template["metadata"]["labels"][REVISION])

    def pods(self, *pods: dict[str, Any]) -> World:
        return self.see(pods=pods)


def pod(
    name: str = "m-1",
    revision: str = "",
    *,
    up: bool = False,
    routed: bool = False,
    restarts: int = 0,
    node: str = "n1",
    status: dict[str, Any] | None = None,
    component: str = labels.ENGINE,
    leaving: bool = False,
    canary: bool = False,
) -> dict[str, Any]:
    """A pod of the deployment `m`: scheduled 2 s after it was made, running at 5 s, up at 12 s."""
    at = [format_time(NOW + timedelta(seconds=s)) for s in (-60, -58, -55, -48, -47)]
    state = {"running": {"startedAt": at[2]}}
    container = {"name": component, "ready": up, "restartCount": restarts, "state": state}
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at[1]}]
    for kind, holds, when in (
        ("ContainersReady", up, at[3]),
        (labels.ROUTED, routed, at[4]),
        ("Ready", up and routed, at[4]),
    ):
        conditions.append({"type": kind, "status": str(holds), "lastTransitionTime": when})
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "creationTimestamp": at[0],
        "labels": {**labels.identity("m", component), REVISION: revision},
    }
    if canary:
        metadata["labels"][labels.TRACK] = labels.CANARY
    if leaving:
        metadata["deletionTimestamp"] = at[4]
    own = {"phase": "Running", "containerStatuses": [container], "conditions": conditions}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": status or own}


def unschedulable(message: str, since: datetime = NOW) -> dict[str, Any]:
    """The status of a pod that no node takes."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": format_time(since),
    }
    return {"phase": "Pending", "conditions": [condition]}


def waiting(reason: str, message: str, **more: Any) -> dict[str, Any]:
    """The status of a pod whose engine container does not start."""
    state = {"waiting": {"reason": reason, "message": message}}
    own = {"name": labels.ENGINE, "image": "cpu:1", "restartCount": 0, "state": state, **more}
    return {"phase": "Pending", "containerStatuses": [own], "conditions": []}


def condition_of(made: Plan, kind: str) -> tuple[str, str, str]:
    """Status, reason and message."""
    found = next(each for each in made.status["conditions"] if each["type"] == kind)
    return found["status"], found["reason"], found["message"]


def manifest_of(made: Plan, kind: str) -> dict[str, Any]:
    """The only manifest of that kind."""
    (found,) = (each for each in made.manifests if each["kind"] == kind)
    return found


class Builders:
    """All of the above, for tests."""

    World = World
    NOW = NOW
    SETTINGS = SETTINGS
    pod = staticmethod(pod)
    unschedulable = staticmethod(unschedulable)
    waiting = staticmethod(waiting)
    condition = staticmethod(condition_of)
    manifest = staticmethod(manifest_of)
    merged = staticmethod(merged)


@pytest.fixture
def make() -> type[Builders]:
    return Builders


@pytest.fixture
def world() -> Callable[..., World]:
    """world(spec): an LLMDeployment that is not planned yet; the built-in model by default."""
    return World
