"""Names that operator, router, charts and users' selectors agree on."""

from __future__ import annotations

from typing import Final

GROUP: Final = "kvasir.dev"
VERSION: Final = "v1alpha1"
PLURAL: Final = "llmdeployments"

DEPLOYMENT: Final = "kvasir.dev/deployment"
"""Name of the LLMDeployment, on everything made for it."""

COMPONENT: Final = "kvasir.dev/component"
"""Role of a pod: one of the values below."""

CLASS: Final = "kvasir.dev/class"
"""Name of the LLMDeploymentClass, on ModelNames."""

DEFAULT_CLASS: Final = "kvasir"
"""Name of a release's LLMDeploymentClass where none is given."""

ENGINE: Final = "engine"
DOWNLOAD: Final = "download"
ROUTER: Final = "router"
OPERATOR: Final = "operator"

KSERVE_SERVICE: Final = "serving.kserve.io/inferenceservice"
"""KServe's label on its pods: the InferenceService's name."""

ROUTED: Final = "kvasir.dev/routed"
"""Condition of an engine pod, and its readiness gate: every Ready router serves it."""

REVISION: Final = "kvasir.dev/revision"
"""Label of engine pods: a hash of their template, to tell new ones from old."""

TRACK: Final = "kvasir.dev/track"
"""Label of the pods of a canary, with the value CANARY: routers send them no request but those that
`status.rollout.split` of their LLMDeployment gives their revision."""
CANARY: Final = "canary"

LEAVING: Final = "kvasir.dev/leaving"
"""Condition of an engine pod: it will end soon, or its node will, for one of the reasons below."""

NODE_LEAVES: Final = "NodeLeaves"
NODE_ENDS: Final = "NodeEnds"
POD_ASKS: Final = "PodAsks"
STAYS: Final = "Stays"
LEAVES_NOW: Final = (NODE_ENDS, POD_ASKS)
"""Reasons for which its streams are moved at once."""

LEAVE: Final = "kvasir.dev/leave"
"""Annotation of an engine pod: somebody says why it has to go, as for a fault of its GPU."""

ROUTED_RUN: Final = "kvasir.dev/routed-run"
"""Annotation of an engine pod: the run of its engine (uid/restarts) that the condition is about."""

ENGINE_TYPE: Final = "kvasir.dev/engine"
"""Label of an engine pod: what it runs. Without it, of an LLMDeployment, it is Kvasir's engine."""

CUSTOM_API: Final = "kvasir.dev/custom-api"
"""Annotation of pods of type custom: paths and names of metrics, as JSON."""

ADAPTERS: Final = "kvasir.dev/adapters"
"""Annotation of an engine pod: the LoRA adapters that a run of its engine holds, as JSON."""

ENGINE_CONTAINER: Final = "engine"
"""Name of the engine's container."""

MANAGER: Final = "kvasir-operator"
"""Value of app.kubernetes.io/managed-by, and the field manager of what the operator applies."""

HTTP_PORT: Final = 8000
GRPC_PORT: Final = 8001
EVENTS_PORT: Final = 5557
REPLAY_PORT: Final = 5558
ENGINE_PORTS: Final = {
    "http": HTTP_PORT,
    "grpc": GRPC_PORT,
    "events": EVENTS_PORT,
    "replay": REPLAY_PORT,
}
"""An engine's ports by the names they have in its pod and its Service."""
ROUTER_PORT: Final = 8080
ROUTER_ADMIN_PORT: Final = 8081

MODELS_DIRECTORY: Final = "/models"
"""Mount point of the model volume, in engines read-only."""

CA_DIRECTORY: Final = "/etc/kvasir/ca"
"""Mount point of a class' certificates in engines and downloads."""

FLEET_DIRECTORY: Final = "/etc/kvasir/fleet"
"""Mount point of the fleet secret in engines."""


def identity(deployment: str, component: str) -> dict[str, str]:
    """The labels that select the pods of one component of an LLMDeployment; they never change."""
    return {DEPLOYMENT: deployment, COMPONENT: component}


def common_labels(deployment: str, component: str) -> dict[str, str]:
    """The labels of everything made for an LLMDeployment."""
    return {
        **shared_labels(),
        "app.kubernetes.io/instance": deployment,
        **identity(deployment, component),
    }


def shared_labels() -> dict[str, str]:
    """The labels of what is made for all LLMDeployments of a namespace."""
    return {"app.kubernetes.io/name": "kvasir-engine", "app.kubernetes.io/managed-by": MANAGER}
