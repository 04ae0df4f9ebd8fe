"""Scheduling and security of pods: the same for a deployment's engines and its downloads."""

from __future__ import annotations

from typing import Any

from kvasir.kube.objects import Object
from kvasir.resource import labels
from kvasir_operator.plan.model_download.storage import is_tied_to_a_node
from kvasir_operator.plan.step import PlanInputs

_HOSTNAME = "kubernetes.io/hostname"


def pod_base(inputs: PlanInputs) -> Object:
    """Return the fields of a PodSpec that engines and downloads have in common."""
    template = inputs.spec.pod_template
    base: Object = {
        "serviceAccountName": inputs.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, **inputs.settings.pod_security},
    }
    secrets = [
        *inputs.settings.image_pull_secrets,
        *(each.name for each in inputs.defaults.image_pull_secrets),
        *(each.name for each in template.image_pull_secrets),
    ]
    optional: dict[str, Any] = {
        "imagePullSecrets": [{"name": name} for name in dict.fromkeys(secrets)],
        "nodeSelector": dict(template.node_selector),
        "tolerations": [
            each.model_dump(by_alias=True, exclude_none=True) for each in template.tolerations
        ],
        "affinity": _affinity(inputs),
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
        "schedulerName": template.scheduler_name,
    }
    return {**base, **{name: value for name, value in optional.items() if value}}


CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def _affinity(inputs: PlanInputs) -> Object:
    """Return the user's affinity, and one to the node where a single node's volume is mounted."""
    given = inputs.spec.pod_template.affinity
    affinity: Object = given.model_dump(by_alias=True, exclude_none=True) if given else {}
    near = near_volume(inputs)
    if near:
        pods = dict(affinity.get("podAffinity") or {})
        affinity["podAffinity"] = {**pods, _WISHED: [*(pods.get(_WISHED) or ()), *near]}
    return affinity


_WISHED = "preferredDuringSchedulingIgnoredDuringExecution"


def near_volume(inputs: PlanInputs) -> list[Object]:
    """Return the wish to be where the deployment's pods have a volume of a single node mounted."""
    if not is_tied_to_a_node(inputs.observed.claim):
        return []
    term = {
        "labelSelector": {"matchLabels": {labels.DEPLOYMENT: inputs.name}},
        "topologyKey": _HOSTNAME,
    }
    return [{"weight": 100, "podAffinityTerm": term}]
