"""The Deployment, and the way from one revision to the next."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvasir.kube.objects import Object, annotation, is_terminating, label
from kvasir.kube.pod_problems import lacks_gpu_since
from kvasir.resource import labels
from kvasir.resource.spec import Spec
from kvasir_operator.plan.engine.engine_pods import EnginePods
from kvasir_operator.plan.engine.pod_template import REVISION
from kvasir_operator.plan.engine.replacement import GAVE_UP, Replacement, replace_leaving
from kvasir_operator.plan.gpu_fit import FITTED, fitted_for
from kvasir_operator.plan.step import PlanInputs

SURGE = "kvasir.dev/surge"
"""Annotation of the Deployment while a rollout has given up its surge pod: why."""
SURGE_PATIENCE = 60.0
"""Seconds that a surge pod may wait for a GPU before a replica is given up for it."""
_HISTORY = 3


@dataclass(frozen=True, slots=True)
class Strategy:
    """Pods that there may be above and below replicas in a rollout."""

    surge: int | str
    unavailable: int | str
    gave_up_surge: bool = False
    """The cluster has no GPU for a surge pod: one replica goes before one comes."""
    requeue: float | None = None
    """Seconds after which a surge pod will have waited for a GPU long enough."""


def strategy_of(inputs: PlanInputs, revision: str) -> Strategy:
    """Choose surge first; without a GPU for the surge pod one down, one up, until all are new."""
    wanted = inputs.spec.rollout_strategy
    first = Strategy(wanted.max_surge, wanted.max_unavailable)
    surges = first.surge not in (0, "0%")
    if not surges or _whole_pods(first.unavailable, inputs) or not _is_rolling(inputs, revision):
        return first
    instead = Strategy(0, 1, gave_up_surge=True)
    live = inputs.observed.deployment
    if live is not None and annotation(live, SURGE):
        return instead
    waited = _longest_wait_for_gpu(inputs, revision)
    if waited is None:
        return first
    if waited >= SURGE_PATIENCE:
        return instead
    return replace(first, requeue=SURGE_PATIENCE - waited)


def deployment_manifest(
    inputs: PlanInputs, template: Object, strategy: Strategy, replacement: Replacement
) -> Object:
    """Return the Deployment; its replicas are those of the spec, which autoscalers change there,
    and the replacements of pods that leave."""
    spec = inputs.spec
    rolling = {"maxSurge": strategy.surge, "maxUnavailable": strategy.unavailable}
    manifest = inputs.child(
        "apps/v1",
        "Deployment",
        inputs.name,
        spec={
            "replicas": spec.replicas + replacement.extra,
            "revisionHistoryLimit": _HISTORY,
            "progressDeadlineSeconds": progress_deadline(spec),
            "selector": {"matchLabels": labels.identity(inputs.name, labels.ENGINE)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
            "template": template,
        },
    )
    annotations = {FITTED: fitted_for(inputs)}
    if strategy.gave_up_surge:
        annotations[SURGE] = "no GPU for a pod more"
    if replacement.gave_up:
        annotations[GAVE_UP] = "no node for a pod more"
    manifest["metadata"]["annotations"] = annotations
    return manifest


def replacement_of(inputs: PlanInputs, pods: EnginePods, strategy: Strategy) -> Replacement:
    """Return what replaces pods that leave, as far as the strategy has room for it: nothing while
    a rollout replaces all."""
    if pods.old or strategy.gave_up_surge:
        return Replacement()
    return replace_leaving(inputs, pods.current, _surge_pods(strategy.surge, inputs.spec.replicas))


def _surge_pods(value: int | str, replicas: int) -> int:
    """Return the pods that there may be above `replicas`, as a Deployment's controller counts a
    share: rounded up."""
    if isinstance(value, int):
        return value
    return -(-replicas * int(value.removesuffix("%")) // 100)


def progress_deadline(spec: Spec) -> int:
    """Return the seconds after which a rollout without a new engine counts as failed."""
    return spec.lifecycle.startup_seconds + 600


def _whole_pods(value: int | str, inputs: PlanInputs) -> int:
    """Return the pods that may be missing, of a number or a share such as 25%, as a Deployment's
    controller counts them: rounded down."""
    if isinstance(value, int):
        return value
    return inputs.spec.replicas * int(value.removesuffix("%")) // 100


def _is_rolling(inputs: PlanInputs, revision: str) -> bool:
    """Tell if pods of another revision still serve, or will until others replace them."""
    return any(
        label(pod, REVISION) != revision and not is_terminating(pod) for pod in inputs.observed.pods
    )


def _longest_wait_for_gpu(inputs: PlanInputs, revision: str) -> float | None:
    """Return the seconds that a pod of the new revision has waited for a GPU; None if none does."""
    since = [
        moment
        for pod in inputs.observed.pods
        if label(pod, REVISION) == revision and not is_terminating(pod)
        if (moment := lacks_gpu_since(pod)) is not None
    ]
    return (inputs.observed.now - min(since)).total_seconds() if since else None
