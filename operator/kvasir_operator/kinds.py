"""The kinds of objects that the operator reads and writes."""

from __future__ import annotations

from typing import Any

from kvasir.kube import Kind
from kvasir.resource import labels
from kvasir.resource.ownership import deployment_class, model_name

_GROUP_VERSION = f"{labels.GROUP}/{labels.VERSION}"

LLMDEPLOYMENTS = Kind(_GROUP_VERSION, labels.PLURAL)
DEPLOYMENTS = Kind("apps/v1", "deployments")
PODS = Kind("v1", "pods")
EVENTS = Kind("v1", "events")
JOBS = Kind("batch/v1", "jobs")
CLAIMS = Kind("v1", "persistentvolumeclaims")
SERVICES = Kind("v1", "services")
SECRETS = Kind("v1", "secrets")
CONFIG_MAPS = Kind("v1", "configmaps")
ACCOUNTS = Kind("v1", "serviceaccounts")
BUDGETS = Kind("policy/v1", "poddisruptionbudgets")
NETWORK_POLICIES = Kind("networking.k8s.io/v1", "networkpolicies")
POD_MONITORS = Kind("monitoring.coreos.com/v1", "podmonitors")
RULES = Kind("monitoring.coreos.com/v1", "prometheusrules")
SCALED_OBJECTS = Kind("keda.sh/v1alpha1", "scaledobjects")
AUTOSCALERS = Kind("autoscaling/v2", "horizontalpodautoscalers")
NODES = Kind("v1", "nodes", namespaced=False)
LEASES = Kind("coordination.k8s.io/v1", "leases")
CLUSTER_ROLES = Kind("rbac.authorization.k8s.io/v1", "clusterroles", namespaced=False)
CLASSES = Kind(_GROUP_VERSION, deployment_class.PLURAL, namespaced=False)
MODEL_NAMES = Kind(_GROUP_VERSION, model_name.PLURAL, namespaced=False)
CRDS = Kind("apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False)

RESOURCE_CLAIM_TEMPLATES = Kind("resource.k8s.io/v1", "resourceclaimtemplates")

OPTIONAL = (POD_MONITORS, RULES, SCALED_OBJECTS, RESOURCE_CLAIM_TEMPLATES)
"""Kinds that other operators, or newer clusters, bring; nothing of them is made where they are
absent."""

_BY_NAME = {
    "Deployment": DEPLOYMENTS,
    "Job": JOBS,
    "PersistentVolumeClaim": CLAIMS,
    "Service": SERVICES,
    "Secret": SECRETS,
    "ServiceAccount": ACCOUNTS,
    "PodDisruptionBudget": BUDGETS,
    "NetworkPolicy": NETWORK_POLICIES,
    "PodMonitor": POD_MONITORS,
    "PrometheusRule": RULES,
    "ScaledObject": SCALED_OBJECTS,
    "HorizontalPodAutoscaler": AUTOSCALERS,
    "ResourceClaimTemplate": RESOURCE_CLAIM_TEMPLATES,
}

_NAMES = {kind: name for name, kind in _BY_NAME.items()} | {
    LLMDEPLOYMENTS: "LLMDeployment",
    PODS: "Pod",
    CLASSES: deployment_class.KIND,
    MODEL_NAMES: model_name.KIND,
}


def name_of_kind(kind: Kind) -> str:
    """Return the kind's name as manifests write it."""
    return _NAMES[kind]


def kind_of(manifest: dict[str, Any]) -> Kind:
    """Return the kind of a manifest that the operator made."""
    return _BY_NAME[manifest["kind"]]
