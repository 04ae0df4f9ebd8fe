"""Service, NetworkPolicy, fleet secret and PodDisruptionBudget of a deployment."""

from __future__ import annotations

import base64

from kvasir.resource import labels
from kvasir_operator.objects import Object
from kvasir_operator.plan.draft import Draft
from kvasir_operator.plan.engine.pod_template import fleet_secret_name

_NAMESPACE = "kubernetes.io/metadata.name"


def add_surroundings(draft: Draft) -> None:
    """Service, ServiceAccount, Secret, PodDisruptionBudget and NetworkPolicy."""
    draft.manifests.append(
        draft.child("v1", "ServiceAccount", draft.name, automountServiceAccountToken=False)
    )
    draft.manifests.append(_service(draft))
    draft.manifests.append(_budget(draft))
    if draft.settings.fleet_secret:
        draft.manifests.append(_fleet_secret(draft))
    if draft.deployment.spec.network_policy.enabled:
        draft.manifests.append(_network_policy(draft))
    else:
        draft.deletions.append(draft.child("networking.k8s.io/v1", "NetworkPolicy", draft.name))


def _service(draft: Draft) -> Object:
    return draft.child(
        "v1",
        "Service",
        draft.name,
        spec={
            "clusterIP": "None",
            "selector": labels.identity(draft.name, labels.ENGINE),
            "ports": [
                {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
                for name, port in labels.ENGINE_PORTS.items()
            ],
        },
    )


def _budget(draft: Draft) -> Object:
    return draft.child(
        "policy/v1",
        "PodDisruptionBudget",
        draft.name,
        spec={
            "maxUnavailable": draft.deployment.spec.disruption.max_unavailable,
            # A pod that does not serve anyway must not hold up a node's drain
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": labels.identity(draft.name, labels.ENGINE)},
        },
    )


def _fleet_secret(draft: Draft) -> Object:
    value = base64.b64encode(draft.settings.fleet_secret.encode()).decode()
    return draft.child(
        "v1",
        "Secret",
        fleet_secret_name(draft.name),
        type="Opaque",
        data={"secret": value},
    )


def _network_policy(draft: Draft) -> Object:
    routers = _from(draft.settings.router_namespace, labels.ROUTER)
    operator = _from(draft.settings.namespace, labels.OPERATOR)
    rules: list[Object] = [
        {"from": [routers], "ports": [_port(port) for port in labels.ENGINE_PORTS.values()]},
        {"from": [operator], "ports": [_port(labels.HTTP_PORT)]},
    ]
    allowed = draft.deployment.spec.network_policy.allowed_namespaces
    if allowed:
        peers = [{"namespaceSelector": {"matchLabels": {_NAMESPACE: name}}} for name in allowed]
        rules.append({"from": peers, "ports": [_port(labels.HTTP_PORT)]})
    return draft.child(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        draft.name,
        spec={
            "podSelector": {"matchLabels": {labels.DEPLOYMENT: draft.name}},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    )


def _from(namespace: str, component: str) -> Object:
    return {
        "namespaceSelector": {"matchLabels": {_NAMESPACE: namespace}},
        "podSelector": {"matchLabels": {labels.COMPONENT: component}},
    }


def _port(number: int) -> Object:
    return {"port": number, "protocol": "TCP"}
