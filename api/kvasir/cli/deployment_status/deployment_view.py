"""View of a deployment with its pods and its volume, and the reason why it is not ready."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvasir.cli.deployment_status.pod_view import PodView, view_pod
from kvasir.cli.deployment_status.workload_view import WorkloadView, view_workload
from kvasir.kube.objects import label, name_of, namespace_of
from kvasir.resource import labels
from kvasir.resource.deployment_status import ConditionType
from kvasir.resource.ownership.name_claims import names_of

Object = Mapping[str, Any]

_NORMALLY_FALSE = (
    ConditionType.PODS_LEAVING,
    ConditionType.PROGRESSING,
    ConditionType.DEGRADED,
)
_NOT_WAITED_FOR = (
    *_NORMALLY_FALSE,
    ConditionType.CANARY_HEALTHY,
    ConditionType.SCALING_ACTIVE,
    ConditionType.ADAPTERS_LOADED,
)


@dataclass(frozen=True, slots=True)
class ConditionView:
    """One condition of the status."""

    type: str
    status: str
    reason: str
    message: str
    good: bool | None
    """True as it should be, False not so; None while it is neither."""


@dataclass(frozen=True, slots=True)
class ClaimView:
    """The volume claim of a deployment's models."""

    name: str
    phase: str
    capacity: str | None
    access_modes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """One LLMDeployment as it stands."""

    namespace: str
    name: str
    model: str
    revision: str | None
    names: tuple[str, ...]
    phase: str
    desired: int
    ready: int
    updated: int
    url: str | None
    stale: bool
    """The status is of an earlier generation: the operator has not looked at the last change."""
    why: str | None
    """Reason for which it is not ready; None when it is."""
    operator: str | None
    """Reason for which its operator does nothing; None when it is at work, or that may not be
    read."""
    conditions: tuple[ConditionView, ...]
    adapters: tuple[dict[str, Any], ...]
    """LoRA adapters, as the status has them."""
    cache: dict[str, Any] | None
    fit: dict[str, Any] | None
    startup: dict[str, Any] | None
    claims: tuple[ClaimView, ...]
    rollout: dict[str, Any] | None
    """State of the canary, as the status has it."""
    workloads: tuple[WorkloadView, ...]
    pods: tuple[PodView, ...]
    routers: tuple[PodView, ...] | None
    """The routers' pods; None where they may not be read."""

    def as_json(self) -> dict[str, Any]:
        """Plain values, under the names a status has."""
        return {_camel(name): _camel_keys(value) for name, value in asdict(self).items()}


def view_deployment(
    resource: Object,
    pods: Iterable[Object],
    claims: Iterable[Object],
    operator: str | None = None,
    workloads: Iterable[Object] = (),
    routers: Iterable[Object] | None = None,
) -> DeploymentView:
    """`resource` (LLMDeployment) with those of `pods`, `claims` and `workloads` (Deployments and
    Jobs) that are made for it, the pods of the `routers`, and why its `operator` does nothing."""
    metadata, spec, status = resource["metadata"], resource["spec"], resource.get("status") or {}
    namespace, name = metadata["namespace"], metadata["name"]
    own = [pod for pod in pods if _belongs(pod, namespace, name)]
    views = sorted((view_pod(pod) for pod in own), key=lambda pod: (pod.component, pod.name))
    conditions = tuple(map(_condition, status.get("conditions") or ()))
    model = spec.get("model") or {}
    return DeploymentView(
        namespace=namespace,
        name=name,
        model=model.get("uri") or "of other servers",
        revision=model.get("revision"),
        names=tuple(names_of(resource)),
        phase=status.get("phase") or "Unknown",
        desired=spec.get("replicas", 1),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        url=status.get("url"),
        stale=status.get("observedGeneration", 0) < metadata.get("generation", 0),
        why=_why(conditions, views, status, operator),
        operator=operator,
        conditions=conditions,
        adapters=tuple(status.get("adapters") or ()),
        cache=status.get("cache"),
        fit=status.get("fit"),
        startup=status.get("startup"),
        claims=tuple(_claim(claim) for claim in claims if _belongs(claim, namespace, name)),
        rollout=status.get("rollout"),
        workloads=tuple(view_workload(it) for it in workloads if _belongs(it, namespace, name)),
        pods=tuple(views),
        routers=None if routers is None else tuple(map(view_pod, routers)),
    )


def _belongs(child: Object, namespace: str, name: str) -> bool:
    return namespace_of(child) == namespace and label(child, labels.DEPLOYMENT) == name


def _condition(condition: Object) -> ConditionView:
    kind, status = condition["type"], condition["status"]
    wanted = "False" if kind in _NORMALLY_FALSE else "True"
    # A change under way is neither good nor bad.
    open_ = status == "Unknown" or (kind == ConditionType.PROGRESSING and status == "True")
    good = None if open_ else status == wanted
    return ConditionView(
        kind, status, condition.get("reason", ""), condition.get("message", ""), good
    )


def _why(
    conditions: tuple[ConditionView, ...],
    pods: list[PodView],
    status: Object,
    operator: str | None,
) -> str | None:
    """The first condition that stands in the way, in the order in which they come true, and what
    a pod says of it."""
    if not status:
        unknown = "no operator has looked at it; is the operator running, and for this namespace?"
        return operator or unknown
    if any(each.type == ConditionType.READY and each.good for each in conditions):
        return None
    obstacle = first_obstacle(conditions)
    said = f"{obstacle.reason}: {obstacle.message}" if obstacle else "it has no conditions"
    troubled = next((pod for pod in pods if pod.why and not pod.ready), None)
    if troubled is not None and str(troubled.why) not in said:
        said += f" ({troubled.name}: {troubled.why})"
    return said


def first_obstacle(conditions: Iterable[ConditionView]) -> ConditionView | None:
    """Return the condition that stands in the way of Ready: Degraded, or the first of those that
    come true one after the other; None where all is well."""
    by_type = {condition.type: condition for condition in conditions}
    degraded = by_type.get(ConditionType.DEGRADED)
    if degraded is not None and degraded.good is False:
        return degraded
    in_order = [by_type[kind] for kind in ConditionType if kind in by_type]
    bad = (each for each in in_order if not each.good and each.type not in _NOT_WAITED_FOR)
    return next(bad, None)


def _claim(claim: Object) -> ClaimView:
    status = claim.get("status") or {}
    return ClaimView(
        name_of(claim),
        status.get("phase", "Unknown"),
        (status.get("capacity") or {}).get("storage"),
        tuple(claim["spec"].get("accessModes") or ()),
    )


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def _camel_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {_camel(name): _camel_keys(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_camel_keys(each) for each in value]
    return value
