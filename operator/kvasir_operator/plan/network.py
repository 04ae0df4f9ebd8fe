"""ServiceAccount, Service, disruption budget, fleet secret and NetworkPolicies of a deployment."""

from __future__ import annotations

import base64

from kvasir.kube.objects import Object
from kvasir.resource import labels
from kvasir_operator.plan.engine.engine_container import has_fleet
from kvasir_operator.plan.step import PlanInputs, StepResult
from kvasir_operator.spec_facts import ports_of

_NAMESPACE = "kubernetes.io/metadata.name"
_NAMES: Object = {"ports": [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]}
"""Leave to ask name servers, wherever a cluster has them."""
_ANYWHERE = {
    "0.0.0.0/0": ("169.254.0.0/16",),
    "::/0": ("fe80::/10", "fd00:ec2::254/128", "fd00:ec2::23/128", "fd20:ce::254/128"),
}
"""All addresses, and among them those of metadata services of AWS, Azure and Google Cloud."""


def plan_network(inputs: PlanInputs) -> StepResult:
    """Want ServiceAccount, Service, PodDisruptionBudget, Secret and NetworkPolicies."""
    account = inputs.child("v1", "ServiceAccount", inputs.name, automountServiceAccountToken=False)
    secrets = [_fleet_secret(inputs)] if has_fleet(inputs) else []
    manifests = (account, _service(inputs), _budget(inputs), *secrets)
    downloads = [_download_policy(inputs)] if inputs.storage.cached else []
    policies = (_engine_policy(inputs), *downloads)
    if inputs.spec.network_policy.enabled:
        return StepResult(manifests=(*manifests, *policies))
    return StepResult(manifests=manifests, deletions=policies)


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
                for name, port in ports_of(inputs.spec).items()
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
    """Return the namespace's copy, with all lines: one for all its deployments, since rights to a
    Secret are given by its name. It goes with the last of them."""
    value = base64.b64encode(inputs.settings.fleet_secret.text.encode()).decode()
    return inputs.shared_child(
        "v1",
        "Secret",
        inputs.settings.fleet_secret_copy,
        type="Opaque",
        data={"secret": value},
    )


def _engine_policy(inputs: PlanInputs) -> Object:
    """Let routers in, and out what the spec names: code of a model reaches nobody else."""
    wanted = inputs.spec.network_policy
    routers = _from(inputs.settings.router_namespace, labels.ROUTER)
    operator = _from(inputs.settings.namespace, labels.OPERATOR)
    ports = _open_ports(inputs)
    http = [port for name, port in ports if name == "http"]
    ingress: list[Object] = [
        {"from": [routers], "ports": [_port(port) for _, port in ports]},
        {"from": [operator], "ports": [_port(port) for port in http]},
    ]
    if wanted.allowed_namespaces:
        peers = [_namespace(name) for name in wanted.allowed_namespaces]
        ingress.append({"from": peers, "ports": [_port(port) for port in http]})
    peers = [
        *(_namespace(name) for name in wanted.egress_namespaces),
        *({"ipBlock": {"cidr": cidr}} for cidr in wanted.egress_cidrs),
    ]
    egress = [{"to": peers}, _NAMES] if peers else []
    return _policy(inputs, inputs.name, labels.ENGINE, ingress, egress)


def _open_ports(inputs: PlanInputs) -> list[tuple[str, int]]:
    """Return the engines' ports with their names: the spec's, and during a rollout those of pods
    that run with others."""
    found = dict.fromkeys(ports_of(inputs.spec).items())
    for pod in inputs.observed.pods:
        for container in (pod.get("spec") or {}).get("containers") or ():
            if container["name"] == labels.ENGINE_CONTAINER:
                for port in container.get("ports") or ():
                    found[str(port.get("name") or ""), port["containerPort"]] = None
    return list(found)


def _download_policy(inputs: PlanInputs) -> Object:
    """Let the operator ask for progress, and out to stores and registries, wherever they are; not
    to a cloud's metadata service, which gives the node's own rights to whoever asks."""
    operator = _from(inputs.settings.namespace, labels.OPERATOR)
    ingress = [{"from": [operator], "ports": [_port(labels.HTTP_PORT)]}]
    blocks: list[Object] = [{"cidr": cidr} for cidr in _ANYWHERE]
    if not inputs.settings.download_metadata:
        blocks = [{"cidr": cidr, "except": [*kept]} for cidr, kept in _ANYWHERE.items()]
    # Some networks hold addresses of pods to be in no block
    peers: list[Object] = [*({"ipBlock": block} for block in blocks), {"namespaceSelector": {}}]
    name = f"{inputs.name}-download"
    return _policy(inputs, name, labels.DOWNLOAD, ingress, [{"to": peers}, _NAMES])


def _policy(
    inputs: PlanInputs, name: str, component: str, ingress: list[Object], egress: list[Object]
) -> Object:
    return inputs.child(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        name,
        component=component,
        spec={
            "podSelector": {"matchLabels": labels.identity(inputs.name, component)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    )


def _namespace(name: str) -> Object:
    return {"namespaceSelector": {"matchLabels": {_NAMESPACE: name}}}


def _from(namespace: str, component: str) -> Object:
    return {
        "namespaceSelector": {"matchLabels": {_NAMESPACE: namespace}},
        "podSelector": {"matchLabels": {labels.COMPONENT: component}},
    }


def _port(number: int) -> Object:
    return {"port": number, "protocol": "TCP"}
