"""Remedies of the reasons in conditions; docs/troubleshooting.md has the causes."""

from __future__ import annotations

from collections.abc import Mapping

from kvasir.resource.deployment_status import Reason

_MEND_FIELD = "Correct the field that the message names, and apply the file again."
_WAIT = "Wait."
_CANARY = (
    "Wait, or end the step with `kubectl kvasir promote {name}`, or roll back with `kubectl kvasir"
    " abort {name}`."
)
_CANARY_WORSE = (
    "Look at `kubectl kvasir logs {name}`; change the spec, allow more in"
    " spec.rollout.canary.analysis where the change is meant, or try again with `kubectl kvasir"
    " retry {name}`."
)
_NODES = "Add nodes, or let spec.podTemplate (nodeSelector, tolerations) and spec.resources fit."

REMEDIES: Mapping[Reason, str] = {
    Reason.INVALID_SPEC: _MEND_FIELD,
    Reason.UPSTREAM_UNREACHABLE: (
        "Check the URL, the key (router.readableSecrets of the chart) and the certificate of"
        " spec.external."
    ),
    Reason.ADAPTER_REFUSED: (
        "Mend what the engine says: a higher rank in spec.engine.args, or another adapter."
    ),
    Reason.UNKNOWN_FALLBACK: "Correct spec.fallbacks; until then the name is passed over.",
    Reason.NO_IMAGE: "Set spec.engine.image, or the chart's engine.images.",
    Reason.NAME_CONFLICT: (
        "Give spec.model.name or its aliases another name, or delete the other LLMDeployment"
        " (kubectl get modelnames)."
    ),
    Reason.NOT_SERVED: (
        "Set spec.className to one of `kubectl get llmdeploymentclasses`, or install that release."
    ),
    Reason.SECRET_MISSING: "Make the Secret in the model's namespace.",
    Reason.PROFILE_MISSING: "Set spec.profile to a profile of the class, or add it to the class.",
    Reason.CLASS_REPLACED: (
        "Write what the class gave into it again, or remove its annotation kvasir.dev/made-again."
    ),
    Reason.CA_BUNDLE_MISSING: (
        "Make the ConfigMap or Secret in the model's namespace, or change the class."
    ),
    Reason.CLAIMS_UNAVAILABLE: (
        "Add resourceclaimtemplates to the chart's operator.optionalKinds, or give"
        " spec.resources.gpuClaim.resourceClaimTemplateName."
    ),
    Reason.CLAIM_MISSING: "Make the PersistentVolumeClaim in the model's namespace.",
    Reason.CLAIM_NOT_BOUND: "Name a StorageClass in spec.cache.pvc, or make a volume that fits.",
    Reason.DOWNLOAD_FAILED: (
        "Check address, credentials (spec.model.secretRef) and room (spec.cache.pvc.size); a"
        " permanent failure is tried again when the model or the Secret changes."
    ),
    Reason.DOES_NOT_FIT: (
        "Use more or larger GPUs, a shorter spec.engine.config.maxModelLen or a quantised model;"
        " `kvasir plan -f FILE` counts."
    ),
    Reason.UNKNOWN: "Wait for the download: until then the size of the model is not known.",
    Reason.INSUFFICIENT_GPUS: _NODES,
    Reason.UNSCHEDULABLE: _NODES,
    Reason.SURGE_UNSCHEDULABLE: "Wait: pods are replaced in place.",
    Reason.CANARY_STARTING: _WAIT,
    Reason.CANARY_ANALYSING: _CANARY,
    Reason.CANARY_PAUSED: _CANARY,
    Reason.CANARY_PROMOTING: _WAIT,
    Reason.CANARY_PROMOTED: _WAIT,
    Reason.CANARY_ROLLED_BACK: _CANARY_WORSE,
    Reason.ERRORS_INCREASED: _CANARY_WORSE,
    Reason.REFUSALS_INCREASED: _CANARY_WORSE,
    Reason.TTFT_INCREASED: _CANARY_WORSE,
    Reason.ITL_INCREASED: _CANARY_WORSE,
    Reason.START_FAILED: "Mend what keeps the canary's pod from starting.",
    Reason.STEP_TIMEOUT: (
        "Ask for fewer minSamples, a larger weight or more maxSeconds in spec.rollout.canary."
    ),
    Reason.ABORTED: "Change the spec, or `kubectl kvasir retry {name}`.",
    Reason.PROMOTED_BY_HAND: _WAIT,
    Reason.TOO_FEW_SAMPLES: _CANARY,
    Reason.UNDECIDED: _CANARY,
    Reason.NO_DIFFERENCE: _WAIT,
    Reason.VOLUME_ON_OTHER_NODE: (
        "Use a claim with ReadWriteMany, or as many replicas as fit on the volume's node."
    ),
    Reason.IMAGE_PULL_FAILED: (
        "Check name and tag of spec.engine.image, the registry, and the pull secret."
    ),
    Reason.CONTAINER_CONFIG: "Make the Secret, ConfigMap or key that the message names.",
    Reason.CRASHING: (
        "Mend what the last lines of `kubectl kvasir logs {name} --previous` tell;"
        " docs/troubleshooting.md explains the engine's messages."
    ),
    Reason.PROGRESS_DEADLINE: (
        "Look at `kubectl kvasir logs {name}`; allow more spec.lifecycle.startupSeconds for a large"
        " model on slow storage."
    ),
    Reason.QUOTA_EXCEEDED: "Raise the quota of the namespace, or ask for less in spec.resources.",
    Reason.PODS_REFUSED: "Mend what the admission policy in the message refuses.",
    Reason.APPLY_FAILED: "Mend what the API server's answer names; it is tried again by itself.",
    Reason.API_ERROR: "Give the operator the right that the message names.",
    Reason.DELETION_STUCK: "Remove the finalizers that the message names, or mend what set them.",
    Reason.OPERATOR_ERROR: "Report the traceback in the operator's log.",
    Reason.METRICS_MISSING: "Mend what the message names: the router, KEDA or the metrics API.",
    Reason.SCALED_BY_ANOTHER: "Delete the other autoscaler, or remove spec.autoscaling.",
    Reason.NODE_LEAVES: "Wait for a replacement; it needs room on another node.",
    Reason.NODE_ENDS: "Wait for a replacement; it needs room on another node.",
    Reason.POD_ASKS: (
        "Mend what the message names, then delete the pod, or remove its annotation"
        " kvasir.dev/leave."
    ),
    Reason.NOT_ROUTED: (
        "Wait a few seconds; then look at the routers' logs and at network policies between"
        " routers and engines."
    ),
    Reason.ROUTERS_SILENT: "Look at the routers' logs and at network policies to their admin port.",
    Reason.NO_ROUTER: (
        "Install a router, or the operator with --no-router-gate where there shall be none."
    ),
    Reason.PAUSED: "Take spec.paused out.",
    Reason.CRD_OUTDATED: "Apply the chart's CustomResourceDefinitions.",
    Reason.UNKNOWN_FIELDS: "Upgrade the operator: it does not know those fields.",
    Reason.DOWNLOADING: _WAIT,
    Reason.DOWNLOAD_PENDING: _WAIT,
    Reason.WAITING: _WAIT,
    Reason.STARTING: _WAIT,
    Reason.ROLLING_OUT: _WAIT,
}
"""Remedies by reason; {name} stands for the LLMDeployment."""


def remedy_of(reason: str, name: str) -> str | None:
    """Return the remedy of `reason` for the LLMDeployment called `name`; None of one that needs
    none, or that a newer operator gives."""
    try:
        remedy = REMEDIES.get(Reason(reason))
    except ValueError:
        return None
    return None if remedy is None else remedy.format(name=name)
