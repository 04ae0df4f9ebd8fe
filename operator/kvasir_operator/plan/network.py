"""ServiceAccount, Service, disruption budget, fleet secret and NetworkPolicy of a deployment."""

from __future__ import annotations

import base64

from kvasir.kube.objects import Object
from kvasir.resource import labels
from kvasir_operator.plan.step import PlanInputs, StepResult

_NAMESPACE = "kubernetes.io/metadata.name"


def plan_network(inputs: PlanInputs) -> StepResult:
    """Want ServiceAccount, Service, PodDisruptionBudget, Secret and NetworkPolicy."""
    account = inputs.child("v1", "ServiceAccount", inputs.name, automountServiceAccountToken=False)
    secrets = [_fleet_secret(inputs)] if inputs.settings.fleet_secret else []
    manifests = (account, _service(inputs), _budget(inputs), *secrets)
    if inputs.spec.network_policy.enabled:
        return StepResult(manifests=(*manifests, _network_policy(inputs)))
    policy = inputs.child("networking.k8s.io/v1", "NetworkPolicy", inputs.name)
    return StepResult(manifests=manifests, deletions=(policy,))


def _service(inputs: PlanInputs) -> Object:
    return inputs.child(
        "v1",
        "Service",
        inputs.name,
        spec={
            "clusterIP": "None",
            "selector": labels.identity(inputs.name, labels.ENGINE),
            "ports": [
                {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}
                for name, port in labels.ENGINE_PORTS.items()
            ],
        },
    )


def _budget(inputs: PlanInputs) -> Object:
    return inputs.child(
        "policy/v1",
        "PodDisruptionBudget",
        inputs.name,
        spec={
            "maxUnavailable": inputs.spec.disruption.max_unavailable,
            # A pod that does not serve anyway must not hold up a node's drain
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": labels.identity(inputs.name, labels.ENGINE)},
        },
    )


def _fleet_secret(inputs: PlanInputs) -> Object:
    """Return the namespace's copy: one for all its deployments, since rights to a Secret are given
    by its name. It goes with the last of them."""
    value = base64.b64encode(inputs.settings.fleet_secret.encode()).decode()
    return inputs.shared_child(
        "v1",
        "Secret",
        inputs.settings.fleet_secret_copy,
        type="Opaque",
        data={"secret": value},
    )


def _network_policy(inputs: PlanInputs) -> Object:
    routers = _from(inputs.settings.router_namespace, labels.ROUTER)
    operator = _from(inputs.settings.namespace, labels.OPERATOR)
    rules: list[Object] = [
        {"from": [routers], "ports": [_port(port) for port in labels.ENGINE_PORTS.values()]},
        {"from": [operator], "ports": [_port(labels.HTTP_PORT)]},
    ]
    allowed = inputs.spec.network_policy.allowed_namespaces
    if allowed:
        peers = [{"namespaceSelector": {"matchLabels": {_NAMESPACE: name}}} for name in allowed]
        rules.append({"from": peers, "ports": [_port(labels.HTTP_PORT)]})
    return inputs.child(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        inputs.name,
        spec={
            "podSelector": {"matchLabels": {labels.DEPLOYMENT: inputs.name}},
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
