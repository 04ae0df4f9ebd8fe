"""The evaluator against the specification's own examples and corners."""

import pytest

from harness.network_policy import End, allows


def policy(spec, namespace="default"):
    return {"metadata": {"name": "p", "namespace": namespace}, "spec": spec}


DB = End("default", {"role": "db"}, "10.0.0.1", {"sql": 6379})
FRONT = End("default", {"role": "frontend"}, "172.17.0.5")
PROJECT = End("other", {"role": "x"}, "10.1.0.1", namespace_labels={"project": "myproject"})
STRANGER = End("other", {"role": "frontend"}, "10.1.0.2")
OUTSIDE = End(ip="172.17.9.9")

# The example of https://kubernetes.io/docs/concepts/services-networking/network-policies/
EXAMPLE = policy(
    {
        "podSelector": {"matchLabels": {"role": "db"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "from": [
                    {"ipBlock": {"cidr": "172.17.0.0/16", "except": ["172.17.1.0/24"]}},
                    {"namespaceSelector": {"matchLabels": {"project": "myproject"}}},
                    {"podSelector": {"matchLabels": {"role": "frontend"}}},
                ],
                "ports": [{"protocol": "TCP", "port": 6379}],
            }
        ],
        "egress": [
            {
                "to": [{"ipBlock": {"cidr": "10.0.0.0/24"}}],
                "ports": [{"protocol": "TCP", "port": 5978}],
            }
        ],
    }
)


@pytest.mark.parametrize(
    ("source", "target", "port", "allowed"),
    [
        (FRONT, DB, 6379, True),
        (FRONT, DB, 6380, False),
        (PROJECT, DB, 6379, True),
        (STRANGER, DB, 6379, False),
        (OUTSIDE, DB, 6379, True),
        (End(ip="172.17.1.7"), DB, 6379, False),
        (End(ip="8.8.8.8"), DB, 6379, False),
        (DB, End(ip="10.0.0.9"), 5978, True),
        (DB, End(ip="10.0.0.9"), 80, False),
        (DB, FRONT, 5978, False),
        (STRANGER, FRONT, 80, True),
    ],
)
def test_the_documentations_example(source, target, port, allowed) -> None:
    assert allows([EXAMPLE], source, target, port) is allowed


def test_without_a_policy_everything_is_allowed() -> None:
    assert allows([], STRANGER, DB, 1)
    assert allows([EXAMPLE | {"metadata": {"namespace": "elsewhere"}}], STRANGER, DB, 1)


def test_no_rule_is_nobody_and_an_empty_one_everybody() -> None:
    nobody = policy({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": []})
    assert not allows([nobody], FRONT, DB, 6379)
    assert allows([nobody, policy({"podSelector": {}, "ingress": [{}]})], STRANGER, DB, 6379)


@pytest.mark.parametrize(
    ("ports", "allowed"),
    [
        ([{"port": "sql"}], True),
        ([{"port": "http"}], False),
        ([{"port": 6000, "endPort": 7000}], True),
        ([{"port": 7000, "endPort": 8000}], False),
        ([{"port": 6379, "protocol": "UDP"}], False),
        ([{}], True),
        ([{"port": 1}, {"port": 6379}], True),
    ],
)
def test_ports(ports, allowed) -> None:
    only = policy({"podSelector": {}, "ingress": [{"ports": ports}]})
    assert allows([only], FRONT, DB, 6379) is allowed


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ({"operator": "In", "values": ["frontend", "x"]}, True),
        ({"operator": "NotIn", "values": ["frontend"]}, False),
        ({"operator": "Exists"}, True),
        ({"operator": "DoesNotExist"}, False),
    ],
)
def test_expressions(expression, allowed) -> None:
    peer = {"podSelector": {"matchExpressions": [{"key": "role"} | expression]}}
    only = policy({"podSelector": {}, "ingress": [{"from": [peer]}]})
    assert allows([only], FRONT, DB, 1) is allowed


def test_a_namespace_is_known_by_its_name() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}
    only = policy({"podSelector": {}, "ingress": [{"from": [peer]}]})
    assert allows([only], STRANGER, DB, 1)
    assert not allows([only], FRONT, DB, 1)
