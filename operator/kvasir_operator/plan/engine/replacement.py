"""Pods that leave, and those that start in their place before they are gone."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.kube.objects import Object, annotation, condition, holds, name_of, parse_time
from kvasir.resource import labels
from kvasir.resource.deployment_status import ConditionType, Reason
from kvasir_operator.departures.pod_notice import DELETION_COST, FIRST_TO_GO
from kvasir_operator.plan.conditions import ConditionValue
from kvasir_operator.plan.model_download.storage import is_tied_to_a_node
from kvasir_operator.plan.step import PlanInputs, StepResult

GAVE_UP = "kvasir.dev/replacement"
"""Annotation of the Deployment while pods leave that no node has room to replace: why."""
PATIENCE = 900.0
"""Seconds that a replacement may wait for a node: as long as a node autoscaler may take for one
with GPUs. Until then budgets keep the pod that leaves from being evicted."""
_SHOWN = 3
_BY_URGENCY = (Reason.NODE_ENDS, Reason.POD_ASKS, Reason.NODE_LEAVES)


@dataclass(frozen=True, slots=True)
class Replacement:
    """Replicas beside those of the spec."""

    extra: int = 0
    gave_up: bool = False
    requeue: float | None = None
    """Seconds after which a replacement will have waited long enough."""


def leaving(pods: tuple[Object, ...]) -> list[Object]:
    """Return the pods that will end, of those that stay otherwise."""
    return [pod for pod in pods if holds(pod, labels.LEAVING)]


def tell_leaving(pods: tuple[Object, ...]) -> StepResult:
    """Set PodsLeaving while there are such pods, for what is the most urgent of them."""
    found = leaving(pods)
    if not found:
        return StepResult()
    found.sort(key=lambda pod: (_BY_URGENCY.index(_reason(pod)), name_of(pod)))
    told = [_told(pod) for pod in found]
    more = len(found) - _SHOWN
    if more > 0:
        told = [*told[:_SHOWN], f"And {more} more."]
    kind, reason = ConditionType.PODS_LEAVING, _reason(found[0])
    return StepResult(conditions=(ConditionValue(kind, True, reason, " ".join(told)),))


def replace_leaving(inputs: PlanInputs, pods: tuple[Object, ...], surge: int) -> Replacement:
    """Return how many replicas there shall be beside those of the spec: replacements of those of
    `pods`, all of one revision, that leave. `surge`: as many at a time.

    A replacement that starts is waited for: with fewer replicas it would be the one to go. When
    all serve, those that leave are too many, and go first by their deletion cost; then the next
    ones are replaced. Of a pod whose user gave it a deletion cost that is not certain: it stays
    until it is evicted.
    """
    ending = [pod for pod in leaving(pods) if annotation(pod, DELETION_COST) == FIRST_TO_GO]
    most = min(len(ending), surge)
    if not most or is_tied_to_a_node(inputs.observed.claim):
        return Replacement()
    live = inputs.observed.deployment
    if live is not None and annotation(live, GAVE_UP):
        return Replacement(gave_up=True)
    if len(pods) > inputs.spec.replicas and not all(holds(pod, "Ready") for pod in ending):
        # Its replacement leaves, too: a node's condition keeps no pod away, and so would the next.
        return Replacement(gave_up=True)
    staying = [pod for pod in pods if not holds(pod, labels.LEAVING)]
    starting = [pod for pod in staying if not holds(pod, "Ready")]
    wanted = inputs.spec.replicas
    if not starting:
        enough = len(pods) > wanted
        return Replacement(0 if enough else most)
    waited = _longest_wait(inputs, starting)
    if waited is not None and waited >= PATIENCE:
        return Replacement(gave_up=True)
    requeue = None if waited is None else PATIENCE - waited
    present = int((live or {}).get("spec", {}).get("replicas") or 0) - wanted
    return Replacement(min(max(present, 0), most), requeue=requeue)


def _longest_wait(inputs: PlanInputs, pods: list[Object]) -> float | None:
    """Return the seconds that one of them has waited for a node; None if none does."""
    scheduled = [condition(pod, "PodScheduled") for pod in pods]
    since = [
        parse_time(each["lastTransitionTime"])
        for each in scheduled
        if each.get("status") == "False" and each.get("lastTransitionTime")
    ]
    return (inputs.observed.now - min(since)).total_seconds() if since else None


def _reason(pod: Object) -> Reason:
    """Return the reason of its condition; one of a newer operator's counts as the mildest."""
    told = condition(pod, labels.LEAVING).get("reason")
    return next((each for each in _BY_URGENCY if each == told), _BY_URGENCY[-1])


def _told(pod: Object) -> str:
    node = pod["spec"].get("nodeName") or "no node"
    return f"Pod {name_of(pod)} on {node}: {condition(pod, labels.LEAVING).get('message', '')}"
