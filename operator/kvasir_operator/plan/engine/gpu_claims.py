"""GPUs by dynamic resource allocation: the claims of a pod, and the template that they are made of.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

from __future__ import annotations

from typing import Final

from kvasir.kube.objects import Object
from kvasir.resource.gpus.resources_spec import GPUClaim
from kvasir_operator.objects import short_hash
from kvasir_operator.plan.step import PlanInputs, StepResult

GPU_CLAIM: Final = "gpus"
"""Name of the claim in a pod, and of the request in a template."""


def claim_gpus(inputs: PlanInputs) -> StepResult:
    """Want the ResourceClaimTemplate of a device class. One of other content has another name: its
    content cannot change, and pods of an older revision may still be made of it. All of them go
    with the deployment."""
    claim = inputs.spec.resources.gpu_claim
    if claim is None or claim.device_class_name is None:
        return StepResult()
    request: Object = {
        "name": GPU_CLAIM,
        "exactly": {
            "deviceClassName": claim.device_class_name,
            "allocationMode": "ExactCount",
            "count": claim.count,
        },
    }
    made = inputs.child(
        "resource.k8s.io/v1",
        "ResourceClaimTemplate",
        _template_name(inputs, claim),
        spec={"spec": {"devices": {"requests": [request]}}},
    )
    return StepResult(manifests=(made,))


def pod_claim(inputs: PlanInputs, claim: GPUClaim) -> Object:
    """Return the claim in an engine's pod."""
    name = claim.resource_claim_template_name or _template_name(inputs, claim)
    return {"name": GPU_CLAIM, "resourceClaimTemplateName": name}


def _template_name(inputs: PlanInputs, claim: GPUClaim) -> str:
    content = short_hash([claim.device_class_name, claim.count], 6)
    return f"{inputs.name}-gpus-{content}"
