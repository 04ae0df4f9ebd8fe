"""The Deployment, and how one revision follows another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvasir.resource import labels
from kvasir_operator.objects import Object, is_terminating, label
from kvasir_operator.plan.draft import Draft
from kvasir_operator.plan.engine.pod_template import REVISION
from kvasir_operator.plan.pod_problems import lacks_gpu_since

SURGE_PATIENCE = 60.0
"""Seconds that a surge pod may wait for a GPU before a replica is given up for it."""
_HISTORY = 3


@dataclass(frozen=True, slots=True)
class Strategy:
    """How many pods there may be above and below replicas in a rollout."""

    surge: int
    unavailable: int
    gave_up_surge: bool = False
    """The cluster has no GPU for a surge pod: one replica goes before one comes."""


def strategy_of(draft: Draft, revision: str) -> Strategy:
    """Surge first; without a GPU for the surge pod one down, one up, until the rollout is over."""
    wanted = draft.deployment.spec.rollout_strategy
    first = Strategy(wanted.max_surge, wanted.max_unavailable)
    if first.surge == 0 or first.unavailable > 0 or not _is_rolling(draft, revision):
        return first
    instead = Strategy(0, 1, gave_up_surge=True)
    if _live_strategy(draft.observed.deployment) == (0, 1):
        return instead
    waited = _longest_wait_for_gpu(draft, revision)
    if waited is None:
        return first
    if waited >= SURGE_PATIENCE:
        return instead
    draft.look_again(SURGE_PATIENCE - waited)
    return first


def deployment_manifest(draft: Draft, template: Object, strategy: Strategy) -> Object:
    """The Deployment; its replicas are always those of the spec, which scalers change there."""
    spec = draft.deployment.spec
    return draft.child(
        "apps/v1",
        "Deployment",
        draft.name,
        spec={
            "replicas": spec.replicas,
            "revisionHistoryLimit": _HISTORY,
            "progressDeadlineSeconds": spec.lifecycle.startup_seconds + 600,
            "selector": {"matchLabels": labels.identity(draft.name, labels.ENGINE)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": strategy.surge,
                    "maxUnavailable": strategy.unavailable,
                },
            },
            "template": template,
        },
    )


def old_pods(draft: Draft, revision: str) -> list[Object]:
    """Engine pods of other revisions, also those that are ending."""
    return [pod for pod in draft.observed.pods if label(pod, REVISION) != revision]


def _is_rolling(draft: Draft, revision: str) -> bool:
    """Whether pods of another revision still serve, or will until others replace them."""
    return any(not is_terminating(pod) for pod in old_pods(draft, revision))


def _live_strategy(deployment: Object | None) -> tuple[Any, Any] | None:
    if deployment is None:
        return None
    rolling = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    return rolling.get("maxSurge"), rolling.get("maxUnavailable")


def _longest_wait_for_gpu(draft: Draft, revision: str) -> float | None:
    """Seconds that a pod of the new revision has been waiting for a GPU; None if none does."""
    since = [
        moment
        for pod in draft.observed.pods
        if label(pod, REVISION) == revision and not is_terminating(pod)
        if (moment := lacks_gpu_since(pod)) is not None
    ]
    return (draft.observed.now - min(since)).total_seconds() if since else None
