"""Say which flows NetworkPolicies allow, for clusters whose network enforces none.

The rules are those of networking.k8s.io/v1: a pod that some policy selects for a direction is
isolated in it, and then only what a rule of such a policy names is allowed; a connection needs both
its source's leave to go out and its target's to come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, Literal

Object = Mapping[str, Any]
Direction = Literal["Ingress", "Egress"]


@dataclass(frozen=True)
class End:
    """A pod, or with `namespace` "" something outside the cluster."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    ip: str = "198.51.100.1"
    ports: Mapping[str, int] = field(default_factory=dict)
    """Ports of a pod's containers, by name."""
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    """Besides the name that every namespace has."""


def allows(
    policies: Iterable[Object], source: End, target: End, port: int, protocol: str = "TCP"
) -> bool:
    """Return True if `source` may connect to `port` of `target`."""
    policies = list(policies)
    out = _permits(policies, "Egress", source, target, target, port, protocol)
    return out and _permits(policies, "Ingress", target, source, target, port, protocol)


def _permits(
    policies: list[Object],
    direction: Direction,
    own: End,
    other: End,
    target: End,
    port: int,
    protocol: str,
) -> bool:
    isolating = [policy for policy in policies if _isolates(policy, direction, own)]
    if not isolating:
        return True
    return any(
        _names_port(rule, target, port, protocol)
        and _names_peer(rule, "from" if direction == "Ingress" else "to", own.namespace, other)
        for policy in isolating
        for rule in policy["spec"].get(direction.lower()) or ()
    )


def _isolates(policy: Object, direction: Direction, pod: End) -> bool:
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    here = policy["metadata"].get("namespace") == pod.namespace != ""
    return here and direction in types and _selects(spec.get("podSelector") or {}, pod.labels)


def _names_port(rule: Object, target: End, port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    return not ports or any(_is_port(each, target, port, protocol) for each in ports)


def _is_port(named: Object, target: End, port: int, protocol: str) -> bool:
    if named.get("protocol", "TCP") != protocol:
        return False
    first = named.get("port")
    if isinstance(first, str):
        first = target.ports.get(first, -1)
    return first is None or first <= port <= named.get("endPort", first)


def _names_peer(rule: Object, key: str, namespace: str, other: End) -> bool:
    peers = rule.get(key)
    return not peers or any(_is_peer(each, namespace, other) for each in peers)


def _is_peer(peer: Object, namespace: str, other: End) -> bool:
    if block := peer.get("ipBlock"):
        address = ip_address(other.ip)
        if any(address in ip_network(each) for each in block.get("except") or ()):
            return False
        return address in ip_network(block["cidr"])
    if not other.namespace:
        return False
    if "namespaceSelector" in peer:
        labels = {"kubernetes.io/metadata.name": other.namespace, **other.namespace_labels}
        if not _selects(peer["namespaceSelector"] or {}, labels):
            return False
    elif other.namespace != namespace:
        return False
    return _selects(peer.get("podSelector") or {}, other.labels)


def _selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """An empty selector selects everything."""
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _holds(each, labels) for each in selector.get("matchExpressions") or ()
    )


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise ValueError(f"{expression['operator']!r} is no operator of a label selector")
